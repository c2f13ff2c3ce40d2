"""The curves of a pre-training as people read them."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from tasks.candidates import Candidate
from tasks.train.trace import read_trace

SHOWN = {
    "norm_scheme": "norm placement",
    "parameters": "parameters",
    "steps": "optimiser steps",
    "validation_loss_start": "held-out loss at the start (nats a token)",
    "validation_loss": "held-out loss at the end (nats a token)",
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
    "largest_grad_norm": "largest gradient norm before clipping",
    "diverged": "left the finite numbers",
}


def facts_table(model: Candidate) -> pd.DataFrame:
    """What the training came to, a line each."""
    rows = [{"what": words, "measured": _shown(model.facts[name])} for name, words in SHOWN.items()]
    return pd.DataFrame([*rows, {"what": "seconds", "measured": f"{model.seconds:.0f}"}])


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    )


def curves_table(model: Path) -> pd.DataFrame:
    """Loss, gradient norm, rate and held-out loss by step; at most 1,000 rows and every held-out one."""
    table = pd.DataFrame(read_trace(model)).rename(columns=lambda name: str(name).replace("/", "_"))
    every = max(1, len(table) // 1000)
    return table[(table.index % every == 0) | table["validation_loss"].notna()].reset_index(drop=True)


def curves_figure(table: pd.DataFrame) -> Figure:
    """Training and held-out loss above, gradient norm before clipping below."""
    figure = Figure(figsize=(7.5, 6.5), layout="constrained")
    losses, norms = figure.subplots(2, 1, sharex=True)
    if "train_loss" in table:
        trained = table[table.train_loss.notna()]
        losses.plot(trained.step, trained.train_loss, color="C0", linewidth=0.8, label="training batch")
    held = table[table.validation_loss.notna()]
    losses.plot(held.step, held.validation_loss, color="C1", marker="o", markersize=3, label="held-out text")
    losses.set_ylabel("loss (nats a token)")
    losses.legend(frameon=False)
    if "train_grad_norm" in table:
        found = table[table.train_grad_norm.notna()]
        norms.plot(found.step, found.train_grad_norm, color="C2", linewidth=0.8)
        norms.set_yscale("log")
    norms.set_ylabel("gradient norm before clipping")
    norms.set_xlabel("optimiser step")
    for axes in (losses, norms):
        axes.grid(alpha=0.3)
    return figure
