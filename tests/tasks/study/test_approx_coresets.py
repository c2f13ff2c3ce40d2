"""The study's steps: what is measured already is not measured again, and what people read of it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from methods.approx_coresets import study
from methods.approx_coresets.study_claims import claims, inversions
from methods.common.errors import ConfigError, DataError
from tasks.reference import reference_to
from tasks.report.approx_coresets import figures, metrics_and_verdicts, shown_table, tables
from tasks.study import approx_coresets as module
from tasks.study.approx_coresets import (
    check_study,
    kept_rows,
    load_reference,
    load_rows,
    parts_of,
    peer_summary,
    seeds_of,
    units_of,
    write_points,
    write_reference,
)
from tasks.study.approx_coresets_config import ApproxCoresetsStudy


def tiny(**changes: Any) -> ApproxCoresetsStudy:
    values = {"n_clusters": 4, "multiples": (5, 20, 50), "seeds": (0, 1, 2)}
    return ApproxCoresetsStudy.model_validate(values | changes)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    X = random.normal(size=(900, 3)) + random.integers(0, 4, size=(900, 1)) * 5
    path = tmp_path_factory.mktemp("table") / "rows.npy"
    np.save(path, X)
    return path


@pytest.fixture(scope="module")
def measured(table: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every part on a small table: rows by part, and the costs of the bank."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(module, "EACH", 2)
    monkeypatch.setattr(module, "OTHERS", ("uniform", "voronoi", "sampled_means"))
    monkeypatch.setattr(module, "THESIS", ("four_term", "uniform", "tree_means", "birch"))
    monkeypatch.setattr(module, "OWN_SETS", {})
    monkeypatch.setattr(module, "sets_of", lambda part: ("thesis",) if part == "thesis" else ("data",))
    folder = tmp_path_factory.mktemp("study")
    (folder / "points").mkdir()
    write_points(folder / "points", table)
    points = reference_to(folder / "points", "data")
    banks = {}
    for name in ("data", "thesis"):
        out = folder / f"bank-{name}"
        out.mkdir()
        write_reference(out, points, name, 4, 1)
        banks[name] = reference_to(out, "data")
    rows: dict[str, Any] = {}
    for part in ("real", "audit", "stream", "thesis"):
        out = folder / part
        out.mkdir()
        rows[part], _ = kept_rows(out, units_of(part, tiny(), points, banks))
    rows["peers"] = [{**row, "method": "coresets"} for row in rows["real"] if row["method"] == "four_term"]
    sizes = (50, 100, 200, 400)
    rows["line"] = [
        row
        for z in (1, 2)
        for s in range(2)
        for row in study.line_rows("normal", z, s, ("four_term", "uniform"), sizes, 450)
    ]
    rows["hard"] = [row for s in range(2) for row in study.hard_rows(3, 3, s, ("four_term",), (10, 20))]
    rows["metric"] = [
        study.metric_row(np.abs(np.subtract.outer(x, x)), 3, (20, 200), s)
        for s in range(2)
        for x in [np.random.default_rng(s).normal(size=250)]
    ]
    rows["skewed"] = [
        {"part": "skewed", "method": m, "size": n, "seed": s, "factor": 1.0 + s}
        for m in ("four_term", "lightweight", "uniform")
        for n in (210, 420)
        for s in range(3)
    ]
    rows["solvers"] = [study.solver_row(np.load(table), 4, s, "data") for s in range(2)]
    monkeypatch.undo()
    return rows, {name: load_reference(bank)[1] for name, bank in banks.items()}


def test_every_part_is_told_with_numbers_bars_and_pictures(measured: Any) -> None:
    rows, costs = measured
    metrics, verdicts = metrics_and_verdicts(rows, costs)
    json.dumps(metrics, allow_nan=False)
    assert len(verdicts) == sum("bar" in claim for claim in metrics["claims"].values())
    names = set(metrics["claims"])
    for part in ("line", "skewed", "hard", "metric", "real", "audit", "stream", "thesis", "solvers", "peers"):
        assert any(name.startswith(f"{part}/") for name in names), part
    assert metrics["claims"]["skewed/four_term/worst"]["held"] is False
    assert metrics["claims"]["hard/alpha3/formula"]["held"] is True
    assert metrics["claims"]["peers/four_term_to_coresets/80"]["mean"] == pytest.approx(1)
    data = tables(rows, costs)
    assert set(figures(rows, costs)) == {"excess", "errors", "thesis", "skewed", "line"}
    assert (data["excess"].excess >= 0).all()
    shown = shown_table(rows, costs)
    assert "80 points" in shown.columns
    assert {"four_term", "uniform", "voronoi", "sampled_means", "coresets"} == set(shown.method)
    assert len(shown_table({}, {})) == 1
    assert tables({}, {}) == {}


def test_the_best_cost_may_come_from_anywhere(measured: Any) -> None:
    rows, costs = measured
    better = {**rows["stream"][0], "cost": 1e-3}
    metrics, _ = metrics_and_verdicts({**rows, "stream": [better, *rows["stream"]]}, costs)
    assert metrics["best_known_cost"]["data"] == 1e-3


def test_a_row_is_what_its_parts_say(measured: Any, table: Path) -> None:
    rows, costs = measured
    X, row = np.load(table), rows["real"][0]
    omega = study.ApproxCoreset(4, size=row["size"], random_state=row["seed"]).fit(X)
    assert row["kept"] == len(omega.weights_)
    centres, on_omega = study.solve((omega.points_, omega.weights_), 4, row["seed"])
    away = ((X[:, None] - centres[None]) ** 2).sum(axis=2).min(axis=1)
    assert row["cost"] == pytest.approx(float(away.sum()))
    assert row["cost_on_summary"] == pytest.approx(on_omega)
    assert set(row["errors"]) == set(costs["data"])


def test_inversions_are_pairs_beyond_the_spread() -> None:
    def method(name: str, distortion: float, rho: float, spread: float = 0.01) -> dict[str, Any]:
        return {
            "method": name,
            "distortion": distortion,
            "rho": rho,
            "distortion_spread": spread,
            "rho_spread": spread,
        }

    faithful, good, close = method("faithful", 1.0, 1.2), method("good", 2.0, 1.0), method("close", 2.0, 1.19)
    assert inversions([good, faithful, close]) == [("faithful", "good")]
    assert inversions([faithful, method("worse", 2.0, 1.5)]) == []


def test_only_what_is_missing_is_measured(tmp_path: Path) -> None:
    done: list[int] = []

    def units(stop: int) -> Iterator[study.Unit]:
        def measure(i: int) -> list[dict[str, Any]]:
            if len(done) == stop:
                raise KeyboardInterrupt
            done.append(i)
            return [{"i": i}]

        return ((f"unit {i}", lambda i=i: measure(i)) for i in range(5))

    with pytest.raises(KeyboardInterrupt):
        kept_rows(tmp_path, units(3))
    with (tmp_path / "units.jsonl").open("a") as stream:
        stream.write('{"unit": "unit 3", "ro')  # killed while it wrote
    rows, _ = kept_rows(tmp_path, units(99))
    assert done == [0, 1, 2, 3, 4]
    assert rows == [{"i": i} for i in range(5)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.jsonl"]


def test_rows_of_every_kind_of_file(tmp_path: Path, table: Path) -> None:
    import pandas as pd

    X = np.load(table)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame["name"] = "row"
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet")
    for name in ("x.csv", "x.parquet"):
        np.testing.assert_allclose(load_rows(tmp_path / name), X)
    images = np.random.default_rng(0).integers(0, 256, size=(80, 28, 28)).astype(np.uint8)
    np.savez(tmp_path / "digits.npz", images=images)
    assert load_rows(tmp_path).shape == (80, 50)
    (tmp_path / "bad.npy").write_bytes(b"no")
    np.save(tmp_path / "flat.npy", np.ones(3))
    for name, words in {"bad.npy": "cannot be read", "flat.npy": r"shape \(3,\); give a table"}.items():
        with pytest.raises(DataError, match=words):
            load_rows(tmp_path / name)


def test_mistakes_are_told_before_any_work(
    tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"data=data/mnist60k: is not there; `dvc repro data@mnist60k` makes it"
    ):
        check_study(ApproxCoresetsStudy())
    check_study(tiny(parts=("line", "hard")))
    with pytest.raises(ConfigError, match="peers_python is empty"):
        check_study(tiny(data=str(table), parts=("peers",)))
    with pytest.raises(ConfigError, match="there is no such file"):
        check_study(tiny(data=str(table), parts=("peers",), peers_python="nowhere/python"))
    assert "peers" not in parts_of(tiny(profile="full"))
    assert parts_of(tiny(profile="full", peers_python="p"))[-1] == "peers"
    assert seeds_of(tiny(profile="full")) == (0, 1, 2, 3, 4, 5)


def test_a_peers_failure_names_it(table: Path) -> None:
    """This Python has neither package."""
    with pytest.raises(DataError, match=r"coresets failed .*No module named 'coresets'"):
        peer_summary(sys.executable, "coresets", np.load(table), 4, 20, 0)


def test_claims_need_rows() -> None:
    assert claims({}, {}, {}) == []
