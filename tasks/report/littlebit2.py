"""The study of `littlebit2` as people read it: figures, verdicts, metrics, and one MLflow run a candidate."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from methods.littlebit2.study_claims import claims, errors_by_method, final_nats
from tasks.report.verdict import Verdict, claim_metrics, claim_verdicts
from tasks.tracking import RunContext, candidate_run, log_metrics, log_params

Frames = Mapping[str, pd.DataFrame]
NAMES = {
    "joint_itq": "Joint-ITQ",
    "random_rotation": "random rotation",
    "svd": "SVD, not rotated",
    "admm": "ADMM",
    "fp16_low_rank": "fp16 low rank",
    "onebit": "OneBit",
    "hqq_2bit": "HQQ, 2 bit",
    "hqq_4bit": "HQQ, 4 bit",
    "original": "original, bf16",
}
COLOURS = {name: f"C{i}" for i, name in enumerate(NAMES)}


def metrics_and_verdicts(frames: Frames) -> tuple[dict[str, Any], list[Verdict]]:
    """Each claim's numbers for metrics.json, and those with a bar as verdicts."""
    found = claims(frames)
    return {"claims": claim_metrics(found)}, claim_verdicts(found)


def shown_table(frames: Frames) -> pd.DataFrame:
    """Every method at the bits that its layers really store: error on real weights, perplexity before and after."""
    rows = []
    layers = frames["layers"]
    points = layers[["method", "bpp", "residual"]].drop_duplicates()
    common = set(layers[layers.method == "onebit"].layer)
    small = frames.get("small")
    after = None if small is None else final_nats(small)
    for _, (method, bpp, residual) in points.iterrows():
        if method == "fp16_low_rank" and residual:
            continue  # it has no second branch: the same product at nearly the same bits
        part = layers[(layers.method == method) & layers.layer.isin(common)]
        part = part[part.bpp.isna() if pd.isna(bpp) else (part.bpp == bpp) & (part.residual == residual)]
        if part.empty:
            continue
        size = part.outputs * part.inputs
        row = {
            "method": NAMES[method] + (", residual" if residual else ""),
            "stored bits": (part.stored_bpp * size).sum() / size.sum(),
            "error": f"{part.error.mean():.3f} ± {part.error.std(ddof=1):.3f}",
            "perplexity per byte": "-",
        }
        key = (bpp, residual)
        if after is not None and method in after and key in after.index.droplevel("seed"):
            values = np.exp(after.xs(key, level=("bpp", "residual"))[method].dropna())
            row["perplexity per byte"] = f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"
        rows.append(row)
    table = pd.DataFrame(rows).sort_values(["stored bits", "error"])
    table["stored bits"] = table["stored bits"].map("{:.2f}".format)
    return table.rename(
        columns={
            "stored bits": "stored bits a weight",
            "error": f"squared error, {len(common)} layers",
            "perplexity per byte": "small models distilled",
        }
    )


def figures(frames: Frames) -> dict[str, Figure]:
    """The study's plots, by name."""
    found = {
        "error_vs_bits": plot_errors(frames["layers"]),
        "layers": plot_layers(frames["layers"]),
        "spectra": plot_spectra(frames["synthetic"]),
    }
    if "small" in frames:
        found["distillation"] = plot_distillation(frames["small"])
    return found


def tables(frames: Frames) -> dict[str, pd.DataFrame]:
    """The data behind the plots, by the same names."""
    layers = frames["layers"]
    columns = [
        "layer",
        "method",
        "bpp",
        "residual",
        "rank",
        "nominal_bpp",
        "stored_bpp",
        "error",
        "haar_error",
    ]
    extra = ["gamma", "coherence_before", "coherence_after", "alignment_before", "alignment_after"]
    found = {
        "error_vs_bits": layers.groupby(["method", "bpp", "residual"], dropna=False, sort=True)
        .agg(stored_bpp=("stored_bpp", "mean"), error=("error", "mean"), layers=("layer", "size"))
        .reset_index(),
        "layers": layers[(layers.bpp == 0.55) & ~layers.residual][columns + extra],
        "spectra": frames["synthetic"],
    }
    if "small" in frames:
        found["distillation"] = frames["small"]
    return found


