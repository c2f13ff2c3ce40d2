"""The policies of a steered model as people read them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tasks.report.verdict import Verdict
from tasks.tracking import RunContext, candidate_run, log_metrics, log_params

Policies = Mapping[str, Mapping[str, Any]]
WORDS = {
    "plain": "plain",
    "resample": "resample (no edit)",
    "random": "random directions (a draw and its opposite)",
    "steer": "DynaSteer",
    "always": "DynaSteer, no gate",
    "mean": "difference of means",
    "caa": "CAA, always on",
    "iti": "ITI, always on",
}


def policy_table(policies: Policies, timings: Mapping[str, Any]) -> pd.DataFrame:
    """Accuracy, cost, and who was fixed and harmed, a line a policy."""
    rows = []
    for name, facts in policies.items():
        row = {
            "policy": WORDS.get(name, name),
            "right": f"{100 * facts['accuracy']:.1f} %",
            "tokens a question": f"{facts['tokens_per_question']:.1f}",
            "thrown away": f"{facts['discarded_per_question']:.1f}",
            "seconds a question": f"{timings.get(f'{name}_seconds_per_question', float('nan')):.3g}",
            "sentences steered or drawn again": f"{100 * facts['trigger_rate']:.0f} %",
        }
        for other in ("plain", "resample"):
            if f"gain_over_{other}" in facts:
                low, high = (100 * facts[f"gain_over_{other}_{end}"] for end in ("low", "high"))
                row[f"gain over {other} (95 %)"] = (
                    f"{100 * facts[f'gain_over_{other}']:+.1f} ({low:+.1f} to {high:+.1f})"
                )
        if "fixed_of_plain" in facts:
            row["fixed / harmed of plain"] = f"{facts['fixed_of_plain']} / {facts['harmed_of_plain']}"
        rows.append(row)
    return pd.DataFrame(rows).fillna("-")


def verdicts(policies: Policies) -> list[Verdict]:
    """Whether steering gains over both controls, and whether it harms."""
    facts = policies.get("steer", {})
    controls = {
        "resample": "steering gains over rolling back without an edit",
        "random": "steering gains over random directions of the same strength",
    }
    found = []
    for control, claim in controls.items():
        if f"gain_over_{control}" not in facts:
            continue
        low, high, gain = (100 * facts[f"gain_over_{control}{end}"] for end in ("_low", "_high", ""))
        measured = f"{gain:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}; bar: above 0"
        found.append(Verdict(claim=claim, held=low > 0, measured=measured))
    if not found:
        return []
    if "gain_over_plain" in facts:
        gain = 100 * facts["gain_over_plain"]
        found.append(
            Verdict(
                claim="steering is not below plain answers by more than a point",
                held=gain >= -1,
                measured=f"{gain:+.1f} points; {facts['harmed_of_plain']} right answers became wrong, "
                f"{facts['fixed_of_plain']} wrong ones right",
            )
        )
    return found


def tables(policies: Policies, forks: Path) -> dict[str, pd.DataFrame]:
    """The data behind the plots."""
    rows = [
        {"policy": name, "accuracy": f["accuracy"], "tokens_per_question": f["tokens_per_question"]}
        | {
            key: f.get(key, float("nan"))
            for key in ("gain_over_plain", "gain_over_plain_low", "gain_over_plain_high")
        }
        for name, f in policies.items()
    ]
    sentences = [
        {"sentence": number, "entropy": sentence["entropy"], "right": chain["correct"]}
        for chain in map(json.loads, (forks / "chains.jsonl").read_text(encoding="utf-8").splitlines())
        for number, sentence in enumerate(chain["sentences"], start=1)
    ]
    return {"policies": pd.DataFrame(rows), "entropy": pd.DataFrame(sentences)}


def figures(policies: Policies, forks: Path) -> dict[str, Figure]:
    """Accuracy over cost, and entropy by sentence."""
    data = tables(policies, forks)
    return {"policies": plot_policies(data["policies"]), "entropy": plot_entropy(data["entropy"])}


def plot_policies(table: pd.DataFrame) -> Figure:
    """Accuracy over the tokens that a question costs; bars are the interval of the difference from plain."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for i, row in enumerate(table.itertuples()):
        bars = None
        if np.isfinite(row.gain_over_plain):
            low, high = (
                100 * (row.gain_over_plain_low - row.gain_over_plain),
                100 * (row.gain_over_plain_high - row.gain_over_plain),
            )
            bars = [[-low], [high]]
        label = WORDS.get(str(row.policy), str(row.policy))
        axes.errorbar(
            row.tokens_per_question,
            100 * row.accuracy,
            yerr=bars,
            fmt="o",
            color=f"C{i}",
            capsize=3,
            label=label,
        )
    axes.set_xlabel("tokens a question, thrown-away ones included")
    axes.set_ylabel("right answers (%)\nbars: 95 % interval of the difference from plain")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    return figure


def plot_entropy(table: pd.DataFrame) -> Figure:
    """Mean entropy of a sentence by its number, of right and of wrong chains."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for right, word in ((True, "right"), (False, "wrong")):
        part = table[table.right == right].groupby("sentence").entropy
        mean, count, spread = part.mean(), part.count(), part.std().fillna(0)
        error = spread / np.sqrt(count)
        axes.errorbar(mean.index, mean, yerr=error, marker="o", markersize=3, label=f"{word} answers")
    axes.set_xlabel("sentence of the answer")
    axes.set_ylabel("mean token entropy (nats), with its standard error")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def log_policies(ctx: RunContext, policies: Policies, timings: Mapping[str, Any]) -> None:
    """One MLflow run a policy."""
    for name, facts in policies.items():
        run = candidate_run(ctx, f"policy/{name}")
        log_params(ctx, run, {"policy": name})
        numbers = {f"test/{key}": float(value) for key, value in facts.items()}
        numbers["time/seconds_per_question"] = float(timings[f"{name}_seconds_per_question"])
        log_metrics(ctx, run, numbers)
        ctx.client.set_terminated(run)
