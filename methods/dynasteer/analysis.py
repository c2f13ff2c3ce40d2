"""What steering did to whom: paired gains with intervals over groups, harm, the two laws, and degenerate text."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from methods.common.errors import DataError
from methods.dynasteer.decoding import Decoded


@dataclass(frozen=True)
class Comparison:
    """A policy against another on the same questions.

    Attributes:
        gain: mean difference of correctness.
        low, high: 95 % bootstrap interval of it, whole groups drawn at a time.
        fixed: questions that only the policy has right.
        harmed: questions that only the other has right.
        design_effect: variance of the gain over what independent questions would give; 1 without groups.
    """

    gain: float
    low: float
    high: float
    fixed: int
    harmed: int
    design_effect: float

    @property
    def decided(self) -> bool:
        """Whether the interval leaves 0 out, on the side of a gain."""
        return self.low > 0


def compare(
    policy: Sequence[float] | np.ndarray,
    other: Sequence[float] | np.ndarray,
    groups: Sequence[object] | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Paired comparison; questions of one template are one unit, since they succeed and fail together.

    Args:
        policy, other: [n] correctness of each question, 0 to 1.
        groups: [n] names; each question is its own group by default.
        draws, seed: of the bootstrap.

    Raises:
        DataError: lengths differ, or there is no question.
    """
    a, b = np.asarray(policy, float), np.asarray(other, float)
    if not len(a) or len(a) != len(b) or (groups is not None and len(groups) != len(a)):
        raise DataError(
            f"{len(a)} and {len(b)} answers: give one of each policy (and one group) for each question"
        )
    difference = a - b
    names = (
        np.arange(len(a)) if groups is None else np.unique([str(g) for g in groups], return_inverse=True)[1]
    )
    count = int(names.max()) + 1
    sums = np.bincount(names, difference, count)
    sizes = np.bincount(names, minlength=count)
    drawn = np.random.default_rng(seed).integers(0, count, (draws, count))
    means = sums[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    independent = difference.var() / len(a)
    return Comparison(
        float(difference.mean()),
        float(low),
        float(high),
        int((difference > 0).sum()),
        int((difference < 0).sum()),
        float(means.var() / independent) if independent > 0 else 1.0,
    )


def gain_by_entropy(
    gains: Sequence[float], entropies: Sequence[float], bins: int = 10
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean gain by quantile of the lookahead entropy at the sentence that was steered (Uncertainty Principle).

    Args:
        gains: [n] correctness with the sentence steered minus with it only drawn again.
        entropies: [n] its lookahead entropy in nats.
        bins: equally filled ones.

    Returns:
        mean entropy, mean gain and standard error of each bin [bins].
    """
    g, e = np.asarray(gains, float), np.asarray(entropies, float)
    if len(g) < bins:
        raise DataError(f"{len(g)} steered sentences cannot fill {bins} bins; give more, or fewer bins")
    parts = np.array_split(np.argsort(e, kind="stable"), bins)
    errors = [g[p].std(ddof=1) / len(p) ** 0.5 if len(p) > 1 else 0.0 for p in parts]
    return np.array([e[p].mean() for p in parts]), np.array([g[p].mean() for p in parts]), np.array(errors)


def lookaheads(answers: Sequence[Decoded], sentence: int) -> np.ndarray:
    """Lookahead entropy at sentence number `sentence` (from 1) of each answer; NaN where it has fewer."""
    return np.array(
        [a.sentences[sentence - 1].lookahead if len(a.sentences) >= sentence else np.nan for a in answers]
    )


def repetition(text: str, n: int = 4) -> tuple[float, float]:
    """Signs of a loop: compressed over plain size, and the share of word n-grams that occurred before."""
    raw = text.encode("utf-8")
    words = text.split()
    grams = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    total = sum(grams.values())
    ratio = len(zlib.compress(raw, 9)) / len(raw) if raw else 1.0
    return ratio, 1 - len(grams) / total if total else 0.0
