"""The study of `rope_psd` as people read it: depth profiles, view gaps, the grid, and one MLflow run a training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from methods.rope_psd.study import GRID_SKIPS, GRID_WEIGHTS
from methods.rope_psd.study_claims import answers, average, claims, unevenness, worst
from tasks.report.verdict import Verdict, claim_metrics, claim_verdicts
from tasks.tracking import RunContext, candidate_run, log_metrics, log_params, log_trace

Rows = Sequence[Mapping[str, Any]]
Parts = Mapping[str, Rows]
SMALL = ("main", "ablation", "variants", "grid")
WHERE = {"answers": "target length", "answers_beyond": "twice that, with YaRN"}
# What a candidate is called where people read of it.
NAMES = {
    "clm": "plain training",
    "clm_longer": "plain training, 1.6 times the steps",
    "longce": "LongCE",
    "pose": "PoSE (loss under the moved view)",
    "pose_rows": "PoSE (rows from two places)",
    "psd_skip": "self-distillation, gap",
    "psd_cyclic": "self-distillation, cyclic shift",
    "psd_longce": "self-distillation, gap, with LongCE",
    "nope_view": "second view without positions",
    "chunk_view": "second view with permuted chunks",
    "forward_kl": "self-distillation, forward divergence",
}
DRAWN = ("clm", "clm_longer", "pose", "psd_skip", "psd_cyclic", "nope_view", "chunk_view")


def metrics_and_verdicts(parts: Parts) -> tuple[dict[str, Any], list[Verdict]]:
    """Each claim's numbers for metrics.json, and those with a bar as verdicts."""
    found = claims(parts)
    return {"claims": claim_metrics(found)}, claim_verdicts(found)


def _small(parts: Parts) -> list[Mapping[str, Any]]:
    return [row for part in SMALL for row in parts.get(part, ())]


def shown_table(parts: Parts) -> pd.DataFrame:
    """What each candidate came to, mean ± standard deviation over seeds."""
    rows, table = _small(parts), []
    for name in dict.fromkeys(str(row["candidate"]) for row in rows):
        own = [row for row in rows if row["candidate"] == name]
        near, far = answers(rows, name), answers(rows, name, "answers_beyond")
        table.append(
            {
                "candidate": name,
                "steps": str(own[0]["steps"]),
                "accuracy %": _spread(100 * average(near)),
                "worst depth %": _spread(100 * worst(near)),
                "spread over depths": _spread(100 * unevenness(near)),
                "accuracy % at twice the length": _spread(100 * average(far)),
                "loss": _spread([row["ce"] for row in own], 4),
                "view KL": _spread([row["gaps"][1]["kl"] for row in own], 3),
                "loss under the moved view": _spread([row["gaps"][1]["perturbed_ce"] for row in own], 4),
            }
        )
    real = parts.get("real", ())
    for name in dict.fromkeys(str(row["candidate"]) for row in real):
        own = [row for row in real if row["candidate"] == name]
        table.append(
            {
                "candidate": f"real/{name}",
                "steps": str(own[0]["steps"]),
                "loss": _spread([row["ce"] for row in own], 4),
                "view KL": _spread([row["gaps"][0]["kl"] for row in own], 3),
                "loss under the moved view": _spread([row["gaps"][0]["perturbed_ce"] for row in own], 4),
            }
        )
    return pd.DataFrame(table).fillna("-")


def _spread(values: Any, digits: int = 1) -> str:
    found = np.asarray(values, dtype=float)
    told = f"{found.mean():.{digits}f}"
    return f"{told} ± {found.std(ddof=1):.{digits}f}" if len(found) > 1 else told


def tables(parts: Parts) -> dict[str, pd.DataFrame]:
    """The data behind the plots, by the same names."""
    rows, found = _small(parts), {}
    depths = [
        {
            "candidate": row["candidate"],
            "seed": row["seed"],
            "where": words,
            "length": row[where]["length"],
            "depth": depth,
            "accuracy": float(np.mean(right)),
        }
        for row in rows
        for where, words in WHERE.items()
        for depth, right in zip(row[where]["depths"], row[where]["correct"], strict=True)
        if "/" not in row["candidate"]
    ]
    if depths:
        found["depths"] = pd.DataFrame(depths)
    gaps = [
        {"model": model, "candidate": row["candidate"], "seed": row["seed"], **gap}
        for model, part in (("small", rows), ("real", parts.get("real", ())))
        for row in part
        for gap in row["gaps"]
        if "/" not in row["candidate"]
    ]
    if gaps:
        found["gaps"] = pd.DataFrame(gaps)
    grid = [
        {
            "weight": float(row["candidate"].split("lambda")[1].split("/")[0]),
            "skip": float(row["candidate"].split("/Y")[1]),
            "seed": row["seed"],
            "worst": float(worst(np.asarray(row["answers"]["correct"], dtype=float))),
            "mean": float(np.mean(row["answers"]["correct"])),
            "view_kl": row["gaps"][1]["kl"],
            "loss": row["ce"],
        }
        for row in parts.get("grid", ())
    ]
    if grid:
        found["grid"] = pd.DataFrame(grid)
    return found


