"""A coreset of files read by batches: the same rows from every kind of file, pieces, resume, and wrong files."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset

from methods.approx_coresets import ApproxCoreset
from methods.common.errors import DataError
from tasks.cluster.batches import batches, pieces_of
from tasks.cluster.coreset import label_piece, merge_pieces, reduce_piece
from tasks.cluster.coreset_config import StreamCoresetSettings, StreamSource
from tasks.cluster.methods import Coreset
from tasks.reference import Reference, reference_to
from tasks.report.coreset import coreset_table
from tasks.step import run_step

N = 1_000


def rows() -> np.ndarray:
    random = np.random.default_rng(0)
    return np.round(random.normal(size=(N, 3)) + random.integers(0, 4, size=(N, 1)) * 6, 3)


def frame() -> pd.DataFrame:
    table = pd.DataFrame(rows(), columns=["x", "y", "z"])
    table.insert(0, "name", [f"row {i}" for i in range(N)])
    return table


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    table = frame()
    np.save(folder / "a.npy", rows())
    table.to_csv(folder / "a.csv", index=False)
    table.to_parquet(folder / "a.parquet", row_group_size=130, index=False)
    table.to_json(folder / "a.jsonl", orient="records", lines=True)
    arrow = pa.Table.from_pandas(table)
    with pa.OSFile(str(folder / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, arrow.schema) as writer:
        writer.write_table(arrow, max_chunksize=150)
    Dataset.from_pandas(table).save_to_disk(str(folder / "saved"))
    parts = folder / "parts"
    parts.mkdir()
    for i in range(3):
        table.iloc[i * 400 : (i + 1) * 400].to_parquet(parts / f"part-{i}.parquet", index=False)
    arrays = folder / "arrays"
    arrays.mkdir()
    for i in range(3):
        np.save(arrays / f"part-{i}.npy", rows()[i * 400 : (i + 1) * 400])
    lists = pd.DataFrame({"embedding": list(rows())})
    lists.to_parquet(folder / "lists.parquet", index=False)
    return folder


def read(source: StreamSource) -> np.ndarray:
    return np.concatenate([m for piece in pieces_of(source) for m in batches(piece, source)])


@pytest.mark.parametrize(
    "name",
    ["a.npy", "a.csv", "a.parquet", "a.jsonl", "a.arrow", "saved", "parts", "parts/*.parquet", "arrays"],
)
@pytest.mark.parametrize("partitions", [1, 3, 100])
def test_every_kind_of_file_gives_all_rows_in_order(files: Path, name: str, partitions: int) -> None:
    source = StreamSource(source=str(files / name), batch_rows=64, partitions=partitions)
    np.testing.assert_allclose(read(source), rows())
    pieces = pieces_of(source)
    for piece in pieces:
        assert max(len(m) for m in batches(piece, source)) <= 64
    if name in ("a.npy", "a.parquet"):
        assert len(pieces) == min(partitions, N if name == "a.npy" else 8)


def test_embeddings_and_chosen_columns(files: Path) -> None:
    np.testing.assert_allclose(
        read(StreamSource(source=str(files / "lists.parquet"), columns=("embedding",))), rows()
    )
    chosen = StreamSource(source=str(files / "a.csv"), columns=("z", "x"))
    np.testing.assert_allclose(read(chosen), rows()[:, [2, 0]])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.npy", None, "there is no such file"),
        ("a.npz", b"x", r"store the array as \.npy"),
        ("bad.npy", b"no array", "cannot be read"),
        ("bad.parquet", b"no table", "cannot be read"),
        ("hole.csv", b"x,y\n1,2\n3,\n5,6\n", "no finite number in row 2"),
        ("words.csv", b"x\nyes\nno\n", "no column of numbers"),
        ("mixed.csv", b"x,y\n1,2\n3,4,5,6\n", "cannot be read"),
        ("flat.npy", "flat", "give numbers of shape"),
        ("org/name", None, "store it first"),
    ],
)
def test_wrong_files(tmp_path: Path, name: str, content: Any, words: str) -> None:
    path = tmp_path / name
    if content == "flat":
        np.save(path, np.ones(3))
    elif content is not None:
        path.write_bytes(content)
    source = StreamSource(source=name if name == "org/name" else str(path))
    with pytest.raises(DataError, match=words):
        read(source)


def done(settings: StreamCoresetSettings, out: Path) -> tuple[dict[str, Any], Path, list[dict[str, Any]]]:
    pieces, parts = pieces_of(settings.features), []
    for number, piece in enumerate(pieces):
        place = out / f"piece-{number}"
        place.mkdir(parents=True)
        reduce_piece(place, settings=settings, piece=piece, number=number)
        parts.append(reference_to(place, "data"))
    merged = out / "merged"
    merged.mkdir()
    record = merge_pieces(merged, settings=settings, parts=parts, pieces=pieces)
    labelled = []
    for number, piece in enumerate(pieces):
        place = out / f"labels-{number}"
        place.mkdir()
        labelled.append(
            label_piece(place, settings=settings, piece=piece, merged=reference_to(merged, "data"))
        )
    return record, merged, labelled


@pytest.mark.parametrize("power", [1, 2])
def test_pieces_give_one_coreset_of_all_rows(files: Path, tmp_path: Path, power: int) -> None:
    source = StreamSource(source=str(files / "parts"), partitions=6, batch_rows=100)
    settings = StreamCoresetSettings.model_validate(
        {"features": source, "n_clusters": 4, "points": 80, "power": power}
    )
    record, merged, labelled = done(settings, tmp_path / "one")
    assert record["rows"] == N
    assert record["points"] <= 80
    omega = ApproxCoreset.load(merged / "coreset.npz")
    np.testing.assert_array_equal(omega.points_, rows()[omega.indices_])
    with (merged / "rows.csv").open() as stream:
        kept = list(csv.DictReader(stream))
    starts = {f"part-{i}.parquet": 400 * i for i in range(3)}
    assert [starts[r["file"]] + int(r["row"]) for r in kept] == omega.indices_.tolist()
    np.testing.assert_array_equal([float(r["weight"]) for r in kept], omega.weights_)
    centres = np.load(merged / "centres.npy")
    away = np.linalg.norm(rows()[:, None] - centres[None], axis=2)
    cost = float((away.min(axis=1) ** power).sum())
    assert sum(one["cost"] for one in labelled) == pytest.approx(cost)
    labels = np.concatenate([np.load(tmp_path / "one" / f"labels-{i}" / "labels.npy") for i in range(3)])
    np.testing.assert_array_equal(labels, away.argmin(axis=1))
    again, other, _ = done(settings, tmp_path / "two")
    assert again == record
    assert (other / "coreset.npz").read_bytes() == (merged / "coreset.npz").read_bytes()
    shown, metrics = coreset_table(record, labelled)
    assert metrics["cost"] == pytest.approx(cost)
    assert shown["rows"][0] == "1,000"
    assert "cost" not in coreset_table(record, [])[1]
    json.dumps(metrics)


def test_more_clusters_than_rows_are_refused(files: Path, tmp_path: Path) -> None:
    settings = StreamCoresetSettings(features=StreamSource(source=str(files / "a.npy")), n_clusters=2_000)
    with pytest.raises(DataError, match="n_clusters=2000 is above the 1000 rows"):
        done(settings, tmp_path)


def test_a_killed_run_reads_only_the_pieces_that_are_missing(work: Path, files: Path) -> None:
    settings = StreamCoresetSettings(
        features=StreamSource(source=str(files / "a.npy"), partitions=4), n_clusters=4, points=50
    )
    read_pieces: list[int] = []

    def piece_work(out: Path, **given: Any) -> dict[str, Any]:
        if len(read_pieces) == 2:
            raise KeyboardInterrupt
        read_pieces.append(given["piece"].first)
        return reduce_piece(out, settings=given["settings"], piece=given["piece"], number=given["number"])

    def run() -> list[Reference]:
        return [
            run_step(
                "coreset-piece",
                "1",
                "data",
                piece_work,
                {"settings": settings, "piece": piece, "number": i, "fingerprint": "f"},
            ).reference
            for i, piece in enumerate(pieces_of(settings.features))
        ]

    with pytest.raises(KeyboardInterrupt):
        run()
    assert read_pieces == [0, 250]
    killed, read_pieces[:] = list(read_pieces), []
    parts = run()
    assert killed + read_pieces == [0, 250, 500, 750]
    assert len(parts) == 4


def test_a_method_of_the_cluster_step(tmp_path: Path) -> None:
    from tasks.cluster.approx_coresets import cluster

    labels, facts = cluster(tmp_path, method=Coreset(n_clusters=4, points=100), features=rows(), seed=0)
    assert len(np.unique(labels)) == 4
    assert facts["coreset_points"] <= 100
    assert facts["inertia"] >= 0.5 * facts["coreset_inertia"]
    assert ApproxCoreset.load(tmp_path / "coreset.npz").n_seen_ == N
    assert Coreset(n_clusters=4, points=100).label == "coreset-4-100"
    assert Coreset(power=1, polish=2).label == "coreset-median-10-eps0.05-polish2"
