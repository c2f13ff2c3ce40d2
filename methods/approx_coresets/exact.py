"""Exact optima of small problems, for measuring coresets without a solver's error: points on a line, tiny sets."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods.approx_coresets.space import Floats
from methods.common.errors import ConfigError


def line_optimum(x: Any, k: int, weights: Any = None, z: int = 2) -> tuple[float, Floats]:
    """The best k centres of points on a line, by dynamic programming over the sorted points.

    Optimal clusters are intervals. Memory n^2 / 2 numbers, time k n^2: for a few thousand points.

    Args:
        x: `(n,)`.
        k: at most this many centres.
        weights: `(n,)`, None for ones.
        z: 2 (means) or 1 (medians).

    Returns:
        the optimum, and its centres `(<= k,)`.

    Raises:
        ConfigError: z is neither 1 nor 2.
    """
    if z not in (1, 2):
        raise ConfigError(f"z={z}: the exact optimum on a line is for 1 and 2")
    order = np.argsort(np.ravel(x), kind="stable")
    points = np.ravel(np.asarray(x, dtype=np.float64))[order]
    shift = points.mean()
    points = points - shift
    w = np.ones(len(points)) if weights is None else np.asarray(weights, dtype=np.float64)[order]
    kept = w > 0
    points, w = points[kept], w[kept]
    n = len(points)
    costs, centres = _intervals(points, w, z)
    best = costs[0].copy()  # best[j]: cost of the first j + 1 points
    cuts = []
    for _ in range(1, min(k, n)):
        # The last cluster starts at i: what is before costs best[i - 1].
        total = np.concatenate([[0.0], best[:-1]])[:, None] + costs
        start = np.argmin(total, axis=0)
        best = total[start, np.arange(n)]
        cuts.append(start)
    found, end = [], n - 1
    for start in reversed(cuts):
        found.append(centres(start[end], end))
        end = start[end] - 1
        if end < 0:
            break
    if end >= 0:
        found.append(centres(0, end))
    return float(max(best[-1], 0.0)), np.sort(np.asarray(found)) + shift


def _intervals(points: Floats, w: Floats, z: int) -> tuple[NDArray[Any], Any]:
    """Cost of every interval i..j (infinite for i > j), and a function that gives its centre."""
    n = len(points)
    mass = np.concatenate([[0.0], np.cumsum(w)])
    first = np.concatenate([[0.0], np.cumsum(w * points)])
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    if z == 2:
        second = np.concatenate([[0.0], np.cumsum(w * points**2)])
        held = np.where(i <= j, mass[j + 1] - mass[i], 1.0)
        costs = second[j + 1] - second[i] - (first[j + 1] - first[i]) ** 2 / held
        costs = np.maximum(costs, 0.0)

        def centre(a: int, b: int) -> float:
            return float((first[b + 1] - first[a]) / (mass[b + 1] - mass[a]))
    else:
        half = (mass[i] + mass[j + 1]) / 2
        middle = np.clip(np.searchsorted(mass, half, side="left") - 1, np.minimum(i, j), np.maximum(i, j))
        median = points[middle]
        left = median * (mass[middle + 1] - mass[i]) - (first[middle + 1] - first[i])
        right = (first[j + 1] - first[middle + 1]) - median * (mass[j + 1] - mass[middle + 1])
        costs = np.maximum(left + right, 0.0)

        def centre(a: int, b: int) -> float:
            return float(median[a, b])

    costs[np.tril_indices(n, -1)] = np.inf
    return costs, centre


def partitions(n: int, k: int) -> list[NDArray[np.int64]]:
    """Every partition of n things into at most k parts, as labels."""
    found: list[list[int]] = [[0]]
    for _ in range(1, n):
        found = [[*one, label] for one in found for label in range(min(max(one) + 2, k))]
    return [np.asarray(one) for one in found]


def tiny_optimum(X: Any, k: int, weights: Any = None) -> tuple[float, Floats]:
    """The best k means of a handful of points, over every partition; centres `(<= k, d)`."""
    X = np.asarray(X, dtype=np.float64)
    w = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64)
    best, chosen = np.inf, X[:1]
    for labels in partitions(len(X), k):
        mass = np.bincount(labels, weights=w)
        if (mass <= 0).any():
            continue
        means = np.stack([np.bincount(labels, weights=w * column) for column in X.T], axis=1) / mass[:, None]
        cost = float(w @ ((X - means[labels]) ** 2).sum(axis=1))
        if cost < best:
            best, chosen = cost, means
    return best, chosen


def medoid_optimum(D: Any, k: int, weights: Any = None, z: float = 1) -> tuple[float, NDArray[Any]]:
    """The best k points as centres of a small distance matrix, over every choice."""
    powers = np.asarray(D, dtype=np.float64) ** z
    w = np.ones(len(powers)) if weights is None else np.asarray(weights, dtype=np.float64)
    choices = (np.asarray(one) for one in combinations(range(len(powers)), k))
    cost, chosen = min(((float(w @ powers[:, one].min(axis=1)), one) for one in choices), key=lambda x: x[0])
    return cost, chosen
