"""The figures of the study of `pruning_representations`."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SPACES = {"cos_h": "embedding", "cos_z": "logit", "cos_p": "probability"}
TASKS = {
    "cloze": "cloze",
    "piqa": "PIQA",
    "hellaswag": "HellaSwag",
    "arithmetic": "sums",
    "arithmetic_words": "sums in words",
    "recall": "recall of a code",
    "squad": "SQuAD answers",
}
SUBLAYERS = {"attn": "attentions", "mlp": "MLPs", "block": "blocks"}
KEEPS, LOSES = 90, 50
ROW = 9  # variants beside each other


def readable(variant: str) -> str:
    """What a recipe's label means, as far as it is known here."""
    if match := re.fullmatch(r"drop-(attn|mlp|block)-(\d+)(-by-kl)?(-c\d+x\d+)?", variant):
        what = SUBLAYERS[match[1]] if match[2] != "1" else SUBLAYERS[match[1]].removesuffix("s")
        return f"{match[2]} {what} dropped" + (" (by KL)" if match[3] else "")
    if match := re.fullmatch(r"(magnitude|wanda|sparsegpt)-(\d+pct|\dof\d)(-c\d+x\d+)?", variant):
        name = {"magnitude": "Magnitude", "wanda": "Wanda", "sparsegpt": "SparseGPT"}[match[1]]
        return f"{name} {match[2].replace('pct', ' %').replace('of', ':')}"
    return variant


def names_of(variants: Iterable[str]) -> dict[str, str]:
    """Readable names; labels stay as they are where two would read alike."""
    found = {variant: readable(variant) for variant in variants}
    alike = [name for name in found.values() if list(found.values()).count(name) > 1]
    return {variant: variant if name in alike else name for variant, name in found.items()}


def plot_layers(table: pd.DataFrame) -> Figure:
    """How far each space moves when one attention is dropped, layer by layer; the worst tokens are the finding."""
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    least = 1e-5
    for i, (space, part) in enumerate(table.groupby("space", sort=False)):
        moved = {name: (1 - part[name]).clip(lower=least) for name in ("median", "q05")}
        axes.plot(part.layer, moved["median"], color=f"C{i}", label=f"{space}, median token")
        axes.plot(part.layer, moved["q05"], "--", color=f"C{i}", label=f"{space}, worst 5 %")
        axes.fill_between(part.layer, moved["median"], moved["q05"], color=f"C{i}", alpha=0.12, linewidth=0)
    for height, style, words in (
        (0.02, ":", "logits: bar for the worst, below"),
        (0.08, "-.", "probabilities: bar for the worst, above"),
    ):
        axes.axhline(height, color="black", linewidth=0.9, linestyle=style, label=words)
    axes.set_yscale("log")
    axes.set_xlabel("layer whose attention is dropped (first and last are exceptions)")
    axes.set_ylabel("1 - cosine with the dense state (log scale)")
    axes.set_title("One attention dropped at a time: how far each space moves")
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8
    )
    axes.grid(alpha=0.3)
    return figure


