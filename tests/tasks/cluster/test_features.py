"""Samples from every kind of source are the same matrix; every mistake is one line that says what to do."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict

from methods.common.errors import ConfigError, DataError
from tasks.cluster.config import FeatureSettings
from tasks.cluster.features import build_features, check_features, load_features, read_table

ROWS = 12
NUMBERS = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
TABLE = pd.DataFrame(
    {
        "name": [f"row {i}" for i in range(ROWS)],
        "a": NUMBERS[:, 0],
        "b": NUMBERS[:, 1],
        "c": NUMBERS[:, 2],
        "kind": ["x", "y", "z"] * 4,
        "embedding": [list(map(float, row)) for row in NUMBERS],
    }
)


def write(folder: Path, kind: str) -> Path:
    file = folder / f"data.{kind}"
    match kind:
        case "csv":
            TABLE.drop(columns="embedding").to_csv(file, index=False)
        case "parquet":
            TABLE.to_parquet(file)
        case "jsonl":
            TABLE.to_json(file, orient="records", lines=True)
        case "arrow":
            table = pa.Table.from_pandas(TABLE)
            with pa.OSFile(str(file), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
                writer.write_table(table)
        case "npy":
            np.save(file, NUMBERS)
        case "npz":
            np.savez(file, images=NUMBERS.reshape(ROWS, 3, 1), kind=TABLE.kind.to_numpy(dtype=str))
        case "saved":
            DatasetDict({"train": Dataset.from_pandas(TABLE)}).save_to_disk(file)
    return file


def made(source: Path, out: Path, **changes: Any) -> tuple[np.ndarray, np.ndarray | None]:
    settings = FeatureSettings.model_validate({"source": str(source), **changes})
    check_features(settings)
    out.mkdir()
    build_features(settings, out)
    return load_features(out)


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "arrow", "npy", "npz", "saved"])
def test_every_kind_of_source_gives_the_same_matrix(tmp_path: Path, kind: str) -> None:
    source = write(tmp_path, kind)
    labelled = {} if kind == "npy" else {"label_column": "kind"}
    matrix, truth = made(source, tmp_path / "out", **labelled)
    assert matrix.dtype == np.float32
    assert np.abs(matrix - NUMBERS).max() < 1e-6
    if kind == "npy":
        assert truth is None
    else:
        assert truth is not None
        assert truth.tolist() == [0, 1, 2] * 4


def test_a_column_of_embeddings_and_a_folder_of_files(tmp_path: Path) -> None:
    matrix, _ = made(write(tmp_path, "parquet"), tmp_path / "out", columns=["embedding", "a"])
    assert np.abs(matrix - np.column_stack([NUMBERS, NUMBERS[:, 0]])).max() < 1e-6
    parts = tmp_path / "parts"
    parts.mkdir()
    TABLE.iloc[:5].to_csv(parts / "one.csv", index=False)
    TABLE.iloc[5:].to_csv(parts / "two.csv", index=False)
    joined, _ = made(parts, tmp_path / "joined")
    assert np.abs(joined - NUMBERS).max() < 1e-6
    rows = read_table(FeatureSettings(source=str(parts)))
    assert rows is not None
    assert rows.name.tolist() == TABLE.name.tolist()


def test_scaling_and_components(tmp_path: Path) -> None:
    source = write(tmp_path, "npy")
    scaled, _ = made(source, tmp_path / "scaled", scale="standard")
    assert np.abs(scaled.mean(axis=0)).max() < 1e-6
    assert np.abs(scaled.std(axis=0) - 1).max() < 1e-6
    few, _ = made(source, tmp_path / "few", components=2)
    assert few.shape == (ROWS, 2)
    centred = NUMBERS - NUMBERS.mean(axis=0)
    wanted = np.linalg.svd(centred, compute_uv=False)[:2]
    assert np.linalg.norm(few, axis=0) == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(ConfigError, match=r"features.components=4: is above the 3 features"):
        made(source, tmp_path / "many", components=4)


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    source = write(tmp_path, "parquet")
    for name in ("one", "two"):
        made(source, tmp_path / name, label_column="kind")
    files = sorted(p.name for p in (tmp_path / "one").iterdir())
    assert files == ["features.json", "features.npy", "truth.npy"]
    assert all((tmp_path / "one" / f).read_bytes() == (tmp_path / "two" / f).read_bytes() for f in files)
    record = json.loads((tmp_path / "one/features.json").read_text())
    assert record["columns"] == ["a", "b", "c"]
    assert str(tmp_path) not in json.dumps(record)


def spoilt(folder: Path, what: str) -> Path:
    table = TABLE.copy()
    file = folder / "data.parquet"
    match what:
        case "hole":
            table.loc[3, "b"] = np.nan
        case "ragged":
            table.at[2, "embedding"] = [1.0]
        case "text":
            table = table[["name", "kind"]]
        case "words":
            table["embedding"] = [["a", "b"]] * ROWS
        case "empty":
            table = table.iloc[:0]
        case "damaged":
            file.write_bytes(b"PAR1 and nothing else")
            return file
        case "pickle":
            file = folder / "data.npy"
            np.save(file, np.array([{"a": 1}] * 3, dtype=object), allow_pickle=True)
            return file
        case "flat":
            file = folder / "data.npy"
            np.save(file, np.zeros(5))
            return file
        case "several":
            file = folder / "data.npz"
            np.savez(file, one=NUMBERS, two=NUMBERS)
            return file
    table.to_parquet(file)
    return file


@pytest.mark.parametrize(
    ("what", "changes", "says"),
    [
        ("hole", {}, "data data.parquet: column 'b' has no finite number in row 4; fill or drop such rows"),
        ("ragged", {"columns": ["embedding"]}, "lists of column 'embedding' have different lengths"),
        ("words", {"columns": ["embedding"]}, "column 'embedding' holds lists that are no numbers"),
        ("text", {}, "has no column of numbers; name a column of embeddings in columns"),
        ("", {"columns": ["name"]}, "column 'name' holds neither numbers nor lists of numbers"),
        ("", {"columns": ["d"]}, "has no column 'd'; set columns to one of name, a, b"),
        ("", {"label_column": "d"}, "has no column 'd'; set label_column to one of name"),
        ("", {"columns": ["a"], "label_column": "a"}, "a label must not be a feature"),
        ("empty", {}, "holds no rows"),
        ("damaged", {}, "data.parquet: cannot be read"),
        ("pickle", {}, "is no array of numbers that can be read"),
        ("flat", {}, r"holds float64 of shape \(5,\); give numbers of shape \[n, ...\]"),
        ("flat", {"columns": ["a"]}, "an .npy file has no columns"),
        ("several", {}, "holds the arrays one, two; name the features' one in columns"),
        ("several", {"columns": ["three"]}, "has no array 'three'; set columns to one of one, two"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, what: str, changes: dict, says: str) -> None:
    source = spoilt(tmp_path, what)
    with pytest.raises(DataError, match=says) as caught:
        made(source, tmp_path / "out", **changes)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_told_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        check_features(FeatureSettings(source=str(tmp_path / "nowhere.csv")))
    (tmp_path / "a.npy").write_bytes(b"")
    (tmp_path / "b.csv").write_text("x\n1\n")
    with pytest.raises(DataError, match=r"of \d files are arrays; stack them into one \.npy"):
        check_features(FeatureSettings(source=str(tmp_path)))
