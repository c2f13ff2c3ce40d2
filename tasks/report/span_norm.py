"""The study of `span_norm` as people read it: figures, verdicts, metrics, and one MLflow run a training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from methods.span_norm.study_claims import claims, final_loss
from tasks.report.verdict import Verdict, claim_metrics, claim_verdicts
from tasks.tracking import RunContext, candidate_run, log_metrics, log_params, log_trace, set_tags

Rows = Sequence[Mapping[str, Any]]
Parts = Mapping[str, Rows]
SETTINGS = ("scheme", "init", "rate", "seed", "layers", "width", "ffn", "experts", "steps", "warmup")


def metrics_and_verdicts(parts: Parts) -> tuple[dict[str, Any], list[Verdict]]:
    """Each claim's numbers for metrics.json, and those with a bar as verdicts."""
    found = claims(parts)
    return {"claims": claim_metrics(found)}, claim_verdicts(found)


def _trained(parts: Parts) -> pd.DataFrame:
    """All trainings, each once, without their curves."""
    rows = [
        {**{name: run[name] for name in SETTINGS}, "candidate": run["candidate"], "loss": final_loss(run)}
        | {
            "diverged": run["diverged"] is not None,
            "largest_grad_norm": run["largest_grad_norm"],
            "parameters": run["parameters"],
            "part": part,
        }
        for part, found in parts.items()
        if part != "start"
        for run in found
    ]
    return pd.DataFrame(rows)


def loss_table(parts: Parts) -> pd.DataFrame:
    """Held-out loss of every candidate at each rate, mean ± standard deviation over seeds."""
    frame = _trained(parts)
    if not len(frame):
        return pd.DataFrame([{"trainings": "none in this run"}])
    usual = frame.iloc[0]
    frame["shown"] = [_shown(run, usual) for _, run in frame.iterrows()]
    frame = frame.drop_duplicates(["shown", "rate", "seed"])
    rows = []
    for shown, group in frame.groupby("shown", sort=False):
        row = {"candidate": str(shown)}
        for rate, runs in group.groupby("rate"):
            failed = int(runs.diverged.sum())
            row[f"rate {rate:g}"] = _spread(runs.loss) + (f" ({failed} diverged)" if failed else "")
        rows.append(row)
    return pd.DataFrame(rows).fillna("-")


def _shown(run: pd.Series, usual: pd.Series) -> str:
    """The candidate, and in what it differs from the usual run."""
    words = {"layers": "blocks", "warmup": "warm-up steps", "experts": "experts"}
    more = [f"{run[name]} {word}" for name, word in words.items() if run[name] != usual[name]]
    return ", ".join([str(run.candidate), *more])


def _spread(values: pd.Series) -> str:
    return f"{values.mean():.3f} ± {values.std(ddof=1):.3f}" if len(values) > 1 else f"{values.mean():.3f}"


def tables(parts: Parts) -> dict[str, pd.DataFrame]:
    """The data behind the plots, by the same names."""
    found: dict[str, pd.DataFrame] = {}
    if "start" in parts:
        columns = ["candidate", "layers", "seed", "log_gradient_ratio", "hidden_rms", "token_cosine"]
        found["start"] = pd.DataFrame(parts["start"])[columns]
    frame = _trained(parts)
    if len(frame):
        found["rates"] = frame[frame.part.isin(["moderate", "rates", "range"])]
    if drops := _drops(parts):
        found["layer_use"] = pd.DataFrame(drops)
    if "depth" in parts:
        found["depth"] = frame[frame.part == "depth"]
    if "experts" in parts:
        found["experts"] = frame[frame.part == "experts"]
    return found


def _drops(parts: Parts) -> list[dict[str, Any]]:
    return [
        {"candidate": run["candidate"], "seed": run["seed"], "block": block, "rise": rise}
        for run in parts.get("moderate", ())
        if run.get("drop")
        for block, rise in enumerate(run["drop"])
    ]


def figures(parts: Parts) -> dict[str, Figure]:
    """The study's plots, by name."""
    data = tables(parts)
    drawers = {"start": plot_start, "rates": plot_rates, "layer_use": plot_layer_use, "depth": plot_depth}
    return {name: draw(data[name]) for name, draw in drawers.items() if name in data}