def plot_estimates(table: pd.DataFrame) -> Figure:
    """Predicted against measured median KL."""
    figure = Figure(figsize=(5.5, 5), layout="constrained")
    axes = figure.subplots()
    last = table.layer.max()
    for i, (seed, part) in enumerate(table.groupby("seed")):
        middle = part[(part.layer > 0) & (part.layer < last)]
        axes.scatter(middle.kl_q50, middle.kl_estimate_q50, s=14, color=f"C{i}", label=f"seed {seed}")
    middle = table[(table.layer > 0) & (table.layer < last)]
    low, high = float(middle.kl_q50.min()) / 1.5, float(middle.kl_q50.max()) * 1.5
    line = np.array([low, high])
    axes.plot(line, line, color="grey", linewidth=1, label="equal")
    axes.fill_between(
        line, 0.75 * line, 1.25 * line, color="grey", alpha=0.15, linewidth=0, label="within 25 %"
    )
    worst = middle.loc[middle.kl_q50.idxmax()]
    axes.annotate(
        f"layer {int(worst.layer)}",
        (float(worst.kl_q50), float(worst.kl_estimate_q50)),
        xytext=(-8, -14),
        textcoords="offset points",
        ha="right",
        fontsize=8,
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("measured median KL of dropping one attention (nats)")
    axes.set_ylabel("second-order estimate (nats)")
    axes.set_title("Predicted damage: one point an inner layer and seed")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def plot_decoding(table: pd.DataFrame) -> Figure:
    """Similarity of the probabilities, and KL, over the steps of generation."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = names_of(dict.fromkeys(table.variant))
    for i, (name, part) in enumerate(table.groupby("variant", sort=False)):
        for mode, style in (("free", "-"), ("forced", ":")):
            curve = part[part["mode"] == mode]
            label = names[str(name)] if mode == "free" else None
            left.plot(curve.step, curve.cos_p, style, color=f"C{i}", label=label)
            right.plot(curve.step, curve.kl.clip(lower=1e-3), style, color=f"C{i}")
    left.set_ylabel("cosine of the probabilities")
    right.set_ylabel("KL(dense || compressed), nats")
    right.set_yscale("log")
    for axes in (left, right):
        axes.set_xlabel("step of generation")
        axes.grid(alpha=0.3)
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9
    )
    figure.suptitle(
        "Medians over prompts. Solid: each model on its own text. Dotted: both on the dense model's text"
    )
    return figure


def plot_tasks(tasks: pd.DataFrame) -> Figure:
    """What each task keeps, by variant, in rows of nine at most: choice tasks filled, written ones open."""
    part = tasks[tasks.variant != "dense"]
    variants = sorted(dict.fromkeys(part.variant), key=_variant_order)
    names, words = _task_order(part), names_of(variants)
    panels = -(-len(variants) // ROW)
    across = -(-len(variants) // panels)
    figure = Figure(figsize=(max(7, 1.1 * across + 3), 1.2 + 4.3 * panels), layout="constrained")
    for row, axes in enumerate(figure.subplots(panels, 1, sharey=True, squeeze=False)[:, 0]):
        here = variants[row * across : (row + 1) * across]
        for i, task in enumerate(names):
            own = part[part.task == task].set_index("variant").reindex(here)
            if own.kept.notna().any():
                _points(axes, own, np.arange(len(here)) + _offset(i, names, 0.1), task, i, line="")
        _bars(axes)
        axes.set_xticks(range(len(here)), [words[name] for name in here], rotation=20, ha="right")
        axes.set_xlim(-0.6, across - 0.4)
    _legend(figure, ncols=3)
    figure.suptitle("What a compressed model keeps of the dense score, with 95 % intervals")
    return figure


def sweep_table(tasks: pd.DataFrame) -> pd.DataFrame:
    """The rows of `tasks` whose variant drops a number of sublayers by the paper's ranking, with both as columns."""
    found = tasks.variant.str.extract(r"^drop-(?P<sublayer>attn|mlp|block)-(?P<dropped>\d+)(?:-c\d+x\d+)?$")
    table = pd.concat([found, tasks], axis=1).dropna(subset=["sublayer"])
    return table.assign(dropped=table.dropped.astype(int)).sort_values(["sublayer", "dropped"])


def plot_sweep(tasks: pd.DataFrame) -> Figure | None:
    """What each task keeps over the number of dropped sublayers; None unless one kind has three numbers."""
    table = sweep_table(tasks)
    kinds = [kind for kind in SUBLAYERS if table[table.sublayer == kind].dropped.nunique() >= 3]
    if not kinds:
        return None
    figure = Figure(figsize=(max(8.5, 4.6 * len(kinds) + 1), 5), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    names = _task_order(table)
    for axes, kind in zip(panels, kinds, strict=True):
        counts = sorted(table[table.sublayer == kind].dropped.unique())
        step = 0.06 * min(np.diff(counts))  # beside each other, not on top of each other
        for i, task in enumerate(names):
            own = table[(table.sublayer == kind) & (table.task == task)]
            if len(own):
                places = own.dropped.to_numpy() + _offset(i, names, step)
                _points(axes, own, places, task, i, line="--" if _written(own) else "-")
        _bars(axes)
        axes.set_xlabel(f"{SUBLAYERS[kind]} dropped")
        axes.set_xticks(counts)
    for axes in panels[1:]:
        axes.set_ylabel("")
    _legend(figure, ncols=3)
    figure.suptitle("What is kept of the dense score as more is dropped, with 95 % intervals")
    return figure


def _offset(place: int, names: list[str], step: float) -> float:
    return step * (place - (len(names) - 1) / 2)


def _legend(figure: Figure, ncols: int) -> None:
    """One legend below all panels, each label once."""
    labels = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(labels.values(), labels, loc="outside lower center", ncols=ncols, frameon=False, fontsize=8)


def _points(axes: Axes, own: pd.DataFrame, places: np.ndarray, task: str, colour: int, line: str) -> None:
    written = _written(own)
    axes.errorbar(
        places,
        100 * own.kept,
        yerr=[100 * (own.kept - own.kept_low), 100 * (own.kept_high - own.kept)],
        fmt="s" if written else "o",
        linestyle=line,
        mfc="white" if written else None,
        color=f"C{colour}",
        capsize=2,
        label=f"{TASKS.get(task, task)} ({'written' if written else 'choice'})",
    )


def _written(own: pd.DataFrame) -> bool:
    return str(own.kind.dropna().iloc[0]) == "written"


def _bars(axes: Axes) -> None:
    for height, style, words in (
        (KEEPS, "--", "a choice task should stay above"),
        (LOSES, ":", "a written task falls below"),
    ):
        axes.axhline(height, color="grey", linewidth=0.9, linestyle=style, label=f"{height} %: {words}")
    axes.set_ylabel("share of the dense score (%)")
    axes.set_ylim(bottom=-5)
    axes.grid(axis="y", alpha=0.3)


def _task_order(tasks: pd.DataFrame) -> list[str]:
    known = [task for task in TASKS if task in set(tasks.task)]
    return known + sorted(set(tasks.task) - set(known))


def _variant_order(name: str) -> tuple[bool, str, int]:
    """By family and number: drop-attn-2, drop-attn-12, drop-attn-4-by-kl; what has no number comes last."""
    found = re.fullmatch(r"(drop-\w+-)(\d+)(.*)", name)
    return (False, found[1] + found[3], int(found[2])) if found else (True, name, 0)
