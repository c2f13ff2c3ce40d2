"""The study's runs: done once, gone on with after a kill, and what people read of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from methods.common.errors import ConfigError
from methods.s3gnn import study, study_data
from methods.s3gnn.study import MODELS, Run, models_of, score_run
from methods.s3gnn.study_claims import best_by_validation, claims, gains
from tasks.report.s3gnn import LOOKS, figures, metrics_and_verdicts, score_table, tables, times_note
from tasks.study import s3gnn as module
from tasks.study.s3gnn import check_study, task_rows
from tasks.study.s3gnn_config import Model, S3GNNStudy


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = {
        name: replace(plan, sizes=(24, 6, 6), epochs=1, layers=1) for name, plan in study_data.PLANS.items()
    }
    monkeypatch.setattr(study_data, "PLANS", plans)
    monkeypatch.setattr(study, "PLANS", plans)
    monkeypatch.setattr(study_data, "BARBELL", {"small": 4, "full": 4})
    study_data.task_data.cache_clear()
    yield
    study_data.task_data.cache_clear()


def test_only_what_is_missing_is_done(small: None, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Run] = []
    score = module._score

    def counted(run: Run, folder: Path) -> Any:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(run)
        return score(run, folder)

    monkeypatch.setattr(module, "_score", counted)
    with pytest.raises(KeyboardInterrupt):
        task_rows(["barbell"], ("s3gnn", "gcn"), 3, False, 1, None)
    assert len(list((work / "s3gnn-runs").glob("*.json"))) == 3
    monkeypatch.setattr(module, "_score", lambda run, folder: done.append(run) or score(run, folder))
    rows = task_rows(["barbell"], ("s3gnn", "gcn"), 3, False, 1, None)["barbell"]
    assert len(done) == 2 * 2 + 2 * 2  # both rates on the first seed, the better one on two more
    assert [(r["model"], r["seed"]) for r in rows] == [(m, s) for s in range(3) for m in ("s3gnn", "gcn")]
    assert {r["rate"] for r in rows if r["model"] == "gcn"} == {rows[1]["rate"]}


@pytest.mark.parametrize("task", ["payload", "routing", "barbell", "diameter", "hops", "kgqa"])
def test_every_task_scores_our_model(small: None, task: str) -> None:
    row = score_run(Run(task, "s3gnn_p1", 0, 1e-2), Path())
    json.dumps(row, allow_nan=False)
    assert np.isfinite(row["value"])
    assert (len(row.get("curve", [])) == 17) == (task == "payload")
    assert ("sssp" in row) == (task == "hops")


def test_every_model_runs(small: None) -> None:
    for name in models_of("barbell", True, (*MODELS, "stable_cheb", "mlp")):
        assert np.isfinite(score_run(Run("barbell", name, 0, 1e-2), Path())["value"]), name


def made_up(task: str, ours: float, theirs: float) -> list[dict[str, Any]]:
    rows = []
    for seed in range(3):
        for model in (*MODELS, "stable_cheb"):
            mine = model.startswith("s3gnn")
            value = (ours if mine else theirs) + 0.01 * seed
            rows.append(
                {"task": task, "model": model, "seed": seed, "value": value, "valid": 1 + value, "rate": 0.01}
                | {"parameters": 100 if model == "s3gnn" else 250, "seconds": 1.0, "rollout": value}
                | {"eccentricity": value, "sssp": value, "curve": [1.0] * 17, "cancellation": [0.01]}
            )
    return rows


def parts() -> dict[str, Any]:
    law = [
        {
            "kind": "law",
            "model": m,
            "depth": d,
            "size": n,
            "seed": s,
            "sensitivity": 0.0 if m == "no_p0" else 1 / n,
        }
        for m in ("s3gnn", "no_p0", "gcn", "gcn_vn")
        for d in ("four", "half")
        for n in (16, 32, 64)
        for s in range(3)
    ]
    depth = [
        {"kind": "depth", "weight": "antisymmetric", "tie": True, "seed": s, "ratio": 0.1} for s in range(3)
    ]
    weights = [
        {"kind": "weights", "weight": "cayley", "seed": s, "value": 0.1, "valid": 0.1} for s in range(3)
    ]
    return (
        {"law": [*law, *depth], "weights": weights}
        | {task: made_up(task, 0.995, 0.2) for task in ("payload", "routing", "kgqa")}
        | {task: made_up(task, 0.01, 0.5) for task in ("barbell", "diameter", "hops", "mesh")}
    )


def test_claims_follow_the_numbers() -> None:
    held = {c.name: c.held for c in claims({k: v for k, v in parts().items() if k not in ("law", "weights")})}
    assert held["payload/accuracy"]
    assert held["barbell/over_best"]
    assert held["barbell/over_stable_cheb"]
    assert held["mesh/parameters/stable_cheb"]
    assert held["diameter/p0"]
    assert not held["routing/p1_over/s3gnn"]
    turned = {c.name: c.held for c in claims({"barbell": made_up("barbell", 0.5, 0.01)})}
    assert not turned["barbell/over_best"]
    assert not turned["barbell/mse"]
    assert gains("mesh", parts()["mesh"], "s3gnn", "gcn") == pytest.approx((0.49,) * 3)
    assert best_by_validation(parts()["mesh"], ("gcn", "s3gnn")) == "s3gnn"


def test_what_people_read() -> None:
    metrics, verdicts = metrics_and_verdicts(parts())
    json.dumps(metrics, allow_nan=False)
    assert metrics["claims"]["law/slope_low"]["mean"] == pytest.approx(-1)
    assert len(verdicts) > 30
    assert set(tables(parts())) == set(figures(parts())) == {"scores", "sensitivity", "law"}
    assert len(score_table(parts())) == len(MODELS) + 1
    assert "s3gnn 1.0" in times_note(parts())
    only_law = {"law": parts()["law"]}
    assert set(figures(only_law)) == {"law"}
    assert times_note(only_law) == "No model was trained."


def test_mistakes_are_told_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no flows\.npz"):
        check_study(S3GNNStudy(data=str(tmp_path)))
    check_study(S3GNNStudy(data=str(tmp_path), parts=("law",)))
    with pytest.raises(ConfigError, match="s3gnn itself is missing"):
        check_study(S3GNNStudy(parts=("payload",), models=("gcn",)))
    with pytest.raises(ValueError, match="given twice"):
        S3GNNStudy(parts=("law", "law"))


def test_no_two_models_look_alike_in_a_plot() -> None:
    assert set(LOOKS) == set(get_args(Model))
    for column in (slice(0, 1), slice(1, 3)):
        assert len({look[column] for look in LOOKS.values()}) == len(LOOKS)
