"""The study of `tace`: each claim falls when its number does, and a training gives every number."""

from pathlib import Path
from typing import Any

import pytest
from ase.io import write

from methods.common.errors import ConfigError
from methods.tace.study import Fit, cost_row, fit_row
from methods.tace.study_claims import claims
from tasks.report.tace import figures, metrics_and_verdicts, score_table
from tasks.study.tace import FILES, check_study
from tasks.study.tace_config import TaceStudy
from tests.tasks.atoms.test_atoms import frames


def fit(model: str, seed: int, forces: float, **more: Any) -> dict[str, Any]:
    names = ("forces_mae_500", "forces_mae_1000", "energy_mae_500", "energy_mae_1000")
    return {
        "model": model,
        "seed": seed,
        "parameters": 10,
        "seconds": 1.0,
        "curve": [[5, 0.1, forces]],
        **dict.fromkeys(names, forces),
        **more,
    }


def rows(cartesian: float = 1.0, tace: float = 0.5, drift: float = 0.1) -> list[dict[str, Any]]:
    found = []
    for seed in range(3):
        found += [fit("nequip_spherical", seed, 1.0), fit("nequip_cartesian", seed, cartesian)]
        found += [fit("nequip_path", seed, 1.2), fit("scalar", seed, 2.0)]
        found.append(fit("tace", seed, tace, drift=drift, stable=True, trace=[[0.0, 0.0], [0.1, drift]]))
    return found


def costs(layer: float = 1.0, dense: float = 3.0) -> list[dict[str, Any]]:
    found = []
    for lmax, ratio in ((1, 1.0), (2, 1.3), (3, dense)):
        for level, value in (("product", ratio), ("layer", layer)):
            found.append({"level": level, "lmax": lmax, "ratio": value, "memory_ratio": 1.0})
    return found


def held(**changed: Any) -> dict[str, bool | None]:
    names = ("cartesian", "tace", "drift")
    fits = rows(**{name: changed[name] for name in names if name in changed})
    return {
        claim.name: claim.held
        for claim in claims(fits, costs(**{k: v for k, v in changed.items() if k not in names}))
    }


def test_every_claim_holds_and_falls_with_its_number() -> None:
    assert all(value is not False for value in held().values())
    for changed, name in (
        ({"cartesian": 1.06}, "twins/nequip"),
        ({"cartesian": 0.94}, "twins/nequip"),
        ({"tace": 1.6}, "scalar/tace"),
        ({"drift": -1.1}, "dynamics/drift"),
        ({"layer": 1.4}, "cost/layer_2"),
        ({"layer": 1.6}, "cost/layer_3"),
        ({"dense": 1.9}, "cost/dense_3"),
        ({"dense": 1.2}, "cost/dense_rises"),
    ):
        assert held(**changed)[name] is False, name


def test_the_report_shows_every_model() -> None:
    parts = {"fits": rows(), "costs": costs()}
    metrics, verdicts = metrics_and_verdicts(parts)
    assert set(metrics["means"]) == {row["model"] for row in rows()}
    assert all(verdict.held for verdict in verdicts)
    assert len(score_table(parts)) == 5
    assert set(figures(parts)) == {"forces", "learning", "energy", "cost"}
    assert set(figures({"costs": costs()})) == {"cost"}


def test_a_training_gives_every_number(tmp_path: Path) -> None:
    for name in FILES:
        write(tmp_path / name, frames(6))
    sizes = {"architecture": "nequip", "channels": 2, "lmax": 1}
    row = fit_row(Fit("tace", sizes, 0, 4, 1, 0.02), tmp_path)
    assert {"forces_mae_500", "forces_mae_1000", "drift", "stable", "parameters"} <= set(row)
    assert claims([row], [])


def test_a_cost_is_measured_beside_e3nn() -> None:
    for level in ("product", "layer"):
        row = cost_row(level, 1, channels=2)  # type: ignore[arg-type]
        assert row["ratio"] > 0
        assert row["memory_ratio"] == 1


def test_missing_trajectories_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seedloom fetch xtb"):
        check_study(TaceStudy(data=str(tmp_path)))
    check_study(TaceStudy(data=str(tmp_path), parts=("costs",)))