def figures(parts: Parts) -> dict[str, Figure]:
    """The study's plots, by name."""
    drawers = {"depths": plot_depths, "gaps": plot_gaps, "grid": plot_grid}
    return {name: drawers[name](table) for name, table in tables(parts).items()}


def plot_depths(depths: pd.DataFrame) -> Figure:
    """Accuracy over the evidence's depth, mean and range over seeds, at both lengths."""
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, where in zip(panels, WHERE.values(), strict=True):
        part = depths[depths["where"] == where]
        for i, name in enumerate(n for n in DRAWN if n in set(part.candidate)):
            groups = part[part.candidate == name].groupby("depth").accuracy
            mean, low, high = groups.mean(), groups.min(), groups.max()
            axes.plot(mean.index, 100 * mean, color=f"C{i}", marker="o", markersize=3, label=NAMES[name])
            axes.fill_between(mean.index, 100 * low, 100 * high, color=f"C{i}", alpha=0.12, linewidth=0)
        axes.set_title(f"{int(part.length.iloc[0])} tokens: {where}")
        axes.set_xlabel("depth of the evidence (0 = start of the prompt)")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("right answers (%), mean and range over seeds")
    panels[1].legend(frameon=False, fontsize=8)
    figure.suptitle("Right answers by place of the evidence")
    return figure


def plot_gaps(gaps: pd.DataFrame) -> Figure:
    """View KL over the gap, a line a candidate."""
    models = list(dict.fromkeys(gaps.model))
    figure = Figure(figsize=(6.2 * len(models), 4.6), layout="constrained")
    for axes, model in zip(np.atleast_1d(figure.subplots(1, len(models))), models, strict=True):
        part = gaps[gaps.model == model]
        for i, (name, rows) in enumerate(part.groupby("candidate", sort=False)):
            kl = rows.groupby("gap").kl
            style = "-" if i < 10 else "--"
            axes.plot(
                kl.mean().index,
                kl.mean(),
                style,
                color=f"C{i % 10}",
                marker="o",
                markersize=3,
                label=NAMES[str(name)],
            )
            axes.fill_between(
                kl.mean().index, kl.min(), kl.max(), color=f"C{i % 10}", alpha=0.12, linewidth=0
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(part.gap.unique()), [str(gap) for gap in sorted(part.gap.unique())])
        axes.set_yscale("log")
        axes.set_xlabel("gap between prefix and suffix (tokens)")
        axes.set_ylabel("divergence from the standard view (nats a token)")
        axes.set_title(f"{model} model: mean and range over seeds")
        axes.grid(alpha=0.3, which="both")
        axes.legend(frameon=False, fontsize=8)
    return figure


def plot_grid(grid: pd.DataFrame) -> Figure:
    """Worst-depth accuracy and view KL over the weight and the largest gap."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (column, words) in zip(
        figure.subplots(1, 2),
        {"worst": "right answers at the worst depth (%)", "view_kl": "view KL at one length (nats)"}.items(),
        strict=True,
    ):
        table = grid.pivot_table(index="weight", columns="skip", values=column)
        table = table.reindex(index=GRID_WEIGHTS, columns=GRID_SKIPS) * (100 if column == "worst" else 1)
        image = axes.imshow(table.to_numpy(), cmap="viridis", aspect="auto")
        for (i, j), value in np.ndenumerate(table.to_numpy()):
            dark = bool(image.norm(value) < 0.6)
            axes.text(
                j, i, f"{value:.3g}", ha="center", va="center", color="white" if dark else "black", fontsize=9
            )
        axes.set_xticks(range(len(GRID_SKIPS)), [f"{skip:g}" for skip in GRID_SKIPS])
        axes.set_yticks(range(len(GRID_WEIGHTS)), [f"{weight:g}" for weight in GRID_WEIGHTS])
        axes.set_xlabel("largest gap (target lengths)")
        axes.set_ylabel("weight of the divergence")
        axes.set_title(words)
        figure.colorbar(image, ax=axes)
    return figure


def log_candidates(ctx: RunContext, parts: Parts) -> None:
    """One MLflow run a training with its curve."""
    for part, rows in parts.items():
        for row in rows:
            run_id = candidate_run(ctx, f"{part}/{row['candidate']}/seed{row['seed']}")
            log_params(ctx, run_id, {name: row[name] for name in ("candidate", "seed", "steps")})
            log_trace(
                ctx,
                run_id,
                [
                    {"step": one["step"], "train/clm": one["clm"], "train/view_kl": one["kl"]}
                    for one in row["curve"]
                ],
            )
            metrics = {"validation/loss": row["ce"]}
            metrics |= {f"validation/view_kl_gap_{gap['gap']}": gap["kl"] for gap in row["gaps"]}
            for where in WHERE:
                if where in row:
                    right = np.asarray(row[where]["correct"], dtype=float)
                    metrics |= {f"{where}/mean": float(right.mean()), f"{where}/worst": float(worst(right))}
            log_metrics(ctx, run_id, metrics)
            ctx.client.set_terminated(run_id)
