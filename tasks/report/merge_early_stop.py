"""The study of `merge_early_stop` as people read it: figures, verdicts, metrics, and one MLflow run a candidate."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from methods.merge_early_stop.study_claims import claims
from tasks.report.verdict import Verdict, claim_metrics, claim_verdicts
from tasks.tracking import RunContext, candidate_run, log_metrics, log_params, log_trace

Frames = Mapping[str, pd.DataFrame]
SHOWN = ("task_arithmetic", "ties")


def metrics_and_verdicts(frames: Frames) -> tuple[dict[str, Any], list[Verdict]]:
    """Each claim's numbers for metrics.json, and those with a bar as verdicts."""
    found = claims(dict(frames))
    timed = [c for c in found if c.name.endswith("/overhead")]
    return {"claims": claim_metrics([c for c in found if c not in timed])}, claim_verdicts(found)


def strategy_table(frames: Frames) -> pd.DataFrame:
    """Clean labels: own and merged accuracy of every stopping strategy, mean ± standard deviation over seeds."""
    clean = frames["stopping"][frames["stopping"].noise == 0]
    rows = []
    for strategy, group in clean.groupby("strategy", sort=False):
        row = {"strategy": strategy, "steps %": _spread(group.groupby("seed").full_share.first())}
        row["own %"] = _spread(group.groupby("seed").own.first())
        for method, part in group.groupby("method", sort=False):
            row[f"{method} %"] = _spread(part.merged)
        rows.append(row)
    return pd.DataFrame(rows).fillna("-")


def _spread(values: pd.Series) -> str:
    return f"{100 * values.mean():.1f} ± {100 * values.std(ddof=1):.1f}"


def figures(frames: Frames) -> dict[str, Figure]:
    """The study's plots, by name."""
    return {
        "length_sweep": plot_sweep(frames["sweep"]),
        "stop_steps": plot_stop_steps(frames["stop_steps"]),
        "cost_vs_merged": plot_cost(frames["stopping"]),
        "forgetting": plot_forgetting(frames["forgetting"]),
    }


def tables(frames: Frames) -> dict[str, pd.DataFrame]:
    """The data behind the plots, by the same names."""
    whole = frames["forgetting"][frames["forgetting"].task == "all"]
    columns = ["step", "method", "seed", "noise", "own", "merged", "zero_shot", "lambda", "norm_matched"]
    return {
        "length_sweep": frames["sweep"][columns],
        "stop_steps": frames["stop_steps"],
        "cost_vs_merged": frames["stopping"][
            ["strategy", "method", "seed", "noise", "full_share", "own", "merged"]
        ],
        "forgetting": whole[
            ["bin", "difficulty", "seed", "noise", "forgetting_rate", "memorised", "forgotten"]
        ],
    }


def _noises(frame: pd.DataFrame) -> list[float]:
    return sorted(frame.noise.unique())


def _title(noise: float) -> str:
    return "clean labels" if noise == 0 else f"{100 * noise:.0f} % of the training labels flipped"


def plot_sweep(sweep: pd.DataFrame) -> Figure:
    """Own accuracy (above) and merged accuracy (below, on its own scale) over the training length."""
    noises = _noises(sweep)
    figure = Figure(figsize=(5.5 * len(noises), 7.5), layout="constrained")
    grid = figure.subplots(2, len(noises), sharey="row", sharex=True, squeeze=False)
    for column, noise in enumerate(noises):
        own, merged = grid[0][column], grid[1][column]
        part = sweep[sweep.noise == noise]
        first = part[part.method == part.method.iloc[0]]
        _band(own, first, "own", "experts on their own task", "black")
        for i, (method, curve) in enumerate(part.groupby("method", sort=False)):
            _band(merged, curve, "merged", str(method), f"C{i}")
        for axes in (own, merged):
            axes.axhline(100 * first.zero_shot.mean(), color="grey", linestyle=":", label="base model")
            axes.grid(alpha=0.3)
        merged.set_xscale("log", base=2)
        merged.set_xlabel("optimiser steps of every expert")
        own.set_title(_title(noise))
    grid[0][0].set_ylabel("experts, own task (%)")
    grid[1][0].set_ylabel("merged, mean of 8 tasks (%)")
    for axes in grid[:, -1]:
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle("Accuracy over training length: mean and range over seeds")
    return figure


def _band(axes: Any, curve: pd.DataFrame, column: str, label: str, colour: str) -> None:
    by = curve.groupby("step")[column]
    mean, low, high = 100 * by.mean(), 100 * by.min(), 100 * by.max()
    axes.plot(mean.index, mean, color=colour, label=label, marker="o", markersize=3)
    axes.fill_between(mean.index, low, high, color=colour, alpha=0.15, linewidth=0)


