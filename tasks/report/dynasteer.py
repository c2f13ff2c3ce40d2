"""The study of `dynasteer` as people read it: figures, verdicts, metrics, and one MLflow run a policy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from methods.dynasteer.study_claims import by_policy, claims, entropy_curve, pooled, pooled_model
from tasks.report.steer import WORDS
from tasks.report.verdict import Verdict, claim_metrics, claim_verdicts
from tasks.tracking import RunContext, candidate_run, log_metrics, log_params

Rows = Sequence[Mapping[str, Any]]
Parts = Mapping[str, Rows]


def metrics_and_verdicts(parts: Parts) -> tuple[dict[str, Any], list[Verdict]]:
    """Each claim's numbers for metrics.json, and those with a bar as verdicts."""
    found = claims(parts)
    return {"claims": claim_metrics(found)}, claim_verdicts(found)


def _world(rows: Rows) -> pd.DataFrame:
    """Every policy of the small world: mean and spread over seeds, and paired intervals over all problems."""
    table = []
    for name, facts in rows[0]["policies"].items():
        accuracies = [row["policies"][name]["accuracy"] for row in rows]
        line: dict[str, Any] = {
            "policy": name,
            "control": facts.get("control", ""),
            "accuracy": float(np.mean(accuracies)),
            "accuracy_std": float(np.std(accuracies, ddof=1)) if len(rows) > 1 else 0.0,
            "tokens": float(np.mean([row["policies"][name]["tokens"] for row in rows])),
        }
        for key, other in (("plain", "plain"), ("control", facts.get("control", ""))):
            if other and other != name and "right" in facts:
                c = pooled(rows, name, other)
                line |= {f"over_{key}": c.gain, f"over_{key}_low": c.low, f"over_{key}_high": c.high}
                if key == "plain":
                    line |= {"fixed": c.fixed, "harmed": c.harmed}
        table.append(line)
    return pd.DataFrame(table)


def _points(row: pd.Series, key: str) -> str:
    if f"over_{key}" not in row or pd.isna(row[f"over_{key}"]):
        return "-"
    gain, low, high = (100 * row[f"over_{key}{end}"] for end in ("", "_low", "_high"))
    return f"{gain:+.1f} ({low:+.1f} to {high:+.1f})"


def policies_table(parts: Parts) -> pd.DataFrame:
    """Accuracy, cost and gain of every policy, as people read them."""
    rows = []
    for row in parts.get("planted", ()):
        shown = ", ".join(
            f"{name} {100 * row[name]:.1f}" for name in ("plain", "resample", "random", "steer")
        )
        rows.append({"bench": f"planted, seed {row['seed']}", "policy": "all", "right (%)": shown})
    if world := parts.get("world"):
        for _, row in _world(world).iterrows():
            rows.append(
                {
                    "bench": "small world",
                    "policy": str(row.policy),
                    "right (%)": f"{100 * row.accuracy:.1f} ± {100 * row.accuracy_std:.1f}",
                    "tokens a question": f"{row.tokens:.1f}",
                    "ms a question": _milliseconds([r["seconds"].get(row.policy) for r in world]),
                    "over plain (95 %)": _points(row, "plain"),
                    "over its control (95 %)": _points(row, "control"),
                    "fixed / harmed of plain": "-"
                    if pd.isna(row.get("fixed"))
                    else f"{int(row.fixed)} / {int(row.harmed)}",
                }
            )
    if model := parts.get("model"):
        for _, row in _model(model).iterrows():
            rows.append(
                {
                    "bench": "real model",
                    "policy": WORDS.get(str(row.policy), str(row.policy)),
                    "right (%)": f"{100 * row.accuracy:.1f} ± {100 * row.accuracy_std:.1f}",
                    "tokens a question": f"{row.tokens:.1f}",
                    "ms a question": _milliseconds(
                        [r["seconds"] for r in model if r["policy"] == row.policy]
                    ),
                    "over plain (95 %)": _points(row, "plain"),
                    "over its control (95 %)": _points(row, "control"),
                    "fixed / harmed of plain": "-"
                    if pd.isna(row.get("fixed"))
                    else f"{int(row.fixed)} / {int(row.harmed)}",
                }
            )
    if plain := parts.get("plain"):
        for source, found in pd.DataFrame(plain).groupby("source", sort=False):
            rows.append(
                {
                    "bench": f"real model, {source}",
                    "policy": "plain",
                    "right (%)": f"{100 * found.accuracy.mean():.1f} ± {100 * found.accuracy.std():.1f}",
                    "tokens a question": f"{found.tokens.mean():.1f}",
                    "ms a question": _milliseconds(list(found.seconds)),
                }
            )
    return pd.DataFrame(rows).fillna("-")


