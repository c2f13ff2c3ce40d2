"""The paper's claims, and the bars of this project, against the study's runs. Imports nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from methods.common.claims import Claim

Rows = Sequence[Mapping[str, Any]]
OURS = ("s3gnn", "s3gnn_p1")
ABLATION = "no_p0"
HIGHER_IS_BETTER = ("payload", "payload_far", "routing", "kgqa")
CHANCE = 0.2
METRIC_WORDS = {
    "payload": "accuracy, ring of 32",
    "payload_far": "accuracy, ring of 128",
    "routing": "accuracy, three payloads",
    "barbell": "mean square error",
    "diameter": "log10 of the mean square error in hops",
    "hops": "log10 of the mean square error in hops",
    "kgqa": "share of questions whose first answer is right",
    "mesh": "root mean square error of the velocity's change",
}


def claims(tasks: Mapping[str, Rows], law: Rows = (), depth: Rows = (), weights: Rows = ()) -> list[Claim]:
    """All claims that the rows at hand decide.

    Args:
        tasks: rows of each task, one a model and seed.
        law: sensitivity at initial weights.
        depth: growth over 64 layers.
        weights: the barbell under other constraints.
    """
    found: list[Claim] = []
    for task, rows in tasks.items():
        found += _against_baselines(task, rows)
    for task in ("payload", "payload_far"):
        if task in tasks:
            found += _payload(task, tasks[task])
    if "payload" in tasks:
        found += _trained_sensitivity(tasks["payload"])
    if "routing" in tasks:
        found += _routing(tasks["routing"])
    if "barbell" in tasks:
        found += _barbell(tasks["barbell"])
    for task in ("diameter", "hops"):
        if task in tasks:
            found += _properties(task, tasks[task])
    if "mesh" in tasks:
        found += _mesh(tasks["mesh"])
    return found + _law(law) + _depth(depth) + _weights(weights)


def values(rows: Rows, model: str, name: str = "value") -> tuple[float, ...]:
    """One number a seed, in the order of the seeds; none when the model was not run."""
    chosen = sorted((r for r in rows if r["model"] == model), key=lambda r: r["seed"])
    return tuple(float(r[name]) for r in chosen if r.get(name) is not None)


def gains(task: str, rows: Rows, model: str, other: str, name: str = "value") -> tuple[float, ...]:
    """By how much a model is better than another, seed by seed; positive is better whatever the metric."""
    sign = 1.0 if task in HIGHER_IS_BETTER else -1.0
    pairs = zip(values(rows, model, name), values(rows, other, name), strict=False)
    return tuple(sign * (one - two) for one, two in pairs)


def best_by_validation(rows: Rows, names: Sequence[str]) -> str | None:
    """The model with the lowest mean validation loss: nothing is chosen on the test part."""
    means = {name: float(np.mean(found)) for name in names if (found := values(rows, name, "valid"))}
    return min(means, key=lambda name: means[name]) if means else None


def baselines(rows: Rows) -> list[str]:
    """The models of some rows that are neither ours nor our ablation."""
    return sorted({str(r["model"]) for r in rows} - {*OURS, ABLATION})


def _against_baselines(task: str, rows: Rows) -> list[Claim]:
    ours, best = best_by_validation(rows, OURS), best_by_validation(rows, baselines(rows))
    found = []
    if ours and best:
        text = f"{ours} is not worse than the best baseline, both chosen by validation"
        found.append(
            Claim(f"{task}/over_best", f"{text} ({best})", gains(task, rows, ours, best), 0.0, rule="mean")
        )
    for other, words in (
        ("gcn", "GCN"),
        ("gcn_vn", "GCN with a virtual node"),
        (ABLATION, "itself without P0"),
    ):
        gain = gains(task, rows, "s3gnn", other)
        if gain:
            found.append(
                Claim(
                    f"{task}/over/{other}", f"s3gnn (P0 only) is better than {words}", gain, 0.0, rule="mean"
                )
            )
    size = values(rows, "s3gnn", "parameters")
    for other in baselines(rows):
        theirs = values(rows, other, "parameters")
        if size and theirs:
            bar = 0.5 if other == "stable_cheb" else None
            found.append(
                Claim(
                    f"{task}/parameters/{other}",
                    f"parameters, s3gnn over {other}",
                    (size[0] / theirs[0],),
                    bar,
                    "<=",
                    "each" if bar else "report",
                )
            )
    return found


def _payload(task: str, rows: Rows) -> list[Claim]:
    found = [Claim(f"{task}/accuracy", "s3gnn reads the payload", values(rows, "s3gnn"), 0.99)]
    return found + [
        Claim(f"{task}/chance/{name}", f"{name} guesses", at, CHANCE + 0.1, "<=")
        for name in ("gcn", ABLATION)
        if (at := values(rows, name))
    ]


def _trained_sensitivity(rows: Rows) -> list[Claim]:
    found = []
    far = {
        name: [r["curve"][-1] for r in rows if r["model"] == name and "curve" in r] for name in _names(rows)
    }
    for name in ("gcn", ABLATION):
        if far.get("s3gnn") and far.get(name):
            text = f"after training {name} does not see the node opposite at all"
            found.append(Claim(f"payload/sensitivity/{name}", text, tuple(far[name]), 0.0, "<="))
    curves = [r["curve"] for r in rows if r["model"] == "s3gnn" and "curve" in r]
    if curves:
        flat = tuple(max(c[5:]) / min(c[5:]) for c in curves)  # 4 layers reach 4 hops
        text = "sensitivity beyond the layers does not depend on the distance: largest over smallest"
        found.append(Claim("payload/sensitivity/flat", text, flat, 3.0, "<="))
    cancel = tuple(min(r["cancellation"]) for r in rows if r["model"] == "s3gnn" and "cancellation" in r)
    if cancel:
        text = (
            "the earlier bound needs a response that cancels in no direction: after training the smallest over the "
            "largest singular value of a layer's global response is below 0.05, and far nodes are still seen"
        )
        found.append(Claim("payload/cancellation", text, cancel, 0.05, "<="))
    return found


def _names(rows: Rows) -> set[str]:
    return {str(r["model"]) for r in rows}


def _routing(rows: Rows) -> list[Claim]:
    found = [
        Claim("routing/p0_alone", "s3gnn without P1 on three payloads", values(rows, "s3gnn"), rule="report")
    ]
    for other in ("s3gnn", "gcn_vn"):
        gain = gains("routing", rows, "s3gnn_p1", other)
        if gain:
            found.append(
                Claim(
                    f"routing/p1_over/{other}",
                    f"P1 adds 0.15 to the accuracy of {other}",
                    gain,
                    0.15,
                    rule="mean",
                )
            )
    return found


def _barbell(rows: Rows) -> list[Claim]:
    ours = values(rows, "s3gnn")
    found = [Claim("barbell/mse", "mean square error at most 0.017", ours, 0.017, "<=", "mean")]
    theirs = values(rows, "stable_cheb")
    if theirs:
        ratio = tuple(a / b for a, b in zip(ours, theirs, strict=False))
        text = "an order of magnitude below Stable-ChebNet: their ratio"
        found.append(Claim("barbell/over_stable_cheb", text, ratio, 0.1, "<="))
    return found


def _properties(task: str, rows: Rows) -> list[Claim]:
    found = []
    for name in ("value",) if task == "diameter" else ("eccentricity", "sssp"):
        word = "diameter" if name == "value" else name
        if gain := gains(task, rows, "s3gnn", ABLATION, name):
            bar = 0.1 if word != "sssp" else None
            rule = "mean" if bar else "report"
            text = f"P0 lowers log10 of the error by 0.1 ({word})"
            found.append(Claim(f"{word}/p0", text, gain, bar, rule=rule))  # type: ignore[arg-type]
        if gain := gains(task, rows, "s3gnn", "adgn", name):
            text = f"not worse than anti-symmetric steps by more than 0.1 ({word})"
            found.append(Claim(f"{word}/over/adgn", text, gain, -0.1, rule="mean"))
    return found


def _mesh(rows: Rows) -> list[Claim]:
    found = []
    for other in ("gcn", "gcn_vn", "adgn"):
        gain = gains("mesh", rows, "s3gnn", other, "rollout")
        if gain:
            text = f"rollouts nearer the solver than those of {other}"
            found.append(Claim(f"mesh/rollout/over/{other}", text, gain, 0.0, rule="mean"))
    return found


def _law(rows: Rows) -> list[Claim]:
    if not rows:
        return []
    table: dict[tuple[str, str, int], list[float]] = {}
    for r in rows:
        table.setdefault((r["model"], r["depth"], r["size"]), []).append(r["sensitivity"])
    sizes = sorted({size for model, depth, size in table if (model, depth) == ("s3gnn", "four")})
    seeds = range(len(table["s3gnn", "four", sizes[0]]))
    slopes = tuple(
        float(np.polyfit(np.log(sizes), [math.log(table["s3gnn", "four", n][s]) for n in sizes], 1)[0])
        for s in seeds
    )
    ratio = tuple(table["s3gnn", "half", 32][s] / table["gcn", "half", 32][s] for s in seeds)
    nothing = tuple(max(table[ABLATION, "four", n][s] for n in sizes) for s in seeds)
    return [
        Claim("law/slope_low", "sensitivity falls no faster than N^-1.4", slopes, -1.4),
        Claim("law/slope_high", "and no slower than N^-0.6", slopes, -0.6, "<="),
        Claim("law/over_gcn", "opposite nodes of a ring of 32: sensitivity over that of GCN", ratio, 1e6),
        Claim("law/no_p0", "without P0 nothing beyond the layers", nothing, 0.0, "<="),
    ]


def _depth(rows: Rows) -> list[Claim]:
    found = []
    for weight, tie in sorted({(str(r["weight"]), bool(r["tie"])) for r in rows}):
        chosen = [r["ratio"] for r in rows if (r["weight"], r["tie"]) == (weight, tie)]
        ratios = tuple(math.log10(max(1e-12, r)) if r is not None else 38.0 for r in chosen)
        name = f"depth/{weight}{'_tied' if tie else ''}"
        if tie:
            found.append(
                Claim(name, "log10 of the growth over 64 layers, tied antisymmetric", ratios, 3.0, "<=")
            )
        else:
            found.append(Claim(name, f"log10 of the growth over 64 layers, {weight}", ratios, rule="report"))
    return found


def _weights(rows: Rows) -> list[Claim]:
    names = sorted({str(r["weight"]) for r in rows})
    return [
        Claim(
            f"weights/{name}",
            f"mean square error on the barbell, weights {name}",
            tuple(float(r["value"]) for r in sorted(rows, key=lambda r: r["seed"]) if r["weight"] == name),
            rule="report",
        )
        for name in names
    ]
