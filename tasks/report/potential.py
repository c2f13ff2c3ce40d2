"""A trained potential as people read it: errors on the test part, parity, the course of training, energy drift."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from tasks.report.comparison import shown_table

Facts = Mapping[str, Any]
UNITS = {
    "energy": ("meV/atom", 1000.0),
    "forces": ("meV/Å", 1000.0),
    "stress": ("meV/Å³", 1000.0),
}


def potential_table(facts: Facts) -> tuple[pd.DataFrame, dict[str, Any]]:
    """What people see, and metrics.json."""
    rows = []
    for name, (unit, scale) in UNITS.items():
        if f"{name}_mae" in facts["test"]:
            rows.append(
                {
                    "test error of": f"{name}, {unit}",
                    "mean absolute": f"{facts['test'][f'{name}_mae'] * scale:.2f}",
                    "root mean square": f"{facts['test'][f'{name}_rmse'] * scale:.2f}",
                }
            )
    metrics: dict[str, Any] = {
        **{f"test/{name}": value for name, value in facts["test"].items()},
        "parameters": facts["parameters"],
        **{f"frames/{part}": count for part, count in facts["frames"].items()},
    }
    if "drift" in facts:
        metrics |= {"dynamics/drift": facts["drift"], "dynamics/stable": facts["stable"]}
    return shown_table(rows), metrics


def tables(facts: Facts) -> dict[str, pd.DataFrame]:
    """The data behind the plots, by the same names."""
    columns = ["label", "predicted"]
    found = {
        "energies": pd.DataFrame(facts["energies"], columns=columns),
        "forces": pd.DataFrame(facts["forces"], columns=columns),
        "learning": pd.DataFrame(facts["history"])[["epoch", "energy_mae", "forces_mae"]],
    }
    if "trace" in facts:
        found["drift"] = pd.DataFrame(facts["trace"], columns=["picoseconds", "mev_per_atom"])
    return found


def figures(facts: Facts) -> dict[str, Figure]:
    """The plots, by name."""
    held = tables(facts)
    found = {
        "energies": plot_parity(held["energies"], "energy, eV/atom"),
        "forces": plot_parity(held["forces"], "force component, eV/Å"),
        "learning": plot_learning(held["learning"]),
    }
    if "drift" in held:
        found["drift"] = plot_drift(held["drift"])
    return found


def plot_parity(rows: pd.DataFrame, what: str) -> Figure:
    """Predictions against labels on the test part."""
    figure = Figure(figsize=(4.8, 4.6), layout="constrained")
    axes = figure.subplots()
    ends = [rows.min().min(), rows.max().max()]
    axes.plot(ends, ends, color="black", linewidth=0.8, label="equal")
    axes.scatter(rows.label, rows.predicted, s=4, alpha=0.4, label="test part")
    axes.set_xlabel(f"label: {what}")
    axes.set_ylabel(f"prediction: {what}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def plot_learning(rows: pd.DataFrame) -> Figure:
    """Errors on the validation part over the epochs."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(rows.epoch, rows.energy_mae * 1000, "o-", label="energy, meV/atom", markersize=4)
    axes.plot(rows.epoch, rows.forces_mae * 1000, "s-", label="forces, meV/Å", markersize=4)
    axes.set_yscale("log")
    axes.set_xlabel("epoch")
    axes.set_ylabel("mean absolute error, validation part")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    return figure


def plot_drift(rows: pd.DataFrame) -> Figure:
    """The total energy of dynamics at constant energy."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(rows.picoseconds, rows.mev_per_atom, linewidth=1)
    axes.set_xlabel("time, ps")
    axes.set_ylabel("change of the total energy, meV/atom")
    axes.grid(alpha=0.3)
    return figure
