"""The study of `span_norm` as people read it: figures, verdicts, metrics, and one MLflow run a training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from methods.span_norm.schemes import shown
from methods.span_norm.study_claims import claims, final_loss, variant
from methods.span_norm.study_deep import COMPARED, SEARCH, deep_claims
from tasks.report.verdict import Verdict, claim_metrics, claim_verdicts
from tasks.tracking import RunContext, candidate_run, log_metrics, log_params, log_trace, set_tags

Rows = Sequence[Mapping[str, Any]]
Parts = Mapping[str, Rows]
RUN = ["candidate", "rate", "seed"]
RATIO_BAR = 0.35  # largest |ln ratio| of the gradients
NEAR = 0.16  # nats above the best run: what the right panel shows of the rates
SETTINGS = ("scheme", "init", "rate", "seed", "layers", "width", "ffn", "experts", "steps", "warmup")


def metrics_and_verdicts(parts: Parts) -> tuple[dict[str, Any], list[Verdict]]:
    """Each claim's numbers for metrics.json, and those with a bar as verdicts."""
    found = claims(parts) + (deep_claims(parts["deep"]) if "deep" in parts else [])
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
            "stage": run.get("stage", ""),
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
    frame["shown"] = [_run_name(run, usual) for _, run in frame.iterrows()]
    frame = frame.drop_duplicates(["shown", "rate", "seed"])
    rows = []
    for name, group in frame.groupby("shown", sort=False):
        row = {"placement, start": str(name)}
        for rate, runs in group.groupby("rate"):
            failed = int(runs.diverged.sum())
            row[f"rate {rate:g}"] = _spread(runs.loss) + (f" ({failed} diverged)" if failed else "")
        rows.append(row)
    return pd.DataFrame(rows).fillna("-")


def _run_name(run: pd.Series, usual: pd.Series) -> str:
    """The candidate, and in what it differs from the usual run."""
    words = {"layers": "blocks", "warmup": "warm-up steps", "experts": "experts"}
    if "/warmup" in str(run.candidate):  # its name says it
        words.pop("warmup")
    more = [f"{run[name]} {word}" for name, word in words.items() if run[name] != usual[name]]
    if run.stage == SEARCH:
        more.append("search of the rate")
    return ", ".join([shown(str(run.candidate)), *more])


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
        grid = frame[frame.part.isin(["moderate", "rates", "smaller"])].drop_duplicates(RUN)
        if len(grid):
            found["rates"] = grid
    if "range" in parts:
        named = frame[frame.part == "range"]
        shortest = named.warmup.min()
        found["range"] = named.assign(candidate=[variant(run, shortest) for _, run in named.iterrows()])
    if drops := _drops(parts.get("moderate", ())):
        found["layer_use"] = pd.DataFrame(drops)
    if "depth" in parts:
        found["depth"] = frame[frame.part == "depth"]
    if "experts" in parts:
        found["experts"] = frame[frame.part == "experts"]
    if "deep" in parts:
        found["deep"] = frame[frame.part == "deep"]
        found["deep_layer_use"] = pd.DataFrame(_drops(parts["deep"]))
    return {
        name: table if name == "deep" else table.drop(columns="stage", errors="ignore")
        for name, table in found.items()
    }


def _drops(runs: Rows) -> list[dict[str, Any]]:
    return [
        {"candidate": run["candidate"], "seed": run["seed"], "block": block, "rise": rise}
        for run in runs
        if run.get("drop")
        for block, rise in enumerate(run["drop"])
    ]


def figures(parts: Parts) -> dict[str, Figure]:
    """The study's plots, by name."""
    data = tables(parts)
    drawers = {
        "start": plot_start,
        "rates": plot_rates,
        "range": plot_rates,
        "layer_use": plot_layer_use,
        "depth": plot_depth,
        "deep": plot_deep,
        "deep_layer_use": plot_layer_use,
    }
    return {name: draw(data[name]) for name, draw in drawers.items() if name in data}