def _milliseconds(seconds: Sequence[float | None]) -> str:
    known = [value for value in seconds if value is not None]
    return f"{1000 * float(np.mean(known)):.3g}" if known else "-"


def _model(rows: Rows) -> pd.DataFrame:
    """Every policy of the real model: mean and spread over seeds, and paired intervals over all questions."""
    table = []
    named = by_policy(rows)
    for name, found in named.items():
        accuracies = [row["facts"]["accuracy"] for row in found]
        line: dict[str, Any] = {
            "policy": name,
            "accuracy": float(np.mean(accuracies)),
            "accuracy_std": float(np.std(accuracies, ddof=1)) if len(found) > 1 else 0.0,
            "tokens": float(np.mean([row["facts"]["tokens_per_question"] for row in found])),
        }
        for key, other in (("plain", "plain"), ("control", "plain" if name == "resample" else "resample")):
            if other in named and other != name and name != "plain":
                c = pooled_model(rows, name, other)
                line |= {f"over_{key}": c.gain, f"over_{key}_low": c.low, f"over_{key}_high": c.high}
                if key == "plain":
                    line |= {"fixed": c.fixed, "harmed": c.harmed}
        table.append(line)
    return pd.DataFrame(table)


def tables(parts: Parts) -> dict[str, pd.DataFrame]:
    """The data behind the plots, by the same names."""
    found: dict[str, pd.DataFrame] = {}
    if planted := parts.get("planted"):
        columns = ("seed", "plain", "resample", "random", "steer", "cosine", "fixed", "harmed", "contexts")
        found["planted"] = pd.DataFrame([{name: row[name] for name in columns} for row in planted])
    if world := parts.get("world"):
        found["policies"] = _world(world)
        found["laws"] = pd.DataFrame(_laws(world))
        if any(row["probes"] for row in world):
            found["probes"] = pd.DataFrame(
                [{"seed": row["seed"], **probe} for row in world for probe in row["probes"]]
            )
        found["select"] = pd.DataFrame(
            [
                {
                    "seed": row["seed"],
                    "setting": name,
                    "gain": gain,
                    "chosen": name.removeprefix("steer ") in row["chosen"].values(),
                }
                for row in world
                for name, gain in row["select"].items()
            ]
        )
    if model := parts.get("model"):
        found["model"] = _model(model)
    if plain := parts.get("plain"):
        columns = ("source", "seed", "questions", "accuracy", "tokens")
        found["plain"] = pd.DataFrame([{name: row[name] for name in columns} for row in plain])
    return found


def _laws(rows: Rows) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        for law in row["laws"]:
            for what, key in (("steer over resample", "gain"), ("resample over plain", "resample_gain")):
                found.append(
                    {
                        "law": "sentence",
                        "seed": row["seed"],
                        "what": what,
                        "x": law["sentence"],
                        "gain": law[key],
                    }
                )
        for what, key in (
            ("steer over resample", "steer_minus_again"),
            ("resample over plain", "again_minus_plain"),
        ):
            entropies, gains, _ = entropy_curve(row, key)
            found.extend(
                {"law": "entropy", "seed": row["seed"], "what": what, "x": float(x), "gain": float(gain)}
                for x, gain in zip(entropies, gains, strict=True)
            )
    return found


def figures(parts: Parts) -> dict[str, Figure]:
    """The study's plots, by name."""
    data = tables(parts)
    drawers = {
        "policies": plot_policies,
        "laws": plot_laws,
        "probes": plot_probes,
        "planted": plot_planted,
        "model": plot_model,
    }
    return {name: draw(data[name]) for name, draw in drawers.items() if name in data}


