"""Other summaries of the same size, for comparison and for a one-sided certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.cluster import Birch, kmeans_plusplus

from methods.approx_coresets.space import Dense, Floats


@dataclass(frozen=True)
class VoronoiSummary:
    """The data as cells around representatives: means, masses and what is lost inside the cells (z = 2).

    Attributes:
        points: `(m, d)` means of the cells.
        weights: `(m,)` their masses.
        inner: Delta, the sum of v |p - mean of its cell|^2.
    """

    points: Floats
    weights: Floats
    inner: float

    def cost(self, centers: Any) -> float:
        """Cost of the summary alone."""
        return Dense(self.points, 2).cost(np.asarray(centers, dtype=np.float64), self.weights)

    def cost_bound(self, centers: Any) -> float:
        """cost(P, S) is at most this, for every S; it is equal where S splits no cell."""
        return self.cost(centers) + self.inner


def voronoi_summary(X: Any, representatives: Any, sample_weight: Any = None) -> VoronoiSummary:
    """Means, masses and inner cost of the cells of `representatives` `(m, d)` on `(n, d)` data."""
    space = Dense(X, 2)
    centres = np.asarray(representatives, dtype=np.float64)
    weights = np.ones(space.n) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    labels, _ = space.nearest(centres)
    m = len(centres)
    sums = np.zeros((m, centres.shape[1]))
    for rows in space.slices():
        sums += space.sums(rows, labels[rows], weights[rows], m)
    masses = np.bincount(labels, weights=weights, minlength=m).astype(np.float64)
    kept = masses > 0
    means = sums[kept] / masses[kept][:, None]
    place = np.cumsum(kept) - 1
    inner = 0.0
    for rows in space.slices():
        away = space.block(rows) - means[place[labels[rows]]]
        inner += float(weights[rows] @ np.einsum("ij,ij->i", away, away))
    return VoronoiSummary(means, masses[kept], inner)


def tree_points(X: Any, size: int, random_state: Any = None) -> tuple[Floats, Floats]:
    """Points of StreamKM++ (its coreset tree's aim): D^2-sampled rows, each with the mass nearest to it."""
    centres, _ = kmeans_plusplus(
        np.asarray(X, dtype=np.float64), size, n_local_trials=1, random_state=random_state
    )
    labels, _ = Dense(X, 2).nearest(centres)
    masses = np.bincount(labels, minlength=size).astype(np.float64)
    return centres[masses > 0], masses[masses > 0]


def birch_points(X: Any, size: int) -> tuple[Floats, Floats]:
    """Clustering features of BICO's kind: scikit-learn's Birch, its threshold chosen for about `size` leaves.

    The threshold is halved until the tree has more than `size` leaves, then bisected; the largest tree with at most
    `size` leaves is taken.
    """
    X = np.asarray(X, dtype=np.float64)
    high = float(np.sqrt(X.var(axis=0).sum()))
    low, best = 0.0, None
    for _ in range(9):
        threshold = high / 2 if low == 0 else (low + high) / 2
        found = Birch(threshold=threshold, n_clusters=None, branching_factor=50).fit(X).subcluster_centers_
        if len(found) > size:
            low = threshold
        else:
            high, best = threshold, found
            if len(found) >= 0.9 * size:
                break
    centres = X.mean(axis=0, keepdims=True) if best is None else best
    summary = voronoi_summary(X, centres)
    return summary.points, summary.weights
