"""The study of `sc_fagc` as people read it: figures, verdicts, metrics, and one MLflow run a method."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from methods.sc_fagc.study_claims import METRICS, OTHER_ANCHORS, claims
from tasks.report.comparison import shown_table
from tasks.report.verdict import Verdict, claim_metrics, claim_verdicts
from tasks.tracking import RunContext, candidate_run, log_metrics

Rows = Sequence[Mapping[str, Any]]
Parts = Mapping[str, Rows]
COLUMNS = (*METRICS, "smallest", "largest", "size_ratio", "overshoot", "similarity")
COMPARED = ("k_means", "spectral", "k_means_constrained", "fagc_r", "rival", "sc_fagc")


def metrics_and_verdicts(parts: Parts) -> tuple[dict[str, Any], list[Verdict]]:
    """Each claim's numbers, every method's mean scores, and the claims with a bar as verdicts."""
    found = claims(parts)
    means: dict[str, Any] = {}
    for (data, method), group in _frame(parts).groupby(["data", "method"], sort=False):
        numbers = group[[c for c in COLUMNS if c in group]].mean().dropna()
        means.setdefault(str(data), {})[str(method)] = {str(k): float(v) for k, v in numbers.items()}
    return {"claims": claim_metrics(found), "means": means}, claim_verdicts(found)


def _frame(parts: Parts) -> pd.DataFrame:
    return pd.DataFrame([dict(row) for rows in parts.values() for row in rows])


def score_table(parts: Parts) -> pd.DataFrame:
    """Every method's scores, mean ± standard deviation over seeds."""
    rows = []
    for (data, method), group in _frame(parts).groupby(["data", "method"], sort=False):
        row = {"data": str(data), "method": str(method), "seeds": str(len(group))}
        for name in METRICS:
            row[name] = f"{group[name].mean():.3f} ± {group[name].std(ddof=1):.3f}"
        row["sizes"] = f"{group.smallest.min()} to {group.largest.max()}"
        rows.append(row)
    return shown_table(rows)


def tables(parts: Parts) -> dict[str, pd.DataFrame]:
    """The data behind the plots, by the same names."""
    frame = _frame(parts)
    whole = frame[~frame.data.isin(["moons", "blobs"])]
    found = {}
    columns = ["data", "method", "seed", *(c for c in COLUMNS if c in frame)]
    compared = whole[whole.method.isin(COMPARED)]
    if len(compared):
        found["quality"] = compared[columns]
    if "ablations" in parts and "digits" in parts:
        chosen = whole[
            (whole.data == "digits") & ~whole.method.isin(["k_means", "spectral", "k_means_constrained"])
        ]
        found["ablations"] = chosen[columns]
    if "unequal" in parts:
        found["unequal"] = pd.DataFrame(parts["unequal"])[
            ["data", "method", "seed", "ari", "smallest", "largest"]
        ]
    return found


def figures(parts: Parts) -> dict[str, Figure]:
    """The study's plots, by name."""
    data = tables(parts)
    drawers = {"quality": plot_quality, "ablations": plot_ablations, "unequal": plot_unequal}
    return {name: drawers[name](table) for name, table in data.items()}


def plot_quality(rows: pd.DataFrame) -> Figure:
    """Accuracy against the ratio of the largest to the smallest cluster, one point a seed."""
    sets = list(rows.groupby("data", sort=False))
    figure = Figure(figsize=(4.8 * len(sets) + 1, 4.6), layout="constrained")
    panels = figure.subplots(1, len(sets), squeeze=False)[0]
    methods = list(rows.method.unique())
    for axes, (data, group) in zip(panels, sets, strict=True):
        for method, runs in group.groupby("method", sort=False):
            colour = f"C{methods.index(method)}"
            axes.scatter(runs.size_ratio, runs.acc, color=colour, s=18, alpha=0.6)
            axes.scatter(
                runs.size_ratio.mean(),
                runs.acc.mean(),
                color=colour,
                s=90,
                marker="D",
                edgecolor="black",
                label=method,
            )
        axes.set_xscale("log")
        ticks = [1, 1.5, 2, 3, 5, 10]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.axvline(1.5, color="grey", linestyle="--", linewidth=1)
        axes.set_title(str(data))
        axes.set_xlabel("largest over smallest cluster (dashed: what the bounds allow)")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy, a point a seed, diamond the mean")
    panels[0].legend(fontsize=8, loc="center right")  # the first set has every method
    return figure


def plot_ablations(rows: pd.DataFrame) -> Figure:
    """Accuracy and kept similarity with one part changed."""
    names = ["sc_fagc", *(n for n in rows.method.unique() if n != "sc_fagc")]
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    words = {"acc": "accuracy on digits", "similarity": "similarity kept inside clusters of anchors"}
    for axes, (column, label) in zip(panels, words.items(), strict=True):
        for i, name in enumerate(names):
            if column == "similarity" and name in OTHER_ANCHORS:
                continue  # another matrix of similarities: its sum compares with no other
            found = rows[rows.method == name][column].dropna()
            axes.scatter(found, np.full(len(found), i), s=14, alpha=0.6, color="C0")
            axes.scatter(found.mean(), i, s=70, marker="D", color="C1", edgecolor="black")
        axes.axvline(rows[rows.method == "sc_fagc"][column].mean(), color="grey", linestyle="--", linewidth=1)
        axes.set_xlabel(f"{label}, a point a seed")
        axes.grid(alpha=0.3)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    return figure


def plot_unequal(rows: pd.DataFrame) -> Figure:
    """Adjusted Rand index on shapes of unequal size, by what the method was told."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    groups = list(rows.groupby(["data", "method"], sort=False))
    for i, (_, group) in enumerate(groups):
        axes.scatter(np.full(len(group), i), group.ari, s=18, alpha=0.6, color="C0")
        axes.scatter(i, group.ari.median(), s=80, marker="D", color="C1", edgecolor="black")
    axes.set_xticks(range(len(groups)), [f"{data}\n{method}" for (data, method), _ in groups], fontsize=8)
    axes.set_ylabel("adjusted Rand index, a point a seed,\ndiamond the median")
    axes.grid(alpha=0.3)
    return figure


def times_note(seconds: Mapping[str, float]) -> str:
    """Processor seconds of one run by method, as text: times are no part of metrics.json."""
    lines = [f"{name} {value:.2f}" for name, value in seconds.items()]
    return f"Processor seconds of a run, mean over seeds, those of earlier runs counted: {', '.join(lines)}."


def log_candidates(ctx: RunContext, parts: Parts, seconds: Mapping[str, float]) -> None:
    """One MLflow run a method and data set, with the mean over seeds."""
    for (data, method), group in _frame(parts).groupby(["data", "method"], sort=False):
        name = f"{data}/{method}"
        run_id = candidate_run(ctx, name)
        numbers = group[[c for c in COLUMNS if c in group]].mean().dropna()
        log_metrics(
            ctx,
            run_id,
            {**{f"test/mean/{k}": float(v) for k, v in numbers.items()}, "seconds": seconds.get(name, 0.0)},
        )
        ctx.client.set_terminated(run_id)
