"""The study of `s3gnn` as people read it: figures, verdicts, metrics, and one MLflow run a model and task."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from methods.s3gnn.study_claims import METRIC_WORDS, claims
from tasks.report.comparison import shown_table
from tasks.report.verdict import Verdict, claim_metrics, claim_verdicts
from tasks.tracking import RunContext, candidate_run, log_metrics

Rows = Sequence[Mapping[str, Any]]
Parts = Mapping[str, Rows]
NOT_TASKS = ("law", "weights")
NUMBERS = ("value", "eccentricity", "sssp", "rollout", "valid", "parameters", "rate")
LOWEST_SHOWN = 1e-12  # sensitivities below are drawn here: a logarithm has no 0
# What a model is called in a plot, its colour and its line: no two alike.
LOOKS = {
    "s3gnn": ("S3GNN", "C3", "-"),
    "s3gnn_p1": ("S3GNN with P1", "C1", "-"),
    "no_p0": ("S3GNN without P0", "C5", "-"),
    "gcn": ("GCN", "C2", "-"),
    "gcn_vn": ("GCN, virtual node", "C0", "-"),
    "gin": ("GIN", "C4", "--"),
    "gat": ("GATv2", "C6", "--"),
    "cheb": ("ChebNet", "C7", "--"),
    "gps": ("GPS", "C8", "--"),
    "adgn": ("A-DGN", "C9", "--"),
    "swan": ("SWAN-type", "black", ":"),
    "stable_cheb": ("Stable-ChebNet", "C7", ":"),
    "mlp": ("MLP, no edges", "C2", ":"),
}


def _tasks(parts: Parts) -> dict[str, Rows]:
    return {part: rows for part, rows in parts.items() if part not in NOT_TASKS}


def _law(parts: Parts, kind: str) -> list[Mapping[str, Any]]:
    return [row for row in parts.get("law", ()) if row["kind"] == kind]


def metrics_and_verdicts(parts: Parts) -> tuple[dict[str, Any], list[Verdict]]:
    """Each claim's numbers, every model's mean scores, and the claims with a bar as verdicts."""
    found = claims(_tasks(parts), _law(parts, "law"), _law(parts, "depth"), parts.get("weights", ()))
    means: dict[str, Any] = {}
    for (task, model), group in _frame(parts).groupby(["task", "model"], sort=False):
        numbers = group[[c for c in NUMBERS if c in group]].mean().dropna()
        means.setdefault(str(task), {})[str(model)] = {str(k): float(v) for k, v in numbers.items()}
    return {"claims": claim_metrics(found), "means": means}, claim_verdicts(found)


def _frame(parts: Parts) -> pd.DataFrame:
    rows = [dict(row) for held in _tasks(parts).values() for row in held]
    return pd.DataFrame(rows, columns=None if rows else ["task", "model", "seed", "value"])


def score_table(parts: Parts) -> pd.DataFrame:
    """Every model's score on each task, mean ± standard deviation over seeds."""
    frame = _frame(parts)
    rows = []
    for model in frame.model.unique():
        row: dict[str, object] = {"model": model}
        for task in frame.task.unique():
            found = frame[(frame.model == model) & (frame.task == task)].value
            if len(found):
                row[f"{task} ({METRIC_WORDS[task]})"] = f"{found.mean():.3f} ± {found.std(ddof=1):.3f}"
        rows.append(row)
    return shown_table(rows)


def tables(parts: Parts) -> dict[str, pd.DataFrame]:
    """The data behind the plots, by the same names."""
    found = {}
    frame = _frame(parts)
    if len(frame):
        columns = ["task", "model", "seed", *(c for c in NUMBERS if c in frame)]
        found["scores"] = frame[columns]
    curves = [
        {"model": row["model"], "seed": row["seed"], "distance": hop, "sensitivity": value}
        for row in parts.get("payload", ())
        for hop, value in enumerate(row.get("curve", ()))
    ]
    if curves:
        found["sensitivity"] = pd.DataFrame(curves)
    if law := _law(parts, "law"):
        found["law"] = pd.DataFrame(law).drop(columns="kind")
    return found


def figures(parts: Parts) -> dict[str, Figure]:
    """The study's plots, by name."""
    drawers = {"scores": plot_scores, "sensitivity": plot_sensitivity, "law": plot_law}
    return {name: drawers[name](table) for name, table in tables(parts).items()}


