"""The bench of `littlebit2` on a whole model as people read it."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tasks.report.littlebit2 import COLOURS, NAMES
from tasks.tracking import RunContext, candidate_run, log_metrics, log_params

Frames = Mapping[str, pd.DataFrame]


def model_table(frames: Frames) -> pd.DataFrame:
    """The model and its peers by file size."""
    frame = frames["model"]
    packed = frame[frame.step == -1].sort_values("file_bytes")
    first = frame[frame.step == 0].set_index("method").perplexity
    rows = [
        {
            "model": NAMES[row.method],
            "files, MB": f"{row.file_bytes / 1e6:.1f}",
            "stored bits a weight of its layers": f"{row.stored_bpp:.2f}",
            "bits a parameter, embeddings included": f"{row.whole_model_bits:.2f}",
            "perplexity before distillation": f"{first[row.method]:,.1f}" if row.method in first else "-",
            "perplexity": f"{row.perplexity:,.1f}",
        }
        for row in packed.itertuples()
    ]
    return pd.DataFrame(rows)


def model_tables(frames: Frames) -> dict[str, pd.DataFrame]:
    """The data behind the plot."""
    return {name: frames[name] for name in ("model", "rates") if name in frames}


def plot_model(frames: Frames) -> Figure:
    """The real model: perplexity over the distillation, over the size of the files, and over the learning rate."""
    model, rates = frames["model"], frames.get("rates")
    figure = Figure(figsize=(11 if rates is None else 16, 4.4), layout="constrained")
    left, middle, *more = figure.subplots(1, 2 if rates is None else 3)
    for method, curve in model[model.step >= 0].groupby("method", sort=False):
        left.plot(curve.step, curve.perplexity, marker="o", color=COLOURS[method], label=NAMES[method])
    original = model[(model.method == "original") & (model.step == -1)].perplexity
    if len(original):
        left.axhline(original.iloc[0], color=COLOURS["original"], linestyle=":", label=NAMES["original"])
    left.set_yscale("log")
    left.set_xlabel("optimiser steps of the distillation")
    left.set_ylabel("held-out perplexity per token")
    left.set_title("Distillation")
    left.legend(frameon=False, fontsize=8)
    _plot_sizes(middle, model[model.step == -1])
    if rates is not None:
        _plot_rates(more[0], rates)
    for axes in (left, middle, *more):
        axes.grid(alpha=0.3)
    return figure


def _plot_sizes(axes: Axes, packed: pd.DataFrame) -> None:
    sizes = packed.file_bytes / 1e6
    for row, size in zip(packed.itertuples(), sizes, strict=True):
        axes.plot(size, row.perplexity, "o", color=COLOURS[row.method], label=NAMES[row.method])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(*_marks(sizes))
    axes.minorticks_off()
    axes.set_xlabel("weight files in MB, embeddings included")
    axes.set_title("LittleBit-2 distilled; the others not")
    axes.legend(frameon=False, fontsize=8)


def _marks(values: pd.Series) -> tuple[list[float], list[str]]:
    """1, 2, 5, 10, ... around the values, written out: a logarithmic axis would write 6 x 10^1."""
    marks = [digit * 10.0**n for n in range(12) for digit in (1, 2, 5)]
    shown = [mark for mark in marks if values.min() / 2 <= mark <= values.max() * 2]
    return shown, [f"{mark:,.0f}" for mark in shown]


def _plot_rates(axes: Axes, rates: pd.DataFrame) -> None:
    """Each start over the learning rate; the text that chooses is not the one that is shown."""
    for method, part in rates.groupby("method", sort=False):
        at = part[part.seed == part.seed.iloc[0]].sort_values("rate")
        axes.plot(at.rate, at.perplexity, marker="o", color=COLOURS[method], label=NAMES[method])
        best = part[part.chosen]
        axes.plot(
            best.rate, best.perplexity, "*", markersize=13, color=COLOURS[method], label="chosen, each seed"
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    shown = sorted(rates.rate.unique())
    axes.set_xticks(shown, [f"{rate:g}" for rate in shown])
    axes.set_yticks(*_marks(rates.perplexity))
    axes.minorticks_off()
    axes.set_xlabel("peak learning rate")
    axes.set_title(f"Short runs of {rates.steps.iloc[0]} steps")
    axes.legend(frameon=False, fontsize=8)


def log_model_candidates(ctx: RunContext, frames: Frames) -> None:
    """One MLflow run for each model, with its size and perplexity over the distillation."""
    for method, part in frames["model"].groupby("method", sort=False):
        run = candidate_run(ctx, f"model/{method}")
        log_params(ctx, run, {"method": method})
        for row in part.itertuples():
            if row.step >= 0:
                log_metrics(ctx, run, {"heldout/perplexity": row.perplexity}, step=int(row.step))
            else:
                sizes = {"size/bytes": row.file_bytes, "size/whole_model_bits": row.whole_model_bits}
                log_metrics(ctx, run, sizes | {"packed/perplexity": row.perplexity})
