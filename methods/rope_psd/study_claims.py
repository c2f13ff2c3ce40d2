"""The study's rows against the claims: numbers of each seed, the bar, and whether it holds.

Accuracies are shares of the same prompts for every candidate; their differences are resampled in pairs (the same
prompts and seeds on both sides), and the claim is the end of the 95 % interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from methods.common.claims import Claim

Rows = Sequence[Mapping[str, Any]]
OWN, PLAIN = "psd_skip", "clm"
RESAMPLES = 2_000
ABOVE = 1e-9  # an interval that ends at 0 does not exclude it


def worst(correct: np.ndarray) -> np.ndarray:
    """Lowest accuracy over depths: (..., depths, samples) -> (...)."""
    found: np.ndarray = correct.mean(-1).min(-1)
    return found


def unevenness(correct: np.ndarray) -> np.ndarray:
    """Standard deviation of the accuracy over depths."""
    found: np.ndarray = correct.mean(-1).std(-1, ddof=1)
    return found


def average(correct: np.ndarray) -> np.ndarray:
    """Accuracy over all depths."""
    found: np.ndarray = correct.mean((-1, -2))
    return found


def paired_interval(
    one: np.ndarray, other: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]
) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean over seeds of statistic(one) - statistic(other).

    Args:
        one, other: (seeds, depths, samples) right (1) or wrong (0), of the same prompts.
        statistic: (..., depths, samples) -> (...).
    """
    rng = np.random.default_rng(0)
    seeds, _, samples = one.shape
    found = []
    for _ in range(RESAMPLES):
        # Seeds and prompts are drawn again; a prompt goes with its answers at every depth and on both sides.
        chosen = rng.integers(seeds, size=seeds)
        prompts = rng.integers(samples, size=samples)
        found.append(
            float((statistic(one[chosen][:, :, prompts]) - statistic(other[chosen][:, :, prompts])).mean())
        )
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def answers(rows: Rows, candidate: str, where: str = "answers") -> np.ndarray:
    """(seeds, depths, samples) of a candidate, seeds in order."""
    found = sorted((row for row in rows if row["candidate"] == candidate), key=lambda row: int(row["seed"]))
    return np.asarray([row[where]["correct"] for row in found], dtype=float)


def values(rows: Rows, candidate: str, read: Callable[[Mapping[str, Any]], float]) -> tuple[float, ...]:
    """One number a seed, seeds in order."""
    found = sorted((row for row in rows if row["candidate"] == candidate), key=lambda row: int(row["seed"]))
    return tuple(float(read(row)) for row in found)


def gap_of(row: Mapping[str, Any], name: str, place: int) -> float:
    return float(row["gaps"][place][name])


def claims(parts: Mapping[str, Rows]) -> list[Claim]:
    """All claims for which the parts have rows."""
    small = [row for part in ("main", "ablation", "variants", "grid") for row in parts.get(part, ())]
    found: list[Claim] = []
    if any(row["candidate"] == OWN for row in small):
        found += _views(small, "small", 1)
        found += _answers(small)
        found += _ablations(small)
        found += _grid(small)
    if parts.get("real"):
        found += _views(parts["real"], "real", 0)
    return found


def _names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(str(row["candidate"]) for row in rows))


def _views(rows: Rows, name: str, place: int) -> list[Claim]:
    """View KL and losses; `place` is the gap of one target length among a row's gaps."""

    def kl(row: Mapping[str, Any]) -> float:
        return gap_of(row, "kl", place)

    def moved(row: Mapping[str, Any]) -> float:
        return gap_of(row, "perturbed_ce", place)

    def ce(row: Mapping[str, Any]) -> float:
        return float(row["ce"])

    def quotient(read: Callable[[Mapping[str, Any]], float], other: str) -> tuple[float, ...]:
        pairs = zip(values(rows, OWN, read), values(rows, other, read), strict=True)
        return tuple(a / b - 1 for a, b in pairs)

    found = [
        Claim(
            f"{name}/view_kl/{other}",
            f"view KL at a gap of one length (nats), {other}",
            values(rows, other, kl),
        )
        for other in _names(rows)
    ]
    found += [
        Claim(
            f"{name}/ce/{other}",
            f"held-out loss, standard view (nats a token), {other}",
            values(rows, other, ce),
        )
        for other in _names(rows)
    ]
    drop = tuple(-change for change in quotient(kl, PLAIN))
    found += [
        Claim(f"{name}/view_kl_drop", "view KL below plain training's at equal steps (share)", drop, 0.25),
        Claim(f"{name}/view_kl_drop_40", "the same against a stricter bar", drop, 0.40),
        Claim(
            f"{name}/perturbed_ce",
            "loss under the moved view above plain training's (share)",
            quotient(moved, PLAIN),
            0.0,
            "<=",
        ),
        Claim(
            f"{name}/standard_ce",
            "loss under the standard view above plain training's (share)",
            quotient(ce, PLAIN),
            0.015,
            "<=",
        ),
    ]
    if "pose" in _names(rows):
        found.append(
            Claim(f"{name}/view_kl_to_pose", "view KL to PoSE's, minus 1", quotient(kl, "pose"), 0.0, "<=")
        )
    if "short_ce" in rows[0]:
        change = quotient(lambda row: float(row["short_ce"]), PLAIN)
        found.append(
            Claim(
                f"{name}/short_ce",
                "loss on short rows above plain training's (share)",
                change,
                0.01,
                "<=",
                "mean",
            )
        )
    return found