def plot_planted(table: pd.DataFrame) -> Figure:
    """Accuracy of each policy where the truth is planted, one point a seed."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    names = ("plain", "resample", "random", "steer")
    for i, name in enumerate(names):
        axes.scatter([i] * len(table), 100 * table[name], color=f"C{i}", s=30)
        axes.hlines(100 * table[name].mean(), i - 0.2, i + 0.2, color=f"C{i}")
    axes.set_xticks(range(len(names)), [WORDS[name] for name in names])
    axes.set_ylabel("right answers (%), a point a seed, the line their mean")
    axes.set_title("Planted truth: steering must gain, controls must not")
    axes.grid(alpha=0.3, axis="y")
    return figure


def plot_policies(table: pd.DataFrame) -> Figure:
    """Difference of every policy from plain answers with its paired interval, and what it costs."""
    shown = table[table.policy != "plain"].iloc[::-1].reset_index(drop=True)
    figure = Figure(figsize=(11, 0.28 * len(shown) + 1.6), layout="constrained")
    gains, costs = figure.subplots(1, 2, sharey=True, width_ratios=[2, 1])
    places = np.arange(len(shown))
    plain = float(table[table.policy == "plain"].accuracy.iloc[0])
    gain = 100 * shown.over_plain.fillna(shown.accuracy - plain)
    low, high = (gain - 100 * shown.over_plain_low).fillna(0), (100 * shown.over_plain_high - gain).fillna(0)
    gains.errorbar(
        gain, places, xerr=[low.clip(lower=0), high.clip(lower=0)], fmt="o", capsize=3, markersize=4
    )
    resample = 100 * (float(table[table.policy == "resample"].accuracy.iloc[0]) - plain)
    gains.axvline(0, color="black", linewidth=0.8)
    gains.axvline(resample, color="C1", linestyle="--", label="rolling back without an edit (resample)")
    gains.set_yticks(places, shown.policy)
    gains.set_xlabel("points over plain answers, 95 % paired interval over all seeds' problems")
    gains.legend(frameon=False, fontsize=8)
    costs.barh(places, shown.tokens, color="C7")
    costs.axvline(float(table[table.policy == "plain"].tokens.iloc[0]), color="black", linewidth=0.8)
    costs.set_xlabel("tokens a question\n(line: plain)")
    for axes in (gains, costs):
        axes.grid(alpha=0.3, axis="x")
    figure.suptitle("Small world: accuracy and cost of every policy, mean over seeds")
    return figure


def plot_model(table: pd.DataFrame) -> Figure:
    """Accuracy of the real model over its cost, mean and spread over seeds."""
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    for i, row in enumerate(table.itertuples()):
        axes.errorbar(
            row.tokens,
            100 * row.accuracy,
            yerr=100 * row.accuracy_std,
            fmt="o",
            color=f"C{i}",
            capsize=3,
            label=WORDS.get(str(row.policy), str(row.policy)),
        )
    axes.set_xlabel("tokens a question, thrown-away ones included")
    axes.set_ylabel("right answers (%), mean and spread over seeds")
    axes.set_title("The real model: accuracy over cost")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    return figure


def plot_laws(table: pd.DataFrame) -> Figure:
    """Gain of one steered sentence by its entropy and by its number."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    words = {
        "entropy": "lookahead entropy of the sentence (nats, mean of a decile)",
        "sentence": "sentence of the answer",
    }
    for axes, (law, label) in zip(panels, words.items(), strict=True):
        part = table[table.law == law]
        for i, (what, group) in enumerate(part.groupby("what", sort=False)):
            rank = group.groupby("seed").x.rank()
            mean = group.groupby(rank)[["x", "gain"]].mean()
            axes.plot(mean.x, 100 * mean.gain, color=f"C{i}", marker="o", markersize=4, label=str(what))
            axes.scatter(group.x, 100 * group.gain, color=f"C{i}", s=10, alpha=0.5)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("points gained by one sentence (small points: seeds)")
    panels[0].legend(frameon=False)
    figure.suptitle("One sentence steered or drawn again, whatever its entropy")
    return figure


def plot_probes(table: pd.DataFrame) -> Figure:
    """How well truth is read at a sentence's end, by block and sentence."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for i, (block, group) in enumerate(table.groupby("block")):
        by = group.groupby("sentence").best
        axes.errorbar(
            by.mean().index,
            by.mean(),
            yerr=by.std().fillna(0),
            color=f"C{i}",
            marker="o",
            markersize=4,
            capsize=3,
            label=f"block {block}",
        )
    axes.axhline(0.5, color="black", linewidth=0.8)
    axes.set_xlabel("sentence of the answer")
    axes.set_ylabel("balanced accuracy of the best head's probe\non other problems (bars: spread over seeds)")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    return figure


def log_candidates(ctx: RunContext, parts: Parts) -> None:
    """One MLflow run a policy and seed."""
    for row in parts.get("world", ()):
        for name, facts in row["policies"].items():
            run = candidate_run(ctx, f"{name}/seed{row['seed']}")
            log_params(ctx, run, {"policy": name, "seed": row["seed"], "chosen": row["chosen"]["steer"]})
            numbers = {f"test/{key}": float(v) for key, v in facts.items() if isinstance(v, int | float)}
            for key in ("over_plain", "over_control"):
                numbers |= {f"test/{key}/{n}": float(v) for n, v in facts.get(key, {}).items()}
            numbers["time/seconds_per_question"] = row["seconds"][name]
            log_metrics(ctx, run, numbers)
            ctx.client.set_terminated(run)
    for row in parts.get("model", ()):
        run = candidate_run(ctx, f"model/{row['policy']}/seed{row['seed']}")
        log_params(ctx, run, {"policy": row["policy"], "seed": row["seed"]})
        numbers = {f"test/{key}": float(value) for key, value in row["facts"].items()}
        log_metrics(ctx, run, numbers | {"time/seconds_per_question": row["seconds"]})
        ctx.client.set_terminated(run)
