"""An adaptation as people read it: accuracy over depth and length before and after, losses, view gaps."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from methods.rope_psd import position_report
from tasks.adapt.positions import ANSWERS

Measured = Mapping[str, Path]


def _read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / ANSWERS).read_text(encoding="utf-8"))
    return found


def answers_table(measured: Measured) -> pd.DataFrame:
    """Mean accuracy and log-probability of each model, length and depth."""
    frames = []
    for name, folder in measured.items():
        frame = pd.DataFrame(_read(folder)["answers"])
        grouped = frame.groupby(["length", "depth"], sort=True)
        table = grouped.agg(
            accuracy=("correct", "mean"), logprob=("logprob", "mean"), prompts=("correct", "size")
        )
        frames.append(table.reset_index().assign(model=name))
    return pd.concat(frames, ignore_index=True)[
        ["model", "length", "depth", "accuracy", "logprob", "prompts"]
    ]


def gaps_table(measured: Measured) -> pd.DataFrame:
    """View KL and losses of each model by gap."""
    rows = [{"model": name, **row} for name, folder in measured.items() for row in _read(folder)["gaps"]]
    return pd.DataFrame(rows)


def reports(measured: Measured) -> pd.DataFrame:
    """What depth does to each model at each length."""
    frames = [
        position_report(pd.DataFrame(_read(folder)["answers"])).assign(model=name)
        for name, folder in measured.items()
    ]
    return pd.concat(frames, ignore_index=True)


def shown_table(measured: Measured) -> pd.DataFrame:
    """A row a model and length, as people read it."""
    gaps = gaps_table(measured).groupby("model").first()
    rows = []
    for _, row in reports(measured).iterrows():
        rows.append(
            {
                "model": row.model,
                "prompt tokens": f"{row.length:,}",
                "accuracy %": f"{100 * row['mean']:.1f}",
                "worst depth %": f"{100 * row.worst:.1f} (at {row.worst_depth:g})",
                "spread over depth (points)": f"{100 * row['std']:.1f}",
                "log-probability (nats)": f"{row.logprob:.2f}",
                "held-out loss (nats a token)": f"{gaps.loc[row.model, 'standard_ce']:.4f}",
            }
        )
    return pd.DataFrame(rows)


def metrics_of(measured: Measured) -> dict[str, Any]:
    """The numbers for metrics.json: by model, length and gap."""
    found: dict[str, Any] = {}
    for _, row in reports(measured).iterrows():
        place = found.setdefault(row.model, {}).setdefault(f"tokens_{row.length}", {})
        place.update({name: float(row[name]) for name in ("mean", "worst", "std", "spread", "logprob")})
    for _, row in gaps_table(measured).iterrows():
        place = found[row.model].setdefault(f"gap_{int(row.gap)}", {})
        place.update({"view_kl": float(row.kl), "perturbed_ce": float(row.perturbed_ce)})
        found[row.model]["standard_ce"] = float(row.standard_ce)
    return {"adapted": found}


def heat_map(answers: pd.DataFrame) -> Figure:
    """Accuracy over depth and length, a panel a model."""
    models = list(dict.fromkeys(answers.model))
    figure = Figure(figsize=(1.2 + 4.2 * len(models), 4.2), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(models), sharey=True))
    for axes, model in zip(panels, models, strict=True):
        table = answers[answers.model == model].pivot(index="depth", columns="length", values="accuracy")
        image = axes.imshow(100 * table.to_numpy(), vmin=0, vmax=100, cmap="RdYlGn", aspect="auto")
        axes.set_xticks(range(len(table.columns)), [f"{length:,}" for length in table.columns])
        axes.set_yticks(range(len(table.index)), [f"{depth:.2f}" for depth in table.index])
        for (i, j), value in np.ndenumerate(table.to_numpy()):
            axes.text(j, i, f"{100 * value:.0f}", ha="center", va="center", fontsize=8)
        axes.set_xlabel("prompt length (tokens)")
        axes.set_title(model)
    panels[0].set_ylabel("depth of the evidence (0 = start)")
    figure.colorbar(image, ax=panels.tolist(), label="accuracy (%)")
    figure.suptitle(f"Answers by place of the evidence, {int(answers.prompts.min())} prompts a cell")
    return figure


def gaps_figure(gaps: pd.DataFrame) -> Figure:
    """View KL over the gap, a line a model."""
    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for model, rows in gaps.groupby("model", sort=False):
        axes.plot(rows.gap, rows.kl, marker="o", label=str(model))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(gaps.gap.unique()), [str(gap) for gap in sorted(gaps.gap.unique())])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("gap between prefix and suffix (tokens)")
    axes.set_ylabel("divergence from the standard view (nats a token)")
    axes.set_title("How much predictions depend on the distance to the prefix")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure
