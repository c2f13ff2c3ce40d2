"""The lifecycle's comparison: table, plot, metrics and verdicts from the candidates and their evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from tasks.candidates import Candidate, best_on_select
from tasks.evaluate.items import MAIN_SCORE, main_tasks, read_items, split_of
from tasks.report.comparison import Interval, paired_difference, score, shown_table
from tasks.report.summaries import noted
from tasks.report.verdict import Verdict
from tasks.step import StepResult

# "No worse" is shown when the whole interval lies above minus this; noise alone shows nothing.
MARGIN = 0.02
STAGE_COLOURS = {"base": "#444444", "expert": "#1f77b4", "merge": "#2ca02c", "compressed": "#d62728"}


@dataclass(frozen=True)
class Comparison:
    """Everything that `publish` needs.

    Attributes:
        metrics: for metrics.json; equal for equal inputs.
        shown: the table with cells as text.
        tables: data behind each figure.
        figures: by the same names.
        verdicts: the lifecycle's claims.
        best: the chosen candidate.
        notes: times, how the best was chosen.
    """

    metrics: dict[str, Any]
    shown: pd.DataFrame
    tables: dict[str, pd.DataFrame]
    figures: dict[str, Figure]
    verdicts: list[Verdict]
    best: str
    notes: str


def compare(candidates: Sequence[Candidate], scores: Mapping[str, StepResult]) -> Comparison:
    """Put the candidates side by side.

    Args:
        candidates: in the order of the table.
        scores: the evaluation of each, by name.
    """
    items = {name: read_items(result.path) for name, result in scores.items()}
    means = {name: score(frame, MAIN_SCORE, main_tasks(frame)) for name, frame in items.items()}
    split = split_of(next(iter(scores.values())).summary["metrics"])
    best, how = _choose(candidates, means, split)
    metrics = {c.name: dict(scores[c.name].summary["metrics"]) for c in candidates}
    for name, interval in means.items():
        metrics[name][f"{split}/mean/{MAIN_SCORE}_low"] = interval.low
        metrics[name][f"{split}/mean/{MAIN_SCORE}_high"] = interval.high
    frontier = _frontier(candidates, scores, means)
    curves = _stopping_curves(candidates)
    tables = {"quality_vs_size": frontier}
    figures = {"quality_vs_size": plot_quality(frontier, _score_name(next(iter(items.values()))), split)}
    if len(curves):
        tables["stopping"] = curves
        figures["stopping"] = plot_stopping(curves)
    return Comparison(
        metrics={"candidates": metrics, "best": best},
        shown=shown_table(
            [_row(c, scores[c.name], means[c.name], c.name == best, split) for c in candidates]
        ),
        tables=tables,
        figures=figures,
        verdicts=verdicts(candidates, items),
        best=best,
        notes="\n\n".join(
            part for part in (how, noted(candidates), _outlooks(scores), _times(candidates, scores)) if part
        ),
    )


def _choose(candidates: Sequence[Candidate], means: Mapping[str, Interval], split: str) -> tuple[str, str]:
    base = next((c for c in candidates if c.stage == "base"), None)
    chosen = best_on_select([c for c in candidates if c.stage == "merge"], base)
    top = max(means, key=lambda name: means[name].mean)
    if chosen is None:
        return top, f"Best candidate: `{top}`, by the {split} mean, so its score is slightly optimistic."
    why = "no merge beats it on the select parts" if chosen.stage == "base" else "chosen on the select parts"
    return chosen.name, (
        f"Best candidate: `{chosen.name}`, {why}. Highest {split} mean: `{top}` ({100 * means[top].mean:.1f}%)."
    )


def megabytes(size: float) -> str:
    """A size in bytes as megabytes; a model that is not large keeps a decimal, a tiny one its first figure."""
    value = size / 1e6
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.1 else f"{value:.1g}"


def plus_minus(value: float, half: float) -> str:
    """A value with its half interval, which a narrow table does not break over lines."""
    return f"{value:.1f} ± {half:.1f}".replace(" ", "\N{NO-BREAK SPACE}")


def _row(
    candidate: Candidate, result: StepResult, mean: Interval, best: bool, split: str
) -> dict[str, object]:
    metrics = result.summary["metrics"]
    tasks = sorted({name.split("/")[1] for name in metrics if name.startswith(f"{split}/")} - {"mean"})
    row: dict[str, object] = {"candidate": f"**{candidate.name}**" if best else candidate.name}
    for task in tasks:
        value, error = metrics[f"{split}/{task}/{MAIN_SCORE}"], metrics[f"{split}/{task}/{MAIN_SCORE}_stderr"]
        row[f"{task} {_unit(metrics, split, task)}"] = plus_minus(100 * value, 196 * error)
    row["mean %"] = plus_minus(100 * mean.mean, 100 * mean.half)
    if f"{split}/mean/bits_per_byte" in metrics:
        row["answer bits/byte"] = f"{metrics[f'{split}/mean/bits_per_byte']:.3f}"
    if "text/bits_per_byte" in metrics:
        row["text bits/byte"] = f"{metrics['text/bits_per_byte']:.3f}"
    row["file MB"] = megabytes(metrics["size/bytes"])
    row["non-zero %"] = f"{100 * metrics['size/nonzero_share']:.0f}"
    speed = result.timings.get("forward_tokens_per_second")
    row["tokens/s"] = f"{speed:.0f}" if speed else "-"
    return row


def _unit(metrics: Mapping[str, float], split: str, task: str) -> str:
    """Free text has nothing to choose from: its score is the mean probability per byte, no accuracy."""
    return "%" if f"{split}/{task}/acc" in metrics else "prob/byte %"


def _score_name(items: pd.DataFrame) -> str:
    """What the mean over tasks is a mean of."""
    return "accuracy" if (items.choices > 1).any() else "probability per byte"


def _frontier(
    candidates: Sequence[Candidate], scores: Mapping[str, StepResult], means: Mapping[str, Interval]
) -> pd.DataFrame:
    rows = []
    for candidate in candidates:
        metrics, mean = scores[candidate.name].summary["metrics"], means[candidate.name]
        rows.append(
            {
                "candidate": candidate.name,
                "stage": candidate.stage,
                "nominal_mb": candidate.facts.get("size/nominal_bytes", metrics["size/nominal_bytes"]) / 1e6,
                "file_mb": metrics["size/bytes"] / 1e6,
                "mean_score": mean.mean,
                "low": mean.low,
                "high": mean.high,
            }
        )
    return pd.DataFrame(rows)


def plot_quality(frontier: pd.DataFrame, score_name: str = "accuracy", split: str = "test") -> Figure:
    """Mean score against size, one point a candidate with its 95 % interval."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    ordered = frontier.sort_values("mean_score").reset_index(drop=True)
    for stage, group in ordered.groupby("stage", sort=False):
        axes.errorbar(
            100 * group.mean_score,
            group.index,
            xerr=[100 * (group.mean_score - group.low), 100 * (group.high - group.mean_score)],
            fmt="none",
            ecolor=STAGE_COLOURS[stage],
            alpha=0.5,
            capsize=3,
        )
        axes.scatter(
            100 * group.mean_score,
            group.index,
            s=20 + 180 * group.nominal_mb / frontier.nominal_mb.max(),
            color=STAGE_COLOURS[stage],
            label=stage,
            zorder=3,
        )
    labels = [f"{row.candidate}  ({megabytes(1e6 * row.nominal_mb)} MB)" for row in ordered.itertuples()]
    axes.set_yticks(ordered.index, labels)
    axes.set_xlabel(f"mean {score_name} over tasks, {split} part (%), 95 % interval")
    axes.set_title("Every candidate; point area and MB: size without zeros")
    axes.legend(loc="lower right", frameon=False)
    axes.grid(axis="x", alpha=0.3)
    return figure


