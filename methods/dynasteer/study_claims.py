"""The paper's claims against what the study measured, one number a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from methods.common.claims import Claim
from methods.dynasteer.analysis import Comparison, compare, gain_by_entropy

Rows = Sequence[Mapping[str, Any]]
BINS = 10
ABOVE_ZERO = 1e-6  # an interval that ends at 0 shows nothing
EARLY = 3  # the first half of an answer's six sentences


def claims(parts: Mapping[str, Rows]) -> list[Claim]:
    """Every claim of the parts that were run."""
    found: list[Claim] = []
    if planted := parts.get("planted"):
        found += planted_claims(planted)
    if world := parts.get("world"):
        found += world_claims(world)
    if plain := parts.get("plain"):
        found += plain_claims(plain)
    if model := parts.get("model"):
        found += model_claims(model)
    return found


def planted_claims(rows: Rows) -> list[Claim]:
    """Bar 8: the planted truth must be gained, the controls must not."""

    def values(make: Any) -> tuple[float, ...]:
        return tuple(float(make(row)) for row in rows)

    return [
        Claim(
            "planted/plain", "plain answers are right at most 60 %", values(lambda r: r["plain"]), 0.6, "<="
        ),
        Claim(
            "planted/gain_over_plain",
            "steering gains at least 15 points over plain answers",
            values(lambda r: r["steer"] - r["plain"]),
            0.15,
        ),
        Claim(
            "planted/gain_over_resample",
            "and over rolling back without an edit",
            values(lambda r: r["steer"] - r["resample"]),
            0.15,
        ),
        Claim(
            "planted/random_off_resample",
            "random directions are within 3 points of the resample control",
            values(lambda r: abs(r["random"] - r["resample"])),
            0.03,
            "<=",
        ),
        Claim("planted/cosine", "the planted direction is found", values(lambda r: r["cosine"]), 0.9),
        Claim(
            "planted/harmed",
            "right answers that became wrong, of all",
            values(lambda r: r["harmed"] / r["tests"]),
            rule="report",
        ),
    ]


def pooled(rows: Rows, name: str, other: str) -> Comparison:
    """A policy against another on the problems of all seeds together."""
    texts = ("".join(row["policies"][which]["right"] for row in rows) for which in (name, other))
    a, b = (np.array([float(right) for right in text]) for text in texts)
    return compare(a, b)


def world_claims(rows: Rows) -> list[Claim]:
    """Bars 5, 7, 9 and the two laws in the small world."""

    def accuracy(name: str) -> tuple[float, ...]:
        return tuple(row["policies"][name]["accuracy"] for row in rows)

    def over(name: str, control: str) -> tuple[float, ...]:
        return tuple(a - b for a, b in zip(accuracy(name), accuracy(control), strict=True))

    def fact(name: str, key: str) -> tuple[float, ...]:
        return tuple(float(row["policies"][name][key]) for row in rows)

    def moved(kind: str) -> tuple[float, ...]:
        steered = [row["policies"]["steer"] for row in rows]
        return tuple(one["over_plain"][kind] / len(one["right"]) for one in steered)

    found = [
        Claim("world/plain", "plain answers that are right", accuracy("plain"), rule="report"),
        Claim("world/steer", "steered answers that are right", accuracy("steer"), rule="report"),
        Claim(
            "world/gain_over_plain",
            "steering, its strength chosen on other problems, gains over plain answers",
            over("steer", "plain"),
            0.0,
            rule="interval",
        ),
        Claim(
            "world/gain_over_resample",
            "and over rolling back without an edit (a claim of gain needs this one)",
            over("steer", "resample"),
            0.0,
            rule="interval",
        ),
        Claim(
            "world/gain_over_resample/bootstrap_low",
            "the lower end of the paired 95 % bootstrap interval over all seeds' problems",
            (pooled(rows, "steer", "resample").low,),
            ABOVE_ZERO,
        ),
        Claim(
            "world/resample_over_plain",
            "what rolling back alone gains over plain answers",
            over("resample", "plain"),
            rule="report",
        ),
        Claim(
            "world/random_over_resample",
            "random directions of the same strength gain over rolling back alone",
            tuple(np.mean([over(name, "resample") for name in _randoms(rows)], axis=0).tolist()),
            rule="report",
        ),
        Claim(
            "world/steer_over_random",
            "steering gains over random directions of the same strength",
            tuple(
                float(s - np.mean([row["policies"][name]["accuracy"] for name in _randoms(rows)]))
                for s, row in zip(accuracy("steer"), rows, strict=True)
            ),
            0.0,
            rule="interval",
        ),
        Claim(
            "world/harmless",
            "at strengths up to 3 sigma no setting is more than a point below plain answers (the worst of them)",
            tuple(
                min(row["policies"][name]["accuracy"] for name in _mild(row))
                - row["policies"]["plain"]["accuracy"]
                for row in rows
            ),
            -0.01,
        ),
        Claim(
            "world/iti_harm",
            "always-on ITI at 3 sigma loses at least 20 points",
            over("ITI 3 sigma", "plain"),
            -0.2,
            "<=",
        ),
        Claim(
            "world/gate_rate_off",
            "20 % of the sentences of plain answers to other problems are above gamma (distance)",
            tuple(abs(value - 0.2) for value in fact("plain", "doubtful")),
            0.05,
            "<=",
        ),
        Claim(
            "world/trigger_rate_off",
            "with rollback, the gate opens at 20 % of the sentences of other problems (distance)",
            tuple(abs(value - 0.2) for value in fact("resample", "trigger_rate")),
            0.05,
            "<=",
        ),
        Claim(
            "world/no_gate_cost",
            "without the gate an answer costs at least 1.8 times the tokens",
            tuple(a / b for a, b in zip(fact("no gate", "tokens"), fact("plain", "tokens"), strict=True)),
            1.8,
        ),
        Claim(
            "world/cost",
            "tokens of a steered answer, thrown-away ones included, over a plain one's",
            tuple(a / b for a, b in zip(fact("steer", "tokens"), fact("plain", "tokens"), strict=True)),
            rule="report",
        ),
        Claim(
            "world/harmed",
            "right plain answers that steering made wrong, of all questions",
            moved("harmed"),
            rule="report",
        ),
        Claim(
            "world/fixed",
            "wrong plain answers that steering made right, of all questions",
            moved("fixed"),
            rule="report",
        ),
        Claim(
            "world/over_self_consistency",
            "steering is better than self-consistency at equal tokens",
            over("steer", "self-consistency"),
            0.0,
            rule="interval",
        ),
        Claim(
            "world/over_iti",
            "steering is better than always-on ITI with its strength chosen on the same problems",
            over("steer", "iti"),
            0.0,
            rule="interval",
        ),
        Claim(
            "world/over_caa",
            "steering is better than CAA with block and strength chosen on the same problems",
            over("steer", "caa"),
            0.0,
            rule="interval",
        ),
        Claim(
            "world/patterns",
            "five patterns are better than one (the better strength of each on the select problems)",
            tuple(_patterns_gain(row) for row in rows),
            0.0,
            rule="interval",
        ),
        Claim(
            "world/fisher_over_mean",
            "Fisher's directions are better than differences of means at the same strength and patterns",
            over("steer", "mean difference"),
            0.0,
            rule="interval",
        ),
        Claim(
            "world/fisher_over_tuned_mean",
            "and than differences of means with strength and patterns chosen on the same problems",
            over("steer", "mean difference, own strength"),
            0.0,
            rule="interval",
        ),
    ]
    found += [
        Claim(f"world/ablation/{words}", f"{name} over plain answers", over(name, "plain"), rule="report")
        for name, words in (
            ("no gate", "no_gate"),
            ("no rollback", "no_rollback"),
            ("tau 2", "tau_2"),
            ("whole sentence", "whole_sentence"),
            ("restored", "restored"),
            ("nearest pattern", "nearest_pattern"),
            ("iti", "iti"),
            ("caa", "caa"),
            ("constant", "constant"),
        )
    ]
    return found + law_claims(rows)


def _randoms(rows: Rows) -> list[str]:
    return [name for name in rows[0]["policies"] if name.startswith("random ")]


def _mild(row: Mapping[str, Any]) -> list[str]:
    """The fixed settings of at most 3 sigma."""
    return [n for n in row["policies"] if " alpha" in n and float(n.rpartition("alpha")[2]) <= 3]


def _patterns_gain(row: Mapping[str, Any]) -> float:
    best = {}
    for m in (1, 5):
        names = [name for name in row["policies"] if name.startswith(f"m{m} alpha")]
        best[m] = max(names, key=lambda name: row["select"][f"steer {name}"])
    return float(row["policies"][best[5]]["accuracy"] - row["policies"][best[1]]["accuracy"])


def entropy_curve(row: Mapping[str, Any], what: str = "steer_minus_again") -> tuple[np.ndarray, ...]:
    """Gain of steering one sentence by the decile of its lookahead entropy: (entropy, gain, standard error)."""
    gains = [value for law in row["laws"] for value in law[what]]
    entropies = [value for law in row["laws"] for value in law["entropy"]]
    return gain_by_entropy(gains, entropies, BINS)


def law_claims(rows: Rows) -> list[Claim]:
    """Uncertainty Principle, Decay Effect, and truth at the level of sentences."""
    by_entropy = [entropy_curve(row)[1] for row in rows]
    by_sentence = [[law["gain"] for law in row["laws"][1:]] for row in rows]  # the first one says no result
    again = [[law["resample_gain"] for law in row["laws"][1:]] for row in rows]
    accuracies = [np.array(row["heads"]) for row in rows]
    return [
        Claim(
            "laws/uncertainty",
            "steering one sentence gains more at the 20 % of highest entropy than at the rest",
            tuple(float(gains[-2:].mean() - gains[:-2].mean()) for gains in by_entropy),
            0.0,
            rule="interval",
        ),
        Claim(
            "laws/decay",
            "it gains more at the first three sentences with a result than at the last two",
            tuple(float(np.mean(gains[:EARLY]) - np.mean(gains[EARLY:])) for gains in by_sentence),
            0.0,
            rule="interval",
        ),
        Claim(
            "laws/decay_of_resampling",
            "the same of drawing the sentence again without an edit",
            tuple(float(np.mean(gains[:EARLY]) - np.mean(gains[EARLY:])) for gains in again),
            rule="report",
        ),
        Claim(
            "laws/probe_best",
            "truth can be read at the end of a sentence: the best head's balanced accuracy on other problems",
            tuple(float(np.nanmax(values)) for values in accuracies),
            0.55,
        ),
        Claim(
            "laws/probe_mean",
            "the same, mean over heads",
            tuple(float(np.nanmean(values)) for values in accuracies),
            rule="report",
        ),
    ]


def by_policy(rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """A real model's rows, one a seed, by policy."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["policy"], []).append(row)
    return found


def pooled_model(rows: Rows, name: str, other: str) -> Comparison:
    """A policy of the real model against another on the questions of all seeds; a group's questions are one unit."""
    named = by_policy(rows)
    right = [[float(c) for row in named[which] for c in row["right"]] for which in (name, other)]
    groups = [group for row in named[name] for group in row["groups"]]
    return compare(right[0], right[1], groups)


def plain_claims(rows: Rows) -> list[Claim]:
    """What the real model can do without steering, one number a seed."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["source"].removeprefix("bundled:"), []).append(row["accuracy"])
    return [
        Claim(f"model/plain/{name}", f"{name}: plain answers that are right", tuple(values), rule="report")
        for name, values in found.items()
    ]


def model_claims(rows: Rows) -> list[Claim]:
    """A real model's policies; few questions, so nothing decides but the intervals over the controls."""
    named = by_policy(rows)

    def fact(name: str, key: str) -> tuple[float, ...]:
        return tuple(float(row["facts"][key]) for row in named[name])

    first = next(iter(named.values()))
    found = [
        Claim(f"model/fit/{key}", words, tuple(float(row["fit"][key]) for row in first), rule="report")
        for key, words in (
            ("accuracy", "training questions answered right"),
            ("doubtful", "doubtful sentences"),
            ("right_forks", "forks whose completions are all right"),
            ("wrong_forks", "forks whose completions are all wrong"),
            ("contexts", "contexts with both"),
            ("probe_accuracy", "the chosen heads' balanced probe accuracy on other problems"),
        )
    ]
    for name in named:
        for key, words in (
            ("accuracy", "questions answered right"),
            ("tokens_per_question", "tokens a question"),
        ):
            found.append(Claim(f"model/{name}/{key}", words, fact(name, key), rule="report"))
    if "steer" not in named:
        return found
    for other, words in (
        ("plain", "plain answers"),
        ("resample", "rolling back without an edit"),
        ("random", "random directions"),
    ):
        if other in named:
            gains = tuple(
                a - b for a, b in zip(fact("steer", "accuracy"), fact(other, "accuracy"), strict=True)
            )
            text = f"steering gains over {words}"
            found.append(Claim(f"model/gain_over_{other}", text, gains, 0.0, rule="interval"))
            low = pooled_model(rows, "steer", other).low
            text += ": lower end of the paired 95 % interval over all seeds' questions"
            found.append(Claim(f"model/gain_over_{other}/bootstrap_low", text, (low,), ABOVE_ZERO))
    for kind in ("harmed", "fixed"):
        if "plain" in named:
            counts = fact("steer", f"{kind}_of_plain")
            found.append(Claim(f"model/{kind}", f"plain answers that steering {kind}", counts, rule="report"))
    return found
