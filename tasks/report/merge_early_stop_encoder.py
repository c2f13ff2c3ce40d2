"""The encoder bench of `merge_early_stop` as people read it: method x length, the stopping rules, plots."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from methods.merge_early_stop.encoder_claims import KIND_NAMES, encoder_claims
from methods.merge_early_stop.encoder_study import STOPPED
from tasks.report.publish import markdown_table
from tasks.report.verdict import Verdict, claim_metrics, claim_verdicts

Frames = Mapping[str, pd.DataFrame]


def metrics_and_verdicts(frames: Frames) -> tuple[dict[str, Any], list[Verdict]]:
    """Scores of every cell and rule and each claim's numbers for metrics.json; verdicts where there is a bar."""
    found = encoder_claims(frames)
    lengths = {
        f"{kind}/{method}/{step}": {"merged": float(cell.merged.mean()), "own": float(cell.own.mean())}
        for (kind, method, step), cell in frames["sweep"].groupby(["kind", "method", "step"], sort=False)
    }
    rules = {
        f"{kind}/{strategy}/{method}": {"merged": float(cell.merged.mean()), "own": float(cell.own.mean())}
        for (kind, strategy, method), cell in frames["stopping"].groupby(
            ["kind", "strategy", "method"], sort=False
        )
    }
    base = {
        str(kind): float(part.zero_shot.mean()) for kind, part in frames["sweep"].groupby("kind", sort=False)
    }
    measured = {"claims": claim_metrics(found), "lengths": lengths, "stopping": rules, "base": base}
    return measured, claim_verdicts(found)


def shown_table(frames: Frames) -> pd.DataFrame:
    """Method x length: mean accuracy over the tasks in %, mean over seeds (and their range)."""
    rows = []
    for kind, part in frames["sweep"].groupby("kind", sort=False):
        first = part[part.method == part.method.iloc[0]]
        rows.append({"training": KIND_NAMES[str(kind)], "score": "experts, own task", **_cells(first, "own")})
        for method, curve in part.groupby("method", sort=False):
            rows.append(
                {"training": KIND_NAMES[str(kind)], "score": f"merged, {method}", **_cells(curve, "merged")}
            )
    return pd.DataFrame(rows)


def _cells(curve: pd.DataFrame, column: str) -> dict[str, str]:
    cells = {"base": f"{100 * curve.zero_shot.mean():.1f}"}
    for step, cell in curve.groupby("step"):
        cells[f"{step} steps"] = _spread(cell[column])
    return cells


def _spread(values: pd.Series) -> str:
    low, high = 100 * values.min(), 100 * values.max()
    mean = f"{100 * values.mean():.1f}"
    return mean if high - low < 0.05 else f"{mean} ({low:.1f} to {high:.1f})"


def rules_markdown(frames: Frames) -> str:
    """The stopping rules side by side: steps spent, own and merged accuracy in %, mean (range over seeds)."""
    rows = []
    for (kind, strategy), group in frames["stopping"].groupby(["kind", "strategy"], sort=False):
        if strategy == "best_uniform":
            continue  # a length of its own for each method: see the claims
        row = {
            "training": KIND_NAMES[str(kind)],
            "rule": str(strategy),
            "steps %": f"{100 * group.full_share.mean():.0f}",
            "own %": _spread(group.groupby("seed").own.first()),
        }
        for method in STOPPED:
            row[f"{method} %"] = _spread(group[group.method == method].merged)
        rows.append(row)
    return markdown_table(pd.DataFrame(rows))


def tables(frames: Frames) -> dict[str, pd.DataFrame]:
    """The data behind the plots, by the same names, and the scores of each task."""
    columns = [
        "kind",
        "seed",
        "method",
        "step",
        "own",
        "merged",
        "zero_shot",
        "lambda",
        "select",
        "norm_matched",
    ]
    rules = ["kind", "seed", "strategy", "method", "optimiser_steps", "full_share", "own", "merged", "lambda"]
    return {
        "encoder_lengths": frames["sweep"][[*columns, "norm", "cosine", "sign_conflict", "keep_rate"]],
        "encoder_stopping": frames["stopping"][rules],
        "encoder_tasks": frames["per_task"],
        "encoder_stop_steps": frames["stop_steps"],
    }


def figures(frames: Frames) -> dict[str, Figure]:
    """The study's plots, by name."""
    return {
        "encoder_lengths": plot_lengths(frames["sweep"]),
        "encoder_stopping": plot_stopping(frames["stopping"]),
    }


def plot_lengths(sweep: pd.DataFrame) -> Figure:
    """Own and merged accuracy over the training length, a panel a kind; bands are the seeds' range."""
    kinds = list(dict.fromkeys(sweep.kind))
    figure = Figure(figsize=(5.5 * len(kinds), 4.8), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        part = sweep[sweep.kind == kind]
        first = part[part.method == part.method.iloc[0]]
        _band(axes, first, "own", "experts, own task", "black")
        for i, (method, curve) in enumerate(part.groupby("method", sort=False)):
            _band(axes, curve, "merged", f"merged: {method}", f"C{i}")
        axes.axhline(100 * first.zero_shot.mean(), color="grey", linestyle=":", label="base model")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("optimiser steps of every expert")
        axes.set_title(KIND_NAMES[kind])
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy, mean of the tasks (%)")
    panels[-1].legend(frameon=False, fontsize=8)
    figure.suptitle("Text tasks on a sentence encoder: mean and range over seeds")
    return figure


def _band(axes: Any, curve: pd.DataFrame, column: str, label: str, colour: str) -> None:
    by = curve.groupby("step")[column]
    mean, low, high = 100 * by.mean(), 100 * by.min(), 100 * by.max()
    axes.plot(mean.index, mean, color=colour, label=label, marker="o", markersize=3)
    axes.fill_between(mean.index, low, high, color=colour, alpha=0.15, linewidth=0)


def plot_stopping(stopping: pd.DataFrame) -> Figure:
    """Merged accuracy against the optimiser steps spent: a panel a kind and method, a point a seed."""
    kinds = list(dict.fromkeys(stopping.kind))
    figure = Figure(figsize=(4.5 * len(STOPPED), 4 * len(kinds)), layout="constrained")
    grid = figure.subplots(len(kinds), len(STOPPED), squeeze=False, sharey=True)
    for line, kind in zip(grid, kinds, strict=True):
        for axes, method in zip(line, STOPPED, strict=True):
            part = stopping[(stopping.kind == kind) & (stopping.method == method)]
            for i, (strategy, group) in enumerate(part.groupby("strategy", sort=False)):
                axes.scatter(
                    100 * group.full_share, 100 * group.merged, color=f"C{i}", s=24, label=str(strategy)
                )
            axes.set_xscale("log")
            axes.minorticks_off()
            axes.set_xticks((5, 10, 20, 50, 100), ("5", "10", "20", "50", "100"))
            axes.set_title(f"{method}, {KIND_NAMES[kind]}")
            axes.grid(alpha=0.3)
        line[0].set_ylabel("merged accuracy (%), one point a seed")
    for axes in grid[-1]:
        axes.set_xlabel("optimiser steps, % of training to the end")
    grid[0][0].legend(frameon=False, fontsize=7)
    return figure