def _pair(
    rows: Rows,
    name: str,
    text: str,
    other: str,
    statistic: Callable[[np.ndarray], np.ndarray],
    sign: float,
    one: str = OWN,
) -> list[Claim]:
    """The difference of each seed, and the low end of its interval against 0."""
    mine, theirs = answers(rows, one), answers(rows, other)
    difference = sign * (statistic(mine) - statistic(theirs))
    low, high = sorted(sign * end for end in paired_interval(mine, theirs, statistic))
    return [
        Claim(name, f"{text} (mean over seeds)", tuple(difference.tolist()), 0.0, rule="mean"),
        Claim(f"{name}/low", f"{text}: low end of the paired 95 % interval", (low,), ABOVE),
        Claim(f"{name}/high", f"{text}: high end of the interval", (high,)),
    ]


def _answers(rows: Rows) -> list[Claim]:
    found = []
    for name in _names(rows):
        for where, words in (
            ("answers", "at the target length"),
            ("answers_beyond", "at twice that, with YaRN"),
        ):
            table = answers(rows, name, where)
            key = f"small/{where}/{name}"
            found += [
                Claim(f"{key}/mean", f"accuracy {words}, {name}", tuple(average(table).tolist())),
                Claim(
                    f"{key}/worst",
                    f"accuracy at the worst depth {words}, {name}",
                    tuple(worst(table).tolist()),
                ),
                Claim(f"{key}/std", f"spread over depths {words}, {name}", tuple(unevenness(table).tolist())),
            ]
    found += _pair(rows, "small/worst_depth", "worst-depth accuracy above plain training's", PLAIN, worst, 1)
    found += _pair(rows, "small/spread", "spread over depths below plain training's", PLAIN, unevenness, -1)
    found += _pair(rows, "small/mean", "mean accuracy above plain training's", PLAIN, average, 1)
    if "pose" in _names(rows):
        found += _pair(rows, "small/worst_to_pose", "worst-depth accuracy above PoSE's", "pose", worst, 1)
    if "clm_longer" in _names(rows):
        found += _pair(
            rows,
            "small/worst_to_longer",
            "worst-depth accuracy above plain training's with 1.6 times the steps",
            "clm_longer",
            worst,
            1,
        )

    def drop(name: str) -> np.ndarray:
        found: np.ndarray = average(answers(rows, name)) - average(answers(rows, name, "answers_beyond"))
        return found

    found.append(
        Claim(
            "small/beyond",
            "accuracy lost at twice the length, plain training's minus its own",
            tuple((drop(PLAIN) - drop(OWN)).tolist()),
            0.0,
            rule="mean",
        )
    )
    return found


def _ablations(rows: Rows) -> list[Claim]:
    found: list[Claim] = []
    for name in ("nope_view", "chunk_view"):
        if name not in _names(rows):
            continue
        pair = _pair(
            rows,
            f"small/{name}",
            f"worst-depth accuracy of {name} above plain training's",
            PLAIN,
            worst,
            1,
            name,
        )
        low = pair[1]
        found += [
            Claim(pair[0].name, pair[0].text, pair[0].values),
            # It must not be better by more than noise: the interval's low end is at most 0.
            Claim(low.name, low.text, low.values, 0.0, "<="),
            pair[2],
        ]
    if "nope_view" in _names(rows) and "pose" in _names(rows):
        found += _pair(
            rows,
            "small/pose_over_nope",
            "worst-depth accuracy of PoSE above nope_view's",
            "nope_view",
            worst,
            1,
            "pose",
        )
    return found


def _grid(rows: Rows) -> list[Claim]:
    """Each weight and largest gap against plain training, and in how many of them the interval excludes 0."""
    cells = [name for name in _names(rows) if "/" in name]
    if not cells:
        return []
    found: list[Claim] = []
    for cell in cells:
        pair = _pair(
            rows,
            f"small/grid/{cell.partition('/')[2]}",
            f"worst-depth accuracy of {cell} above plain training's",
            PLAIN,
            worst,
            1,
            cell,
        )
        found += [Claim(one.name, one.text, one.values) for one in pair]
    better = [claim.values[0] >= ABOVE for claim in found if claim.name.endswith("/low")]
    text = "weights and gaps whose worst-depth accuracy is above plain training's beyond chance (share)"
    return [*found, Claim("small/grid/better", text, (sum(better) / len(better),))]