def plot_start(start: pd.DataFrame) -> Figure:
    """Gradient ratio, hidden size and similarity over depth, before any training."""
    figure = Figure(figsize=(14, 4.6), layout="constrained")
    panels = figure.subplots(1, 3)
    shown = {
        "log_gradient_ratio": "ln of the gradient at block 1 over block L",
        "hidden_rms": "RMS of the last hidden state",
        "token_cosine": "mean cosine between tokens of the last state",
    }
    for axes, (column, words) in zip(panels, shown.items(), strict=True):
        for i, (candidate, group) in enumerate(start.groupby("candidate", sort=False)):
            _band(axes, group.groupby("layers")[column], str(candidate), f"C{i}")
        axes.set_xscale("log", base=2)
        depths = sorted(start.layers.unique())
        axes.set_xticks(depths, [str(depth) for depth in depths])
        axes.set_xlabel("blocks L")
        axes.set_ylabel(words)
        axes.grid(alpha=0.3)
    panels[0].set_yscale("symlog", linthresh=0.5)
    panels[2].legend(frameon=False, fontsize=8)
    figure.suptitle("At the start, before any training: mean and range over seeds")
    return figure


def _band(axes: Any, groups: Any, label: str, colour: str) -> None:
    mean, low, high = groups.mean(), groups.min(), groups.max()
    axes.plot(mean.index, mean, color=colour, label=label, marker="o", markersize=3)
    axes.fill_between(mean.index, low, high, color=colour, alpha=0.15, linewidth=0)


def plot_rates(runs: pd.DataFrame) -> Figure:
    """Held-out loss over the peak rate, one point a training; a candidate's mean as a line."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    usual = runs[runs.part != "range"].drop_duplicates(["candidate", "rate", "seed"])
    for i, (candidate, group) in enumerate(usual.groupby("candidate", sort=False)):
        colour = f"C{i % 10}"
        style = "-" if i < 10 else "--"
        mean = group.groupby("rate").loss.mean()
        axes.plot(mean.index, mean, color=colour, linestyle=style, label=str(candidate))
        axes.scatter(group.rate, group.loss, color=colour, s=14, alpha=0.7)
        diverged = group[group.diverged]
        axes.scatter(diverged.rate, diverged.loss, color="black", marker="x", s=30)
    axes.set_xscale("log")
    ticks = sorted(usual.rate.unique())
    axes.set_xticks(ticks, [f"{rate:g}" for rate in ticks], rotation=30)
    axes.minorticks_off()
    axes.set_xlabel("peak learning rate")
    axes.set_ylabel("held-out loss (nats a byte), one point a seed")
    axes.set_title("Loss after training, by norm placement and start (x: left the finite numbers)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    return figure


def plot_layer_use(drops: pd.DataFrame) -> Figure:
    """How much the loss rises without each block."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for i, (candidate, group) in enumerate(drops.groupby("candidate", sort=False)):
        _band(axes, group.groupby("block").rise, str(candidate), f"C{i}")
    axes.set_xlabel("block that is left out")
    axes.set_ylabel("rise of the held-out loss (nats a byte)")
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_title("What each block does: mean and range over seeds")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def plot_depth(runs: pd.DataFrame) -> Figure:
    """Held-out loss over depth at a fixed number of parameters in the blocks."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for i, (candidate, group) in enumerate(runs.groupby("candidate", sort=False)):
        _band(axes, group.groupby("layers").loss, str(candidate), f"C{i}")
    depths = np.sort(runs.layers.unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(depths, [str(depth) for depth in depths])
    axes.set_xlabel("blocks, at about 1.2 million parameters in them")
    axes.set_ylabel("held-out loss (nats a byte)")
    axes.set_title("Depth at a fixed size: mean and range over seeds")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def log_candidates(ctx: RunContext, parts: Parts) -> None:
    """One MLflow run a training with its curve; a training that two parts share is one run."""
    seen = set()
    for part, runs in parts.items():
        if part == "start":
            continue
        for run in runs:
            name = f"{run['candidate']}/L{run['layers']}/rate{run['rate']:g}/seed{run['seed']}"
            name += f"/warmup{run['warmup']}" if part == "range" else ""
            name += f"/experts{run['experts']}" if run["experts"] else ""
            if name in seen:
                continue
            seen.add(name)
            run_id = candidate_run(ctx, name)
            log_params(ctx, run_id, {setting: run[setting] for setting in SETTINGS})
            rows = [
                {"step": row["step"], "train/loss": row["loss"], "train/grad_norm": row["grad_norm"]}
                for row in run["curve"]
                if np.isfinite([row["loss"], row["grad_norm"]]).all()
            ]
            log_trace(ctx, run_id, rows)
            log_metrics(ctx, run_id, {"validation/loss": final_loss(run)})
            set_tags(ctx, run_id, {"diverged": str(run["diverged"] is not None).lower()})
            ctx.client.set_terminated(run_id)
