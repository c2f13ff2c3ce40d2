"""The paper's claims, and the bars of this project, against the study's runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from methods.common.claims import Claim
from methods.sc_fagc.study import VARIANTS

Rows = Sequence[Mapping[str, Any]]
METRICS = ("acc", "nmi", "purity", "ari", "f_score", "precision", "recall")
OTHER_ANCHORS = ("anchors_balanced", "anchors_kmeans", "anchors_random", "kmeans_bounded")
WORDS = {"acc": "accuracy", "nmi": "NMI", "ari": "ARI"}
SETS = {"digits": "digits", "mnist10k": "MNIST, 10,000 digits", "mnist60k": "MNIST, 60,000 digits"}


def claims(parts: Mapping[str, Rows]) -> list[Claim]:
    """All claims that the parts at hand decide."""
    found: list[Claim] = []
    if "digits" in parts:
        found += _digits(parts["digits"])
    for part in SETS:
        if part in parts:
            found += _strictness(part, parts[part]) + _every_metric(part, parts[part])
    if "mnist10k" in parts:
        found += _against_rival("mnist10k", parts["mnist10k"])
    if "mnist60k" in parts:
        found += _mnist(parts["mnist60k"])
    if "unequal" in parts:
        found += _unequal(parts["unequal"])
    if "ablations" in parts and "digits" in parts:
        found += _ablations(parts["digits"], parts["ablations"])
    return found


def values(rows: Rows, method: str, name: str, data: str | None = None) -> np.ndarray:
    """One number a seed, in the order of the seeds."""
    chosen = [r for r in rows if r["method"] == method and data in (None, r["data"])]
    return np.array([r[name] for r in sorted(chosen, key=lambda r: r["seed"])], dtype=np.float64)


def paired(rows: Rows, method: str, other: str, name: str) -> tuple[float, ...]:
    """Differences on the seeds that both have."""
    one = {r["seed"]: r[name] for r in rows if r["method"] == method}
    two = {r["seed"]: r[name] for r in rows if r["method"] == other}
    return tuple(float(one[seed] - two[seed]) for seed in sorted(one.keys() & two.keys()))


def _of(rows: Rows, method: str, name: str, data: str | None = None) -> tuple[float, ...]:
    return tuple(values(rows, method, name, data).tolist())


def _digits(rows: Rows) -> list[Claim]:
    found = [
        Claim("digits/acc", "accuracy on digits", _of(rows, "sc_fagc", "acc"), 0.83, rule="mean"),
        Claim("digits/nmi", "NMI on digits", _of(rows, "sc_fagc", "nmi"), 0.80, rule="mean"),
    ]
    for peer, bar in (("k_means", 0.03), ("k_means_constrained", 0.04)):
        gain = paired(rows, "sc_fagc", peer, "acc")
        found += [
            Claim(f"digits/gain_over/{peer}", f"accuracy above {peer}", gain, bar, rule="mean"),
            Claim(
                f"digits/gain_over/{peer}/interval",
                f"accuracy above {peer} beyond chance (paired)",
                gain,
                0.0,
                rule="interval",
            ),
        ]
    found += [
        Claim(
            "digits/size_ratio",
            "largest over smallest cluster of samples at most 2",
            _of(rows, "sc_fagc", "size_ratio"),
            2.0,
            "<=",
        ),
        Claim(
            "digits/fagc_r/size_ratio",
            "without bounds (FAGC-R) that ratio is at least 3",
            _of(rows, "fagc_r", "size_ratio"),
            3.0,
            rule="mean",
        ),
    ]
    return found + _against_rival("digits", rows)


def _against_rival(part: str, rows: Rows) -> list[Claim]:
    """The five lines: spectral rows of the same anchors and k-means-constrained."""
    gain = paired(rows, "sc_fagc", "rival", "acc")
    return [
        Claim(
            f"{part}/over_rival", "accuracy not more than 0.01 below the rival's", gain, -0.01, rule="mean"
        ),
        Claim(
            f"{part}/over_rival/interval",
            "accuracy above the rival's beyond chance (paired)",
            gain,
            0.0,
            rule="interval",
        ),
        Claim(
            f"{part}/similarity_over_rival",
            "similarity kept inside clusters of anchors above the rival's, beyond chance (paired)",
            paired(rows, "sc_fagc", "rival", "similarity"),
            0.0,
            rule="interval",
        ),
    ]


def _strictness(part: str, rows: Rows) -> list[Claim]:
    return [
        Claim(
            f"{part}/anchor_violation",
            "anchors by which a bound is missed",
            _of(rows, "sc_fagc", "anchor_violation"),
            0.0,
            "<=",
        ),
        Claim(
            f"{part}/smallest_rise",
            "the objective never falls (smallest relative step)",
            _of(rows, "sc_fagc", "smallest_rise"),
            -1e-8,
        ),
        Claim(
            f"{part}/overshoot",
            "share by which a cluster of samples misses the bounds of the anchors",
            _of(rows, "sc_fagc", "overshoot"),
            rule="report",
        ),
    ]


def _every_metric(part: str, rows: Rows) -> list[Claim]:
    """On how many of the metrics the method's mean is at least that of every other method in the part."""
    others = sorted({r["method"] for r in rows} - {"sc_fagc", *VARIANTS})
    best = sum(
        values(rows, "sc_fagc", name).mean() >= max(values(rows, other, name).mean() for other in others)
        for name in METRICS
    )
    return [
        Claim(
            f"{part}/best_of_metrics",
            f"best on every metric ({', '.join(METRICS)}) on {SETS[part]}",
            (float(best),),
            float(len(METRICS)),
        )
    ]


