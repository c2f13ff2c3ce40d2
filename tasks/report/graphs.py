"""The graph flow as people read it: scores of the models, and how far each looks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tasks.report.comparison import shown_table
from tasks.tracking import RunContext, candidate_run, log_metrics

Facts = Sequence[Mapping[str, Any]]
LOWEST_SHOWN = 1e-12


def graph_table(facts: Facts) -> tuple[pd.DataFrame, dict[str, Any]]:
    """What people see, and metrics.json: mean ± standard deviation over seeds on the test part."""
    rows, metrics = [], {}
    for one in facts:
        scores = pd.DataFrame(one["scores"])
        row: dict[str, object] = {"model": one["kind"]}
        for name in scores:
            spread = scores[name].std(ddof=1) if len(scores) > 1 else 0.0
            row[f"test {name}"] = f"{scores[name].mean():.4g} ± {spread:.2g}"
        row |= {"parameters": str(one["parameters"]), "learning rate": f"{one['rate']:g}"}
        rows.append(row)
        metrics[one["kind"]] = {
            **{f"test/{name}": float(scores[name].mean()) for name in scores},
            "validation": float(np.mean(one["validation"])),
            "parameters": one["parameters"],
            "rate": one["rate"],
            "seeds": len(scores),
            "test_rows": one["test"],
        }
    return shown_table(rows), {"models": metrics}


def tables(facts: Facts) -> dict[str, pd.DataFrame]:
    """The data behind the plots, by the same names."""
    scores = [
        {"model": one["kind"], "replicate": i, **score}
        for one in facts
        for i, score in enumerate(one["scores"])
    ]
    found = {"scores": pd.DataFrame(scores)}
    curves = [
        {"model": one["kind"], "distance": int(hop), "sensitivity": value}
        for one in facts
        for hop, value in one["sensitivity"].items()
    ]
    if curves:
        found["sensitivity"] = pd.DataFrame(curves)
    return found


def figures(facts: Facts) -> dict[str, Figure]:
    """The plots, by name."""
    drawers = {"scores": plot_scores, "sensitivity": plot_sensitivity}
    return {name: drawers[name](table) for name, table in tables(facts).items()}


def plot_scores(rows: pd.DataFrame) -> Figure:
    """Each score on the test part, a point a seed, the diamond the mean."""
    names = [c for c in rows.columns if c not in ("model", "replicate")]
    models = list(rows.model.unique())
    figure = Figure(figsize=(4.2 * len(names) + 1, 0.45 * len(models) + 2.2), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        for place, model in enumerate(models):
            found = rows[rows.model == model][name]
            axes.scatter(found, np.full(len(found), place), s=18, alpha=0.6, color="C0")
            axes.scatter(found.mean(), place, s=70, marker="D", color="C1", edgecolor="black")
        axes.set_xlabel(f"{name} on the test part")
        axes.grid(alpha=0.3)
    panels[0].set_yticks(range(len(models)), models)
    panels[0].invert_yaxis()
    return figure


def plot_sensitivity(rows: pd.DataFrame) -> Figure:
    """How strongly nodes act on one at each distance, every model on one plot."""
    figure = Figure(figsize=(7.5, 4.4), layout="constrained")
    axes = figure.subplots()
    for model, group in rows.groupby("model", sort=False):
        axes.plot(
            group.distance, group.sensitivity.clip(lower=LOWEST_SHOWN), "o-", label=str(model), markersize=4
        )
    axes.set_yscale("log")
    axes.set_xlabel("distance from the first node of a graph, hops")
    axes.set_ylabel(f"mean |dh/dx| after training ({LOWEST_SHOWN:g}: none)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def log_models(ctx: RunContext, facts: Facts) -> None:
    """One MLflow run a model, with the mean over seeds."""
    for one in facts:
        run_id = candidate_run(ctx, one["kind"])
        means = pd.DataFrame(one["scores"]).mean()
        numbers = {f"test/{name}": float(value) for name, value in means.items()}
        log_metrics(ctx, run_id, numbers | {"parameters": float(one["parameters"])})
        ctx.client.set_terminated(run_id)
