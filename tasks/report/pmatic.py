"""The study of `pmatic` as people read it: figures, verdicts, metrics, MLflow runs of designs, archives and pairs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from methods.pmatic.study_claims import claims
from tasks.report.verdict import Verdict, claim_metrics, claim_verdicts
from tasks.tracking import RunContext, candidate_run, log_metrics, log_params

Rows = Sequence[Mapping[str, Any]]
Parts = Mapping[str, Rows]
NAMES = {
    "base": "base PMATIC, best r",
    "base_adaptive": "base, counted helper",
    "base_paper_r": "base PMATIC, the paper's r",
    "uniform": "equal cells in log-odds",
    "rule_only": "companded, no calibration",
    "companded": "companded (default)",
    "dp": "dynamic programming",
}


def metrics_and_verdicts(parts: Parts) -> tuple[dict[str, Any], list[Verdict]]:
    """Each claim's numbers for metrics.json, and those with a bar as verdicts."""
    found = claims(parts)
    return {"claims": claim_metrics(found)}, claim_verdicts(found)


def tables(parts: Parts) -> dict[str, pd.DataFrame]:
    """The data behind the plots, by the same names."""
    found = {}
    if "design" in parts:
        found["redundancy"] = pd.DataFrame(parts["design"])
    if "sizes" in parts:
        rows = pd.DataFrame(parts["sizes"])
        rows["what"] = [_size_name(row) for row in parts["sizes"]]
        columns = ["what", "seed", "delta", "bytes", "bits_per_byte", "over_plain", "codec_bytes", "known"]
        found["sizes"] = rows[[column for column in columns if column in rows]]
    if "violations" in parts:
        found["violations"] = pd.DataFrame(parts["violations"])
    pairs = [
        {"model": model, **row}
        for part, model in (("robust", "byte Transformer"), ("llm", "language model"))
        for row in parts.get(part, ())
        if "pair" in row
    ]
    if pairs:
        found["computations"] = pd.DataFrame(pairs)
    archives = [row for row in parts.get("llm", ()) if "archive" in row]
    if archives:
        found["llm_sizes"] = pd.DataFrame(archives)
    return found


def _size_name(row: Mapping[str, Any]) -> str:
    if "peer" in row:
        return f"{row['peer']}{', text known' if row['known'] else ''}"
    names = {
        "ideal": "model's own cost",
        "plain": "plain arithmetic coding",
        "ours": "PMATIC",
        "ours_flat": "PMATIC, flat tree",
        "ours_measured": "PMATIC, measured bound",
        "base": "base PMATIC, best r",
        "base_paper_r": "base PMATIC, the paper's r",
    }
    shown = names[row["archive"]]
    return f"{shown}, delta {row['delta']:g}" if row["delta"] and "measured" not in shown else shown


def _spread(values: pd.Series) -> str:
    shown = f"{values.mean():.3f}"
    return f"{shown} ± {values.std(ddof=1):.3f}" if len(values) > 1 else shown


def summary_table(parts: Parts) -> pd.DataFrame:
    """Bits a byte of every archive, mean ± standard deviation over seeds; who decoded what."""
    rows = []
    data = tables(parts)
    if "sizes" in data:
        for what, group in data["sizes"].groupby("what", sort=False):
            rows.append({"what": what, "measured": f"{_spread(group.bits_per_byte)} bits a byte"})
    if "llm_sizes" in data:
        for _, row in data["llm_sizes"].iterrows():
            rows.append(
                {"what": f"language model, {row.archive}", "measured": f"{row.bits_per_byte:.3f} bits a byte"}
            )
    if "computations" in data:
        for (model, pair), group in data["computations"].groupby(["model", "pair"], sort=False):
            told = (
                f"{group.pmatic_decoded.sum()} of {group.pmatic_files.sum()} decoded, plain arithmetic coding "
                f"{group.plain_decoded.sum()}; mismatch {group.mismatch_largest.max():.2g}"
            )
            rows.append({"what": f"{model}, {pair}", "measured": told})
    if "violations" in data:
        for _, row in data["violations"].iterrows():
            told = f"{row.decoded} decoded, {row.told} reported, {row.wrong} wrong of {row.streams}"
            rows.append({"what": f"{row.noise} noise, {row.times:g} times the bound", "measured": told})
    if "redundancy" in data:
        frame = data["redundancy"]
        chosen = frame[(frame.tree == "flat") & frame.design.isin(["base", "companded", "dp"])]
        for (design, delta), group in chosen.groupby(["design", "delta"], sort=False):
            rows.append(
                {
                    "what": f"expected redundancy, {NAMES[str(design)]}, delta {delta:g}",
                    "measured": f"{group.redundancy.mean():.4f} bits a byte",
                }
            )
    return pd.DataFrame(rows)