def plot_scores(rows: pd.DataFrame) -> Figure:
    """Each task's metric, a point a seed, the diamond the mean."""
    tasks = list(rows.task.unique())
    models = list(rows.model.unique())
    wide = min(4, len(tasks))
    tall = -(-len(tasks) // wide)
    figure = Figure(figsize=(3.6 * wide + 1, 3.6 * tall), layout="constrained")
    panels = figure.subplots(tall, wide, squeeze=False, sharey=True).ravel()
    for axes, task in zip(panels, tasks, strict=False):
        for place, model in enumerate(models):
            found = rows[(rows.task == task) & (rows.model == model)].value
            colour = LOOKS[model][1]
            axes.scatter(found, np.full(len(found), place), s=14, alpha=0.6, color=colour)
            if len(found):
                axes.scatter(found.mean(), place, s=55, marker="D", color=colour, edgecolor="black")
        axes.set_title(task)
        axes.set_xlabel(METRIC_WORDS[task], fontsize=8)
        axes.grid(alpha=0.3)
        if task == "barbell":
            axes.set_xscale("log")
    for axes in panels[len(tasks) :]:
        axes.set_visible(False)
    panels[0].set_yticks(range(len(models)), [LOOKS[model][0] for model in models])
    panels[0].invert_yaxis()
    return figure


def plot_sensitivity(rows: pd.DataFrame) -> Figure:
    """Sensitivity of trained models against distance, all on one plot; bands are the range over seeds."""
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes = figure.subplots()
    for model, group in rows.groupby("model", sort=False):
        shown = group.assign(shown=group.sensitivity.clip(lower=LOWEST_SHOWN))
        by_hop = shown.groupby("distance").shown
        name, colour, style = LOOKS[str(model)]
        axes.plot(
            by_hop.mean().index,
            by_hop.mean(),
            style,
            color=colour,
            label=name,
            linewidth=2.5 if str(model).startswith("s3gnn") else 1.3,
        )
        axes.fill_between(by_hop.min().index, by_hop.min(), by_hop.max(), color=colour, alpha=0.12)
    axes.set_yscale("log")
    axes.set_xlabel("distance in hops on a ring of 32 nodes (every model has 4 layers)")
    axes.set_ylabel(f"mean |dh/dx| after training ({LOWEST_SHOWN:g}: none)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def plot_law(rows: pd.DataFrame) -> Figure:
    """Sensitivity of opposite nodes of rings at random weights against the ring's size."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    words = {"four": "4 layers", "half": "N/2 layers"}
    for axes, depth in zip(figure.subplots(1, 2, sharey=True), words, strict=True):
        for model, group in rows[rows.depth == depth].groupby("model", sort=False):
            shown = group.assign(shown=group.sensitivity.clip(lower=1e-45)).groupby("size").shown
            name, colour, style = LOOKS[str(model)]
            axes.plot(shown.mean().index, shown.mean(), style, marker="o", color=colour, label=name)
            axes.fill_between(shown.min().index, shown.min(), shown.max(), color=colour, alpha=0.15)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(words[depth])
        axes.set_xlabel("nodes of the ring")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.axes[0].set_ylabel("mean |dh/dx| of opposite nodes (1e-45: none)")
    return figure


def times_note(parts: Parts) -> str:
    """Processor seconds of one training by model, as text: times are no part of metrics.json."""
    frame = _frame(parts)
    if "seconds" not in frame:
        return "No model was trained."
    means = frame.groupby("model", sort=False).seconds.mean()
    each = ", ".join(f"{name} {value:.1f}" for name, value in means.items())
    return (
        f"Processor seconds of a training, mean over tasks and seeds, those of earlier runs counted: {each}."
    )


def log_candidates(ctx: RunContext, parts: Parts) -> None:
    """One MLflow run a model and task, with the mean over seeds."""
    for (task, model), group in _frame(parts).groupby(["task", "model"], sort=False):
        run_id = candidate_run(ctx, f"{task}/{model}")
        numbers = group[[c for c in (*NUMBERS, "seconds") if c in group]].mean().dropna()
        log_metrics(ctx, run_id, {f"test/mean/{k}": float(v) for k, v in numbers.items()})
        ctx.client.set_terminated(run_id)
