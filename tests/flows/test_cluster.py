"""The cluster flow from the command line, on a table of a person's own."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flows.cluster import check
from flows.cluster_config import ClusterConfig
from methods.common.errors import DataError
from tests.flows.tiny_lifecycle import environment, seedloom

METHODS = '[{"kind": "sc_fagc", "n_clusters": 3}, {"kind": "k_means", "n_clusters": 3}]'


def table(file: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(90, 3)), rng.normal(size=(30, 3)) + 5])
    pd.DataFrame(rows, columns=["x", "y", "z"]).assign(text=[f"t{i}" for i in range(120)]).to_parquet(file)
    return file


@pytest.mark.server
def test_a_table_is_split_into_parts_of_like_size(tmp_path: Path) -> None:
    table(tmp_path / "rows.parquet")
    env = environment(tmp_path / "work")
    arguments = (
        "run",
        "cluster",
        "--features.source",
        "rows.parquet",
        "--methods",
        METHODS,
        "--shards",
        "true",
    )
    done = seedloom(*arguments, "--report.folder", "report", env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "32 to 48" in done.stdout
    rows = pd.read_parquet(tmp_path / "clustered/sc_fagc-3/assigned.parquet")
    sizes = rows.cluster.value_counts()
    assert sizes.min() >= 32
    assert sizes.max() <= 48
    assert rows.text.tolist() == [f"t{i}" for i in range(120)]
    shards = sorted((tmp_path / "clustered/sc_fagc-3/shards").iterdir())
    assert sum(len(pd.read_parquet(shard)) for shard in shards) == 120
    metrics = json.loads((tmp_path / "report/metrics.json").read_text())["candidates"]
    assert set(metrics) == {"sc_fagc-3", "k_means-3"}
    assert {p.name for p in (tmp_path / "report/plots").iterdir()} == {
        "sizes.csv",
        "sizes.png",
        "map.csv",
        "map.png",
    }


def test_mistakes_are_told_before_any_work(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    (made / "notes.txt").write_text("mine")
    rows = str(table(tmp_path / "rows.parquet"))
    for features, output, says in (
        ({"source": str(tmp_path / "nowhere.csv")}, "new", "there is no such file"),
        ({"source": rows}, "made", "made holds other files"),
        ({"source": rows}, "rows.parquet", "overlap"),
    ):
        with pytest.raises(DataError, match=says) as caught:
            check(ClusterConfig.model_validate({"features": features, "output": str(tmp_path / output)}))
        assert "\n" not in str(caught.value)
