"""The paper's claims against the study's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from methods.common.claims import Claim

Rows = Sequence[Mapping[str, Any]]
TWINS = ("nequip", "mace", "allegro")


def _by_seed(rows: Rows, model: str, name: str) -> dict[int, float]:
    return {row["seed"]: float(row[name]) for row in rows if row["model"] == model and name in row}


def _ratios(rows: Rows, model: str, other: str, name: str) -> tuple[float, ...]:
    """One model's error over another's, seed by seed."""
    mine, theirs = _by_seed(rows, model, name), _by_seed(rows, other, name)
    return tuple(mine[seed] / theirs[seed] for seed in sorted(mine) if seed in theirs)


def claims(fits: Rows, costs: Rows) -> list[Claim]:
    """Every claim that these rows can decide."""
    return [*_accuracy(fits), *_dynamics(fits), *_costs(costs)]


def _accuracy(fits: Rows) -> list[Claim]:
    found = []
    for name in TWINS:
        ratios = _ratios(fits, f"{name}_cartesian", f"{name}_spherical", "forces_mae_500")
        if ratios:
            apart = tuple(abs(ratio - 1) for ratio in ratios)
            text = f"{name}: force errors of the Cartesian twin within 5 % of the spherical one's"
            found.append(Claim(f"twins/{name}", text, apart, 0.05, "<=", "mean"))
            published = _ratios(fits, f"{name}_path", f"{name}_spherical", "forces_mae_500")
            text = f"{name}: force error with the published symbol over the spherical one's"
            found.append(Claim(f"path/{name}", text, published, rule="report"))
            hot = _ratios(fits, f"{name}_cartesian", f"{name}_spherical", "forces_mae_1000")
            text = f"{name}: the twins' force errors at 1000 K, Cartesian over spherical"
            found.append(Claim(f"hot/{name}", text, hot, rule="report"))
    for name in (*(f"{twin}_cartesian" for twin in TWINS), "tace"):
        ratios = _ratios(fits, name, "scalar", "forces_mae_500")
        if ratios:
            text = f"{name}: force error at least 25 % below the model that knows distances only"
            found.append(Claim(f"scalar/{name}", text, ratios, 0.75, "<=", "mean"))
    return found


def _dynamics(fits: Rows) -> list[Claim]:
    runs = [row for row in fits if "drift" in row]
    if not runs:
        return []
    drifts = tuple(abs(row["drift"]) for row in runs)
    stable = sum(row["stable"] for row in runs) / len(runs)
    return [
        Claim(
            "dynamics/drift",
            "TACE: drift of the energy at 300 K, meV/atom/ps, below 1",
            drifts,
            1.0,
            "<=",
            "each",
        ),
        Claim("dynamics/stable", "TACE: starts whose molecule stays whole", (stable,), 1.0, ">=", "each"),
    ]


def _costs(costs: Rows) -> list[Claim]:
    dense = sorted((row for row in costs if row["level"] == "product"), key=lambda row: row["lmax"])
    found = []
    if len(dense) > 1:
        steps = tuple(b["ratio"] / a["ratio"] for a, b in pairwise(dense))
        text = "naive Cartesianisation: the dense product's time over e3nn's rises with each lmax"
        found.append(Claim("cost/dense_rises", text, steps, 1.0, ">=", "each"))
    for row in dense:
        bar = 2.0 if row["lmax"] == 3 else None
        text = f"the dense product's time over e3nn's at lmax {row['lmax']}"
        found.append(
            Claim(f"cost/dense_{row['lmax']}", text, (row["ratio"],), bar, rule="each" if bar else "report")
        )
        text = f"the width of messages over the spherical one's at lmax {row['lmax']}"
        found.append(Claim(f"cost/memory_{row['lmax']}", text, (row["memory_ratio"],), rule="report"))
    for row in costs:
        bar = {2: 1.35, 3: 1.5}.get(row["lmax"])
        if row["level"] == "layer":
            text = f"the layer's time over e3nn's layer at lmax {row['lmax']}"
            rule: Any = "each" if bar else "report"
            found.append(Claim(f"cost/layer_{row['lmax']}", text, (row["ratio"],), bar, "<=", rule))
    return found