def plot_stop_steps(stop_steps: pd.DataFrame) -> Figure:
    """Where each task's expert was stopped."""
    chosen = stop_steps[(stop_steps.strategy.str.startswith("early_stop")) & (stop_steps.noise == 0)]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    tasks = list(dict.fromkeys(chosen.task))
    strategies = list(dict.fromkeys(chosen.strategy))
    for i, strategy in enumerate(strategies):
        part = chosen[chosen.strategy == strategy]
        places = np.array([tasks.index(task) for task in part.task]) + 0.2 * (i - (len(strategies) - 1) / 2)
        axes.scatter(places, part.kept_step, color=f"C{i}", s=22, label=strategy, alpha=0.8)
    axes.set_xticks(range(len(tasks)), tasks, rotation=20)
    axes.set_yscale("log", base=2)
    axes.set_ylabel("step of the kept weights, one point a seed")
    axes.set_title("Task-dependent stopping, clean labels")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(axis="y", alpha=0.3)
    return figure


def plot_cost(stopping: pd.DataFrame) -> Figure:
    """Merged accuracy against the optimiser steps spent, one point a strategy."""
    noises = _noises(stopping)
    figure = Figure(figsize=(11, 4.5 * len(noises)), layout="constrained")
    grid = figure.subplots(len(noises), len(SHOWN), squeeze=False)
    for line, noise in zip(grid, noises, strict=True):
        for axes, method in zip(line, SHOWN, strict=True):
            part = stopping[(stopping.noise == noise) & (stopping.method == method)]
            for i, (strategy, group) in enumerate(part.groupby("strategy", sort=False)):
                axes.errorbar(
                    100 * group.full_share.mean(),
                    100 * group.merged.mean(),
                    yerr=100 * group.merged.std(ddof=1),
                    fmt="o",
                    color=f"C{i}",
                    capsize=3,
                    label=strategy,
                )
            axes.set_xscale("log")
            axes.set_xlabel("optimiser steps, % of training every expert to the end")
            axes.set_ylabel("merged accuracy (%), ± std over seeds")
            axes.set_title(f"{method}, {_title(noise)}")
            axes.grid(alpha=0.3)
    grid[0][-1].legend(frameon=False, fontsize=7)
    return figure


def plot_forgetting(forgetting: pd.DataFrame) -> Figure:
    """Share of memorised examples that the merge forgets, by decile of difficulty."""
    whole = forgetting[forgetting.task == "all"]
    noises = _noises(whole)
    figure = Figure(figsize=(5.5 * len(noises), 4.2), layout="constrained")
    panels = figure.subplots(1, len(noises), sharey=True, squeeze=False)[0]
    for axes, noise in zip(panels, noises, strict=True):
        part = whole[whole.noise == noise]
        for i, (source, group) in enumerate(part.groupby("difficulty", sort=False)):
            by = group.groupby("bin").forgetting_rate
            label = f"difficulty from {str(source).replace('_', ' ')}"
            axes.errorbar(
                by.mean().index + 1,
                100 * by.mean(),
                yerr=100 * by.std(ddof=1),
                color=f"C{i}",
                capsize=3,
                label=label,
            )
        axes.set_xlabel("tenth of the training examples by EL2N difficulty (10 = hardest)")
        axes.set_title(_title(noise))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("memorised, then forgotten by the merge (%)")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def log_candidates(ctx: RunContext, frames: Frames, by: str = "noise") -> None:
    """One MLflow run a strategy, group and seed, and one a sweep, so that the compare page shows them together.

    Args:
        ctx: the flow's run.
        frames: `stopping` and `sweep`.
        by: the column of the groups: the share of flipped labels, or the kind of fine-tuning.
    """
    for (strategy, group, seed), part in frames["stopping"].groupby(["strategy", by, "seed"], sort=False):
        run = candidate_run(ctx, f"stop/{strategy}/{_group_name(by, group)}/seed{seed}")
        log_params(ctx, run, {"strategy": strategy, by: group, "seed": seed})
        merged = {f"test/merged_{row.method}": row.merged for row in part.itertuples()}
        first = part.iloc[0]
        log_metrics(ctx, run, {**merged, "test/own": first.own, "train/full_share": first.full_share})
        ctx.client.set_terminated(run)
    for (method, group, seed), curve in frames["sweep"].groupby(["method", by, "seed"], sort=False):
        run = candidate_run(ctx, f"sweep/{method}/{_group_name(by, group)}/seed{seed}")
        log_params(ctx, run, {"method": method, by: group, "seed": seed})
        rows = [
            {
                "step": int(r.step),
                "test/own": r.own,
                "test/merged": r.merged,
                "interference/sign_conflict": r.sign_conflict,
            }
            for r in curve.itertuples()
        ]
        log_trace(ctx, run, rows)
        ctx.client.set_terminated(run)


def _group_name(by: str, group: Any) -> str:
    return f"noise{100 * group:.0f}" if by == "noise" else str(group)