def plot_errors(layers: pd.DataFrame) -> Figure:
    """Error over stored bits: mean and standard deviation over the layers that all methods share."""
    common = layers[layers.layer.isin(set(layers[layers.method == "onebit"].layer))]
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    axes = figure.subplots()
    for method, part in common.groupby("method", sort=False):
        for residual, points in part.groupby("residual"):
            at = points.groupby("bpp", dropna=False).agg(
                bits=("stored_bpp", "mean"), error=("error", "mean"), spread=("error", "std")
            )
            if method == "fp16_low_rank" and residual:
                continue
            axes.errorbar(
                at.bits, at.error, at.spread, color=COLOURS[method], marker="s" if residual else "o",
                linestyle="--" if residual else "-", capsize=2, markersize=5,
                label=NAMES[method] + (", residual branch" if residual else ""),
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
    axes.set_xlabel("stored bits per weight (scales and padding counted)")
    axes.set_ylabel("relative squared error of the weight")
    axes.set_title(f"Reconstruction of {common.layer.nunique()} real layers: mean ± standard deviation")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    return figure


def plot_layers(layers: pd.DataFrame) -> Figure:
    """Each layer's error at 0.55 bpp, sorted by that of Joint-ITQ, and its coherence before and after the rotation."""
    table = errors_by_method(layers, 0.55, False).sort_values("joint_itq")
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for method in table.columns:
        left.plot(
            range(len(table)), table[method], ".", markersize=3 if method != "admm" else 6,
            color=COLOURS[method], label=NAMES[method],
        )  # fmt: skip
    left.set_xlabel("linear layer, sorted")
    left.set_ylabel("relative squared error")
    left.set_title(f"All {len(table)} linear layers at 0.55 nominal bits per weight")
    left.legend(frameon=False, fontsize=8)
    left.grid(alpha=0.3)
    chosen = layers[(layers.method == "joint_itq") & (layers.bpp == 0.55) & ~layers.residual]
    both = pd.concat([chosen.coherence_before, chosen.coherence_after])
    bins = np.geomspace(0.9 * both.min(), 1.1 * both.max(), 30)
    right.hist(chosen.coherence_before, bins, alpha=0.6, color=COLOURS["svd"], label="singular vectors")
    right.hist(chosen.coherence_after, bins, alpha=0.6, color=COLOURS["joint_itq"], label="after Joint-ITQ")
    right.set_xscale("log")
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500) if bins[0] <= tick <= bins[-1]]
    right.set_xticks(ticks, [str(tick) for tick in ticks])
    right.minorticks_off()
    right.set_xlabel("mean coherence of the latent columns (1: flat, n: a spike)")
    right.set_ylabel("layers")
    right.set_title("What the rotation does")
    right.legend(frameon=False, fontsize=8)
    return figure


def plot_spectra(frame: pd.DataFrame) -> Figure:
    """Error over gamma on planted spectra, both bases, with the predicted break-even."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for place, (basis, part) in zip(axes, frame.groupby("basis", sort=False), strict=True):
        for method, points in part.groupby("method", sort=False):
            at = points.groupby("gamma").error.agg(["mean", "std"])
            place.errorbar(
                at.index, at["mean"], at["std"], color=COLOURS[method], marker="o", markersize=3,
                label=NAMES[method],
            )  # fmt: skip
        low = part.groupby("gamma").low_rank_error.mean()
        place.plot(low.index, low, color=COLOURS["fp16_low_rank"], label="fp16 low rank, equal bits")
        place.axvline(part.break_even.iloc[0], color="grey", linestyle=":", label="predicted break-even")
        coherence = part.coherence_before.mean()
        place.set_title(f"{basis} basis (mean coherence {coherence:.0f})")
        place.set_xlabel("gamma of the spectrum k^-gamma")
        place.grid(alpha=0.3)
    axes[0].set_ylabel("relative squared error")
    axes[1].legend(frameon=False, fontsize=8)
    return figure


def plot_distillation(small: pd.DataFrame) -> Figure:
    """Held-out perplexity per byte over the steps of the distillation, mean and range over seeds."""
    bpps = sorted(small[small.method == "svd"].bpp.unique(), reverse=True)
    figure = Figure(figsize=(5 * (len(bpps) + 1), 4.2), layout="constrained")
    grid = figure.subplots(1, len(bpps) + 1, sharey=True)
    parts = [(f"{bpp:g} bits per weight", small[(small.bpp == bpp) & ~small.residual]) for bpp in bpps]
    one = small[(small.method == "onebit") | small.residual]
    parts.append((f"{one.bpp.max():.2f} bits per weight", one))
    for axes, (title, part) in zip(grid, parts, strict=True):
        for method, curve in part.groupby("method", sort=False):
            by = np.exp(curve.set_index(["step", "seed"]).nats).groupby("step")
            label = NAMES[method] + (", residual" if curve.residual.any() else "")
            axes.plot(
                by.mean().index, by.mean(), color=COLOURS[method], marker="o", markersize=3, label=label
            )
            axes.fill_between(by.min().index, by.min(), by.max(), color=COLOURS[method], alpha=0.15)
        teachers = np.exp(part.groupby("seed").teacher_nats.first())
        axes.axhline(teachers.mean(), color="grey", linestyle=":", label="teachers")
        axes.set_title(title)
        axes.set_xlabel("optimiser steps of the distillation")
        axes.set_yscale("log")
        axes.set_yticks([8, 9, 10, 12, 14, 16], ["8", "9", "10", "12", "14", "16"], minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    grid[0].set_ylabel("held-out perplexity per byte")
    figure.suptitle("Small models: mean and range over seeds")
    return figure


def log_candidates(ctx: RunContext, frames: Frames) -> None:
    """One MLflow run for each method, with its errors and, where it was distilled, its curves."""
    layers = frames["layers"]
    for method, part in layers.groupby("method", sort=False):
        run = candidate_run(ctx, f"method/{method}")
        log_params(ctx, run, {"method": method})
        errors = part.groupby(["bpp", "residual"], dropna=False).error.mean()
        log_metrics(ctx, run, {f"error/{_point(bpp, both)}": float(v) for (bpp, both), v in errors.items()})
        small = frames.get("small")
        if small is not None:
            means = small[small.method == method].groupby(["bpp", "residual", "step"]).nats.mean()
            for (bpp, both, step), value in means.items():
                log_metrics(ctx, run, {f"nats/{_point(bpp, both)}": float(value)}, step=int(step))


def _point(bpp: float, residual: bool) -> str:
    return ("own" if pd.isna(bpp) else f"{bpp:g}bpp") + ("-residual" if residual else "")