def _mnist(rows: Rows) -> list[Claim]:
    return [
        Claim("mnist60k/acc", "accuracy on 60,000 digits", _of(rows, "sc_fagc", "acc"), 0.70, rule="mean"),
        Claim("mnist60k/nmi", "NMI on 60,000 digits", _of(rows, "sc_fagc", "nmi"), 0.68, rule="mean"),
        Claim(
            "mnist60k/within",
            "samples within 10 % beyond the bounds",
            _of(rows, "sc_fagc", "overshoot"),
            0.10,
            "<=",
        ),
        Claim(
            "mnist60k/bounded",
            "held sample by sample, no bound is missed",
            _of(rows, "bounded_samples", "overshoot"),
            0.0,
            "<=",
        ),
        Claim(
            "mnist60k/bounded_cost",
            "accuracy that holding them sample by sample costs",
            paired(rows, "sc_fagc", "bounded_samples", "acc"),
            rule="report",
        ),
        *_against_rival("mnist60k", rows),
    ]


def _unequal(rows: Rows) -> list[Claim]:
    found = []
    for data, bar in (("moons", 0.95), ("blobs", 0.97)):
        scores = values(rows, "sc_fagc", "ari", data)
        found += [
            Claim(
                f"unequal/{data}/median",
                f"{data} of unequal size, told the sizes: median ARI",
                (float(np.median(scores)),),
                bar,
            ),
            Claim(f"unequal/{data}/each", f"{data}: ARI of every seed", tuple(scores.tolist()), 0.9),
        ]
        for other in ("k_means", "equal_bounds"):
            found.append(
                Claim(
                    f"unequal/{data}/{other}",
                    f"{data}: ARI of {other}",
                    _of(rows, other, "ari", data),
                    rule="report",
                )
            )
    return found


def _ablations(whole: Rows, parts: Rows) -> list[Claim]:
    both = [*(r for r in whole if r["method"] == "sc_fagc"), *parts]
    found = []
    for name in sorted({r["method"] for r in parts}):
        found += [
            Claim(
                f"ablations/{name}/{score}",
                f"{WORDS.get(score, score)} that SC-FAGC has above {name}",
                paired(both, "sc_fagc", name, score),
                rule="report",
            )
            for score in ("acc", "similarity", "size_ratio")
            # Other anchors have another matrix of similarities: its sum compares with no other.
            if score != "similarity" or name not in OTHER_ANCHORS
        ]
    return found
