"""Starts of the loop: the landscape is rugged, and where it starts decides how good it ends."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from sklearn.cluster import KMeans, kmeans_plusplus

from methods.sc_fagc.rounding import round_bounded

Init = Literal["spectral", "kmeans", "random"]
LLOYD_STEPS = 20


def spectral_rows(vectors: np.ndarray) -> np.ndarray:
    """Rows of the eigenvectors at unit norm (Ng, Jordan, Weiss)."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(norms > 0, norms, 1.0))


def start_labels(
    rows: np.ndarray, low: np.ndarray, high: np.ndarray, rng: np.random.RandomState, turn: int
) -> np.ndarray:
    """Labels within the bounds: k-means whose assignment is `round_bounded` on the negative squared distance.

    Args:
        rows: `[m, f]`.
        low, high: bounds in whole rows, `[c]`.
        rng: of this start.
        turn: number of the start. Where bounds differ between clusters, even turns give the largest bounds to the
            clusters that are largest without bounds, odd turns deal them out by chance.
    """
    c = len(low)
    if (low == low[0]).all() and (high == high[0]).all():
        centres, _ = kmeans_plusplus(rows, c, random_state=rng)
    else:
        free = KMeans(c, n_init=1, random_state=rng).fit(rows)
        sizes = np.bincount(free.labels_, minlength=c)
        order = np.argsort(-sizes, kind="stable") if turn % 2 == 0 else rng.permutation(c)
        centres = np.empty_like(free.cluster_centers_)
        centres[np.argsort(-(low + high), kind="stable")] = free.cluster_centers_[order]
    labels = None
    for _ in range(LLOYD_STEPS):
        # |row|^2 is the same for every cluster and decides nothing.
        scores = 2 * rows @ centres.T - (centres**2).sum(axis=1)
        found = round_bounded(scores, low, high)
        if labels is not None and np.array_equal(found, labels):
            break
        labels = found
        sizes = np.bincount(labels, minlength=c)
        sums = one_hot(labels, c).T @ rows
        centres = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], centres)
    assert labels is not None
    return labels


def random_labels(m: int, low: np.ndarray, high: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """Chance labels within the bounds."""
    return round_bounded(rng.uniform(size=(m, len(low))), low, high)


def one_hot(labels: Any, c: int) -> np.ndarray:
    """Labels `[m]` as a 0/1 membership `[m, c]`."""
    return np.eye(c)[np.asarray(labels)]