def plot_start(start: pd.DataFrame) -> Figure:
    """Gradient ratio, hidden size and similarity over depth, before any training."""
    start = start.assign(gradient_ratio=np.exp(start.log_gradient_ratio))
    figure = Figure(figsize=(14, 5.2), layout="constrained")
    panels = figure.subplots(1, 3)
    words = {
        "gradient_ratio": "gradient at block 1 / gradient at block L",
        "hidden_rms": "RMS of the last hidden state",
        "token_cosine": "mean cosine between tokens of the last state",
    }
    depths = sorted(start.layers.unique())
    for axes, (column, label) in zip(panels, words.items(), strict=True):
        for i, (candidate, group) in enumerate(start.groupby("candidate", sort=False)):
            _band(axes, group.groupby("layers")[column], shown(str(candidate)), f"C{i}")
        axes.set_ylabel(label)
        axes.set_xlabel("blocks L")
        axes.grid(alpha=0.3)
    gradients, sizes, likeness = panels
    # Exponential growth is a straight line over linear depth, growth with the root of depth one over its logarithm.
    gradients.set_yscale("log")
    gradients.axhspan(np.exp(-RATIO_BAR), np.exp(RATIO_BAR), color="black", alpha=0.08, linewidth=0)
    gradients.set_title("exponential without the scaling (grey: the bar)", fontsize=10)
    sizes.set_title("root of depth in unscaled PreNorm", fontsize=10)
    likeness.set_title("1: all tokens look alike", fontsize=10)
    for axes in (sizes, likeness):
        axes.set_xscale("log", base=2)
    sizes.set_yscale("log", base=2)
    sizes.yaxis.set_major_formatter(ScalarFormatter())
    for axes in panels:
        axes.set_xticks(depths, [str(depth) for depth in depths])
    figure.legend(*likeness.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("At the start, before any training: mean and range over seeds")
    return figure


def _band(axes: Any, groups: Any, label: str, colour: str) -> None:
    mean, low, high = groups.mean(), groups.min(), groups.max()
    axes.plot(mean.index, mean, color=colour, label=label, marker="o", markersize=3)
    axes.fill_between(mean.index, low, high, color=colour, alpha=0.15, linewidth=0)


def plot_rates(runs: pd.DataFrame) -> Figure:
    """Held-out loss over the peak rate, one point a training; a candidate's mean as a line.

    All of it, and beside it what is near the best: a failed run would press the rest into one line.
    """
    figure = Figure(figsize=(13, 5.6), layout="constrained")
    whole, near = figure.subplots(1, 2)
    for axes in (whole, near):
        _rates(axes, runs)
    whole.set_ylabel("held-out loss (nats a byte)")
    whole.set_title("All trainings (x: left the finite numbers)", fontsize=10)
    low = runs.loss.min()
    near.set_ylim(low - 0.02, low + NEAR)
    near.set_title("Near the best", fontsize=10)
    figure.legend(*near.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("Loss after training, by norm placement and start: one point a seed, the mean as a line")
    return figure


def _rates(axes: Any, runs: pd.DataFrame) -> None:
    for i, (candidate, group) in enumerate(runs.groupby("candidate", sort=False)):
        colour, mean = f"C{i % 10}", group.groupby("rate").loss.mean()
        style = "-" if i < 10 else "--"
        axes.plot(
            mean.index, mean, style, color=colour, marker="_", markersize=9, label=shown(str(candidate))
        )
        axes.scatter(group.rate, group.loss, color=colour, s=14, alpha=0.6)
        diverged = group[group.diverged]
        axes.scatter(diverged.rate, diverged.loss, color="black", marker="x", s=30)
    axes.set_xscale("log")
    ticks = sorted(runs.rate.unique())
    axes.set_xticks(ticks, [f"{1000 * rate:.3g}" for rate in ticks])
    axes.minorticks_off()
    axes.set_xlabel("peak learning rate / 0.001")
    axes.grid(alpha=0.3)


def plot_layer_use(drops: pd.DataFrame) -> Figure:
    """How much the loss rises without each block."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for i, (candidate, group) in enumerate(drops.groupby("candidate", sort=False)):
        _band(axes, group.groupby("block").rise, shown(str(candidate)), f"C{i}")
    axes.set_xlabel("block that is left out")
    axes.set_ylabel("rise of the held-out loss\n(nats a byte, linear below 0.01)")
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
        _band(axes, group.groupby("layers").loss, shown(str(candidate)), f"C{i}")
    depths = np.sort(runs.layers.unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(depths, [str(depth) for depth in depths])
    axes.set_xlabel("blocks, at about 1.2 million parameters in them")
    axes.set_ylabel("held-out loss (nats a byte)")
    axes.set_title("Depth at a fixed size: mean and range over seeds")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def plot_deep(runs: pd.DataFrame) -> Figure:
    """The search of the rates on one seed, and the comparison on the others, seed by seed."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    search, compared = figure.subplots(1, 2, width_ratios=(3, 2))
    searched, pairs = runs[runs.stage == SEARCH], runs[runs.stage == COMPARED]
    every = list(searched.candidate.unique())
    names = [name for name in every if name in set(pairs.candidate)]
    top = searched.loss.min() + NEAR
    for i, name in enumerate(every):
        mine = searched[searched.candidate == name].sort_values("rate")
        search.plot(mine.rate, mine.loss, "o-", color=f"C{i}", markersize=4, label=shown(name))
        for _, run in mine[mine.loss > top].iterrows():
            words = f"{run.loss:.2f}" + (", diverged" if run.diverged else "")
            place = {"xytext": (run.rate, top - 0.06 * NEAR * (i + 1)), "ha": "left", "fontsize": 9}
            search.annotate(f" {words} \u2191", (run.rate, top), color=f"C{i}", **place)
    search.set_ylim(searched.loss.min() - 0.1 * NEAR, top)
    search.set_xscale("log")
    ticks = sorted(searched.rate.unique())
    search.set_xticks(ticks, [f"{1000 * rate:.3g}" for rate in ticks])
    search.minorticks_off()
    search.set_xlabel("peak learning rate / 0.001")
    search.set_ylabel("held-out loss (nats a byte)")
    seed = ", ".join(str(seed) for seed in searched.seed.unique())
    search.set_title(f"The search of the rates, seed {seed}", fontsize=10)
    search.legend(frameon=False)
    for _, group in pairs.groupby("seed"):
        by_name = group.set_index("candidate").loss
        compared.plot(
            range(len(names)), [by_name.get(name, np.nan) for name in names], color="grey", linewidth=1
        )
    for i, name in enumerate(names):
        mine = pairs[pairs.candidate == name]
        compared.scatter([i] * len(mine), mine.loss, color=f"C{i}", s=25, zorder=3)
    rates = {name: pairs[pairs.candidate == name].rate.iloc[0] for name in pairs.candidate.unique()}
    compared.set_xticks(
        range(len(names)), [f"{shown(n)}\nat {1000 * rates.get(n, np.nan):.3g}" for n in names]
    )
    compared.set_xlim(-0.5, len(names) - 0.5)
    compared.set_title("Other seeds, each at its own rate; a line joins a pair", fontsize=10)
    for axes in (search, compared):
        axes.grid(alpha=0.3)
    first = runs.iloc[0]
    figure.suptitle(f"{first.layers} blocks, {first.steps} steps")
    return figure


def log_candidates(ctx: RunContext, parts: Parts) -> None:
    """One MLflow run a training with its curve; a training that two parts share is one run."""
    seen = set()
    usual = min((run["warmup"] for part, runs in parts.items() if part != "start" for run in runs), default=0)
    for part, runs in parts.items():
        if part == "start":
            continue
        for run in runs:
            name = f"{variant(run, usual)}/L{run['layers']}/rate{run['rate']:g}/seed{run['seed']}"
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
            # By its name the first metric: it is what MLflow's page of comparison opens with.
            log_metrics(ctx, run_id, {"held_out_loss": final_loss(run)})
            set_tags(ctx, run_id, {"diverged": str(run["diverged"] is not None).lower()})
            ctx.client.set_terminated(run_id)
