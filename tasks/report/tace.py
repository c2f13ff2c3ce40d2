"""The study of `tace` as people read it: figures, verdicts, metrics, and one MLflow run a model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from methods.tace.study_claims import claims
from tasks.report.comparison import shown_table
from tasks.report.verdict import Verdict, claim_metrics, claim_verdicts
from tasks.tracking import RunContext, candidate_run, log_metrics

Parts = Mapping[str, Sequence[Mapping[str, Any]]]
SCORES = ("forces_mae_500", "forces_mae_1000", "energy_mae_500", "energy_mae_1000")


def metrics_and_verdicts(parts: Parts) -> tuple[dict[str, Any], list[Verdict]]:
    """Each claim's numbers, every model's mean errors, and the claims with a bar as verdicts."""
    found = claims(parts.get("fits", ()), parts.get("costs", ()))
    means = {
        str(model): {name: float(group[name].mean()) for name in (*SCORES, "parameters")}
        for model, group in _groups(parts)
    }
    return {"claims": claim_metrics(found), "means": means}, claim_verdicts(found)


def _groups(parts: Parts) -> Any:
    rows = [dict(row) for row in parts.get("fits", ())]
    return pd.DataFrame(rows).groupby("model", sort=False) if rows else ()


def score_table(parts: Parts) -> pd.DataFrame:
    """Every model's errors, mean ± standard deviation over seeds."""
    rows = []
    for model, group in _groups(parts):
        row: dict[str, object] = {"model": model, "weights": f"{group.parameters.iloc[0]}"}
        for name, unit, scale in (("forces", "meV/Å", 1000), ("energy", "meV/atom", 1000)):
            for kelvin in (500, 1000):
                held = group[f"{name}_mae_{kelvin}"] * scale
                row[f"{name} {kelvin} K ({unit})"] = f"{held.mean():.1f} ± {held.std(ddof=1):.1f}"
        rows.append(row)
    return shown_table(rows)


def tables(parts: Parts) -> dict[str, pd.DataFrame]:
    """The data behind the plots, by the same names."""
    found = {}
    fits = parts.get("fits", ())
    if fits:
        found["forces"] = pd.DataFrame(fits)[["model", "seed", *SCORES]]
        curves = [
            {"model": row["model"], "seed": row["seed"], "epoch": epoch, "forces_mae": forces}
            for row in fits
            for epoch, _, forces in row["curve"]
        ]
        found["learning"] = pd.DataFrame(curves)
    traces = [
        {"seed": row["seed"], "picoseconds": when, "mev_per_atom": value}
        for row in fits
        for when, value in row.get("trace", ())
    ]
    if traces:
        found["energy"] = pd.DataFrame(traces)
    if parts.get("costs"):
        found["cost"] = pd.DataFrame(parts["costs"])[["level", "lmax", "ratio", "memory_ratio"]]
    return found


def figures(parts: Parts) -> dict[str, Figure]:
    """The study's plots, by name."""
    drawers = {"forces": plot_forces, "learning": plot_learning, "energy": plot_energy, "cost": plot_cost}
    return {name: drawers[name](table) for name, table in tables(parts).items()}


def plot_forces(rows: pd.DataFrame) -> Figure:
    """Force errors at both temperatures, a point a seed, the diamond the mean."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    models = list(rows.model.unique())
    for axes, kelvin in zip(panels, (500, 1000), strict=True):
        for place, model in enumerate(models):
            held = rows[rows.model == model][f"forces_mae_{kelvin}"] * 1000
            axes.scatter(held, np.full(len(held), place), s=16, alpha=0.6, color=_colour(model))
            axes.scatter(held.mean(), place, s=55, marker="D", color=_colour(model), edgecolor="black")
        axes.set_xlabel(f"force MAE on ethanol at {kelvin} K, meV/Å")
        axes.grid(alpha=0.3)
    panels[0].set_yticks(range(len(models)), models)
    panels[0].invert_yaxis()
    return figure


def _colour(model: str) -> str:
    ends = {"spherical": "C0", "cartesian": "C3", "path": "C1"}
    return next((colour for end, colour in ends.items() if model.endswith(end)), "C2")


def plot_learning(rows: pd.DataFrame) -> Figure:
    """Force error on the validation trajectory over the epochs; bands are the range over seeds."""
    figure = Figure(figsize=(8.5, 4.8), layout="constrained")
    axes = figure.subplots()
    for place, (model, group) in enumerate(rows.groupby("model", sort=False)):
        by_epoch = (group.assign(mev=group.forces_mae * 1000)).groupby("epoch").mev
        style = ["-", "--", ":"][place % 3]
        axes.plot(by_epoch.mean().index, by_epoch.mean(), style, color=f"C{place // 3}", label=str(model))
        axes.fill_between(
            by_epoch.min().index, by_epoch.min(), by_epoch.max(), color=f"C{place // 3}", alpha=0.1
        )
    axes.set_yscale("log")
    axes.set_xlabel("epoch")
    axes.set_ylabel("force MAE on the validation trajectory, meV/Å")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def plot_energy(rows: pd.DataFrame) -> Figure:
    """The total energy of dynamics at constant energy, a line a start."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for seed, group in rows.groupby("seed"):
        axes.plot(group.picoseconds, group.mev_per_atom, label=f"start {seed}", linewidth=1)
    axes.set_xlabel("time, ps")
    axes.set_ylabel("change of the total energy, meV/atom")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def plot_cost(rows: pd.DataFrame) -> Figure:
    """Time over e3nn's against lmax: the dense product, and the layer."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    names = {"product": "dense Cartesian product", "layer": "layer, basis changed once an atom"}
    for level, group in rows.groupby("level", sort=False):
        axes.plot(group.lmax, group.ratio, "o-", label=names[str(level)])
    dense = rows[rows.level == "product"]
    axes.plot(dense.lmax, dense.memory_ratio, "s:", color="grey", label="width of messages")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(sorted(rows.lmax.unique()))
    axes.set_yscale("log", base=2)
    axes.set_xlabel("lmax")
    axes.set_ylabel("ratio to e3nn (1: the same)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def times_note(parts: Parts) -> str:
    """Processor seconds of a training by model, as text: times are no part of metrics.json."""
    each = ", ".join(f"{model} {group.seconds.mean():.0f}" for model, group in _groups(parts))
    return f"Processor seconds of a training, mean over seeds: {each}." if each else "Nothing was trained."


def log_candidates(ctx: RunContext, parts: Parts) -> None:
    """One MLflow run a model, with the mean over seeds."""
    for model, group in _groups(parts):
        run_id = candidate_run(ctx, str(model))
        numbers = {f"test/{name}": float(group[name].mean()) for name in SCORES}
        log_metrics(ctx, run_id, numbers | {"parameters": float(group.parameters.iloc[0])})
        ctx.client.set_terminated(run_id)
