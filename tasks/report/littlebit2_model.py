"""The bench of `littlebit2` on a whole model as people read it."""

from collections.abc import Mapping

import pandas as pd
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


def plot_model(model: pd.DataFrame) -> Figure:
    """The real model: perplexity over the distillation, and over the size of the files."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for method, curve in model[model.step >= 0].groupby("method", sort=False):
        left.plot(curve.step, curve.perplexity, marker="o", color=COLOURS[method], label=NAMES[method])
    left.set_yscale("log")
    left.set_xlabel("optimiser steps of the distillation")
    left.set_ylabel("held-out perplexity per token")
    left.legend(frameon=False, fontsize=8)
    left.grid(alpha=0.3)
    for row in model[model.step == -1].itertuples():
        right.plot(row.file_bytes / 1e6, row.perplexity, "o", color=COLOURS[row.method])
        right.annotate(
            NAMES[row.method], (row.file_bytes / 1e6, row.perplexity), xytext=(6, 4),
            textcoords="offset points", fontsize=8,
        )  # fmt: skip
    right.set_xscale("log")
    right.set_yscale("log")
    right.margins(x=0.25)
    right.set_xlabel("weight files in MB, embeddings included")
    right.set_ylabel("held-out perplexity per token")
    right.set_title("LittleBit-2 distilled; the others not")
    right.grid(alpha=0.3)
    return figure


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