def _stopping_curves(candidates: Sequence[Candidate]) -> pd.DataFrame:
    rows = [
        {"expert": candidate.name, "stopping": candidate.method, "task": candidate.task, **row}
        for candidate in candidates
        if candidate.stage == "expert"
        for row in candidate.facts.get("trace", [])
    ]
    # A trace that lay in a file has its names in another order.
    first = ["expert", "stopping", "task", "step", "stop_score"]
    curves = pd.DataFrame(rows)
    return curves[[name for name in first if name in curves] + sorted(set(curves) - set(first))]


def plot_stopping(curves: pd.DataFrame) -> Figure:
    """Stop-split score over training steps, one line an expert; the line ends where training stopped."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    colours = {task: f"C{i}" for i, task in enumerate(dict.fromkeys(curves.task))}
    for (_, stopping, task), group in curves.dropna(subset=["stop_score"]).groupby(
        ["expert", "stopping", "task"], sort=False
    ):
        style = "-" if stopping == "merge_aware" else "--"
        axes.plot(group.step, group.stop_score, style, color=colours[task], label=f"{task}, {stopping}")
        axes.plot(group.step.iloc[-1], group.stop_score.iloc[-1], "o", color=colours[task], markersize=4)
    axes.set_xlabel("optimiser step")
    axes.set_ylabel("score on the stop part (higher is better)")
    axes.set_title("Training of the experts, and where each stopped")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def verdicts(candidates: Sequence[Candidate], items: Mapping[str, pd.DataFrame]) -> list[Verdict]:
    """The claims of the lifecycle, each with its numbers; those that cannot be tested here are left out."""
    found = []
    base = next((c for c in candidates if c.stage == "base"), None)
    experts = [c for c in candidates if c.stage == "expert" and c.method != "own_optimum" and c.task]
    merges = [c for c in candidates if c.stage == "merge" and "select_score" in c.facts]
    if base and experts:
        gains = {
            e.task: paired_difference(items[e.name], items[base.name], MAIN_SCORE, [e.task]) for e in experts
        }
        found.append(
            Verdict(
                claim="each expert beats the base on its own task",
                held=all(gain.low > 0 for gain in gains.values()),
                measured="; ".join(f"{task}: {gain.points()}" for task, gain in gains.items()),
            )
        )
    if base and merges:
        best = max(merges, key=lambda c: c.facts["select_score"])
        gain = paired_difference(items[best.name], items[base.name], MAIN_SCORE, main_tasks(items[base.name]))
        found.append(
            Verdict(
                claim="the best merge beats the base on the mean of all tasks",
                held=gain.low > 0,
                measured=f"{best.name}: {gain.points()}",
            )
        )
    found.extend(_stopping_verdicts(candidates, items))
    return found


def _stopping_verdicts(candidates: Sequence[Candidate], items: Mapping[str, pd.DataFrame]) -> list[Verdict]:
    """Merge-aware stopping against the experts' own optimum, method by method."""
    by_name = {c.name: c for c in candidates}
    pairs = [
        (by_name[name.removesuffix("/own_optimum")], by_name[name])
        for name in by_name
        if name.startswith("merge/")
        and name.endswith("/own_optimum")
        and name.removesuffix("/own_optimum") in by_name
    ]
    if not pairs:
        return []
    differences = {
        ours.name: paired_difference(
            items[ours.name], items[theirs.name], MAIN_SCORE, main_tasks(items[ours.name])
        )
        for ours, theirs in pairs
    }
    steps = {
        rule: sum(c.facts.get("steps", 0) for c in candidates if c.stage == "expert" and c.method == rule)
        for rule in ("merge_aware", "own_optimum")
    }
    return [
        Verdict(
            claim="merging experts stopped for merging is at most "
            f"{100 * MARGIN:.0f} points worse than merging each expert's own optimum",
            held=all(d.low >= -MARGIN for d in differences.values()),
            measured="; ".join(f"{name}: {d.points()}" for name, d in differences.items())
            + f"; training steps {steps['merge_aware']} against {steps['own_optimum']}",
        )
    ]


def _outlooks(scores: Mapping[str, StepResult]) -> str:
    """What the representation probe says about each compressed model; nothing without it."""
    lines = [
        f"- `{name}`: " + "; ".join(f"{o['kind']}: **{o['outlook']}** ({o['reason']})" for o in found)
        for name, result in scores.items()
        if (found := result.summary.get("outlook"))
    ]
    return "\n".join(["Which kinds of tasks survive compression, by the probe:", "", *lines]) if lines else ""


def _times(candidates: Sequence[Candidate], scores: Mapping[str, StepResult]) -> str:
    by_stage: dict[str, float] = {}
    for candidate in candidates:
        by_stage[candidate.stage] = by_stage.get(candidate.stage, 0.0) + candidate.seconds
    made = ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in by_stage.items() if seconds)
    evaluated = sum(result.timings["seconds"] for result in scores.values())
    return f"Seconds of work: {made + ', ' if made else ''}evaluation {evaluated:.0f} s."