def figures(parts: Parts) -> dict[str, Figure]:
    """The study's plots, by name."""
    data = tables(parts)
    drawers = {
        "redundancy": plot_redundancy,
        "sizes": plot_sizes,
        "violations": plot_violations,
        "computations": plot_computations,
    }
    return {name: draw(data[name]) for name, draw in drawers.items() if name in data}


def plot_redundancy(rows: pd.DataFrame) -> Figure:
    """Redundancy over the bound, by design; mean and range over seeds."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, tree in zip(panels, ("flat", "huffman"), strict=True):
        for i, (design, words) in enumerate(NAMES.items()):
            group = rows[(rows.tree == tree) & (rows.design == design)].groupby("delta").redundancy
            if not len(group):
                continue
            mean = group.mean()
            style = "o" if design == "base_paper_r" else "-o"
            axes.plot(mean.index, mean, style, color=f"C{i}", markersize=4, label=words)
            axes.fill_between(mean.index, group.min(), group.max(), color=f"C{i}", alpha=0.15, linewidth=0)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("delta, bound in total variation (log-odds bound: 4 delta)")
        axes.set_title(f"{tree} tree")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("expected redundancy (bits a byte): mean and range")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def plot_sizes(rows: pd.DataFrame) -> Figure:
    """Bits a byte of every archive and peer."""
    frame = rows[~rows.what.isin(["model"])]
    groups = frame.groupby("what", sort=False).bits_per_byte
    mean, spread = groups.mean().sort_values(ascending=False), groups.std().fillna(0)
    figure = Figure(figsize=(10, 0.27 * len(mean) + 1.2), layout="constrained")
    axes = figure.subplots()
    colours = [
        "C0" if "PMATIC" in name and "base" not in name else "C1" if "base" in name else "0.6"
        for name in mean.index
    ]
    axes.barh(mean.index, mean, xerr=spread[mean.index], color=colours, ecolor="0.3")
    axes.set_xlabel("bits a byte, mean and standard deviation over places")
    axes.set_title("Whole archives of a text (blue: ours, orange: base PMATIC)")
    axes.grid(axis="x", alpha=0.3)
    return figure


def plot_violations(rows: pd.DataFrame) -> Figure:
    """Streams by their fate, over the size of the noise."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (noise, group) in zip(panels, rows.groupby("noise", sort=False), strict=True):
        below = np.zeros(len(group))
        for name, colour in (("decoded", "C2"), ("told", "C1"), ("wrong", "C3")):
            share = (group[name] / group.streams).to_numpy()
            axes.bar([f"{t:g}" for t in group.times], share, bottom=below, color=colour, label=name)
            below = below + share
        axes.set_title(f"{noise} noise")
        axes.set_xlabel("size of the noise, in units of the declared bound")
    panels[0].set_ylabel("share of streams of 100 bytes")
    panels[0].legend(frameon=False)
    return figure


def plot_computations(rows: pd.DataFrame) -> Figure:
    """Who decodes what another computation of the same model wrote."""
    labels = rows.model + ", " + rows.pair
    groups = rows.assign(label=labels).groupby("label", sort=False)
    figure = Figure(figsize=(9, 0.7 * len(groups) + 1.4), layout="constrained")
    axes = figure.subplots()
    place = np.arange(len(groups))
    for shift, (name, colour, words) in enumerate(
        (
            ("pmatic", "C0", "PMATIC, bound measured on other text"),
            ("plain", "0.6", "plain arithmetic coding"),
        )
    ):
        share = groups[f"{name}_decoded"].sum() / groups[f"{name}_files"].sum()
        axes.barh(place + 0.36 * shift - 0.18, share, height=0.34, color=colour, label=words)
    axes.set_yticks(place, list(groups.groups))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.02)
    axes.set_xlabel("share of files decoded by the second computation")
    axes.legend(frameon=False, loc="lower right")
    return figure


def log_candidates(ctx: RunContext, parts: Parts) -> None:
    """One MLflow run a design and bound, archive, pair of computations and kind of noise."""
    for name, params, values in _candidates(parts):
        run_id = candidate_run(ctx, name)
        log_params(ctx, run_id, params)
        log_metrics(ctx, run_id, {key: float(value) for key, value in values.items() if np.isfinite(value)})
        ctx.client.set_terminated(run_id)


def _candidates(parts: Parts) -> list[tuple[str, dict[str, Any], dict[str, float]]]:
    found = []
    for name, frame in tables(parts).items():
        keys = {
            "redundancy": ["design", "tree", "delta"],
            "sizes": ["what"],
            "violations": ["noise", "times"],
            "computations": ["model", "pair"],
            "llm_sizes": ["archive"],
        }[name]
        for group, rows in frame.groupby(keys, sort=False):
            label = "/".join(
                [name, *(f"{part:g}" if isinstance(part, float) else str(part) for part in group)]
            )
            numbers = rows.select_dtypes("number").drop(columns=["seed", *keys], errors="ignore").mean()
            params = dict(zip(keys, group, strict=True))
            found.append((label, params, {f"{name}/{key}": value for key, value in numbers.items()}))
    return found
