"""The graph flow from the command line, on CSV files of a person's own; mistakes before any work."""

import json
from pathlib import Path

import pandas as pd
import pytest

from flows.graph import check
from flows.graph_config import GraphConfig
from methods.common.errors import ConfigError, DataError
from methods.s3gnn import S3GNNClassifier
from tests.flows.tiny_lifecycle import environment, seedloom
from tests.tasks.graphs.test_graphs import as_csv, example

QUICK = ("--hidden", "8", "--layers", "2", "--epochs", "5", "--seeds", "0,1", "--learning_rates", "0.01")


@pytest.mark.server
def test_models_and_predictions_for_a_csv_folder(tmp_path: Path) -> None:
    as_csv(example(), tmp_path / "net")
    env = environment(tmp_path / "work")
    where = ("--graphs.source", "net", "--graphs.target", "kind", "--models", "s3gnn,gcn")
    done = seedloom("run", "graph", *where, *QUICK, "--report.folder", "report", env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "test accuracy" in done.stdout
    for name in ("s3gnn", "gcn"):
        rows = pd.read_csv(tmp_path / f"graph-models/{name}/predictions.csv")
        assert set(rows.prediction) <= {"a", "b"}
        assert len(rows) == 30
    assert S3GNNClassifier.load(tmp_path / "graph-models/s3gnn/model").hidden == 8
    metrics = json.loads((tmp_path / "report/metrics.json").read_text())["models"]
    assert set(metrics) == {"s3gnn", "gcn"}
    assert metrics["gcn"]["seeds"] == 2
    plots = {p.name for p in (tmp_path / "report/plots").iterdir()}
    assert plots == {"scores.csv", "scores.png", "sensitivity.csv", "sensitivity.png"}


def test_mistakes_are_told_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        check(GraphConfig(graphs={"source": str(tmp_path / "nowhere")}))
    made = tmp_path / "made"
    made.mkdir()
    (made / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="holds other files"):
        check(GraphConfig(output=str(made)))
    with pytest.raises(ValueError, match="learning_rates"):
        GraphConfig(learning_rates=(0.0,))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.graph.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'seedloom\[graphs\]'"):
        check(GraphConfig())
