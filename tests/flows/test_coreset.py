"""The flow `coreset`: pieces, a killed run, what lies in the folder, and mistakes told before any work."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import flows.coreset as module
from flows.coreset_config import CoresetConfig
from flows.task_runner import Finished
from methods.approx_coresets import ApproxCoreset
from methods.common.errors import DataError


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    X = random.normal(size=(2_000, 3)) + random.integers(0, 4, size=(2_000, 1)) * 6
    np.save(tmp_path / "rows.npy", X.astype(np.float32))
    return tmp_path / "rows.npy"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, work: Path) -> dict[str, Any]:
    """The flow without Prefect and MLflow; `stop_at` kills it before that step."""
    kept: dict[str, Any] = {"ran": [], "stop_at": ""}

    def start(step: Any, _ctx: Any, label: str, inputs: dict[str, Any]) -> Finished:
        if label == kept["stop_at"]:
            raise KeyboardInterrupt
        found = Finished(step.fn(None, label, inputs))
        kept["ran"].append(label)
        return found

    @contextmanager
    def open_run(*_args: Any) -> Iterator[Any]:
        yield SimpleNamespace(parent_run_id="parent")

    def publish(*args: Any, notes: str) -> dict[str, Any]:
        return {**kept, "metrics": args[3], "shown": args[4], "notes": notes}

    for name, value in {"start": start, "open_run": open_run, "publish": publish}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "report_folder", lambda *_args: None)
    return kept


def config(rows: Path, output: Path, **changes: Any) -> CoresetConfig:
    features = {"source": str(rows), "partitions": 4, "batch_rows": 300}
    values = {"features": features, "n_clusters": 4, "points": 100, "output": str(output)}
    return CoresetConfig.model_validate(values | changes)


def test_a_killed_run_ends_with_the_same_files(
    rows: Path, tmp_path: Path, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone["stop_at"] = "piece 3 of 4"
    with pytest.raises(KeyboardInterrupt):
        module.coreset.fn(config(rows, tmp_path / "one"))
    assert alone["ran"] == ["piece 1 of 4", "piece 2 of 4"]
    assert not (tmp_path / "one").exists()
    built: list[int] = []
    fit = ApproxCoreset.partial_fit
    monkeypatch.setattr(ApproxCoreset, "partial_fit", lambda self, X: built.append(len(X)) or fit(self, X))
    alone["stop_at"] = ""
    found = module.coreset.fn(config(rows, tmp_path / "one"))
    assert sum(built) == 1_000  # the rows of two pieces: those of the others were kept
    omega = ApproxCoreset.load(tmp_path / "one" / "coreset.npz")
    X = np.load(rows)
    assert omega.n_seen_ == 2_000
    np.testing.assert_array_equal(omega.points_, X[omega.indices_])
    labels = np.concatenate([np.load(f) for f in sorted((tmp_path / "one").glob("labels-*.npy"))])
    centres = np.load(tmp_path / "one" / "centres.npy")
    away = ((X[:, None].astype(float) - centres[None]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(labels, away.argmin(axis=1))
    assert found["metrics"]["cost"] == pytest.approx(float(away.min(axis=1).sum()), rel=1e-6)
    assert found["metrics"]["smallest"] > 300
    assert "measure with audit" in found["notes"]
    module.coreset.fn(config(rows, tmp_path / "two"))
    for name in ("coreset.npz", "rows.csv", "centres.npy"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_labels_may_be_left_out(rows: Path, tmp_path: Path, alone: dict[str, Any]) -> None:
    found = module.coreset.fn(config(rows, tmp_path / "out", label_rows=False))
    assert not list((tmp_path / "out").glob("labels-*"))
    assert "cost" not in found["metrics"]


def test_mistakes_are_told_before_any_work(rows: Path, tmp_path: Path, alone: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        module.coreset.fn(config(tmp_path / "none.npy", tmp_path / "out"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match="mine"):
        module.coreset.fn(config(rows, tmp_path / "mine"))
    assert alone["ran"] == []
