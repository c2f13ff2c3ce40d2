"""Solvers of the weighted problem where no library has one: k-median in space, k-medoids on distances."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from methods.approx_coresets.seeding import Seeds, plus_plus, step
from methods.approx_coresets.space import Dense, Floats, Space
from methods.common.errors import ConfigError, DataError


class WeightedKMedian(ClusterMixin, BaseEstimator):
    """Centres that make the sum of `w d(x, S)^z` small: D^z seeding, then assignment and Weiszfeld steps in turns.

    scikit-learn and faiss have k-means only (z = 2); this serves z = 1 and other powers with weights.

    Args:
        n_clusters: k.
        z: power of the distance, at least 1.
        n_init: starts; the best one is kept.
        max_iter: steps of a start.
        tol: a start ends when a step lowers the cost by less than this share.
        random_state: seed.

    Attributes:
        cluster_centers_: `(k, d)`.
        labels_: `(n,)`.
        inertia_: the cost.
        n_iter_: steps of the best start.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        z: float = 1,
        n_init: int = 5,
        max_iter: int = 100,
        tol: float = 1e-5,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.z = z
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> WeightedKMedian:
        """Find the centres of `(n, d)` points with weights `(n,)`."""
        X = validate_data(self, X, dtype=[np.float64, np.float32])
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if len(X) < self.n_clusters:
            raise DataError(f"n_samples={len(X)} should be >= n_clusters={self.n_clusters}")
        if self.z < 1 or min(self.n_clusters, self.n_init, self.max_iter) < 1:
            raise ConfigError("n_clusters, n_init, max_iter and z: give at least 1")
        space, random = Dense(X, self.z), check_random_state(self.random_state)
        best: tuple[float, Seeds, int] | None = None
        for _ in range(self.n_init):
            found = self._start(space, weights, random)
            if best is None or found[0] < best[0]:
                best = found
        assert best is not None
        self.inertia_, seeds, self.n_iter_ = best
        centres = np.asarray(seeds.centres)
        short = self.n_clusters - len(centres)  # fewer distinct points than clusters: the rest coincide
        self.cluster_centers_ = np.concatenate([centres, np.repeat(centres[:1], short, axis=0)])
        self.labels_ = seeds.labels
        return self

    def _start(
        self, space: Space, weights: Floats, random: np.random.RandomState
    ) -> tuple[float, Seeds, int]:
        seeds = plus_plus(space, weights, self.n_clusters, random)
        cost, done = float(weights @ seeds.costs), 0
        for done in range(1, self.max_iter + 1):
            centres = step(space, seeds, weights)
            labels, costs = space.nearest(centres)
            now = float(weights @ costs)
            for _ in range(20 if self.z > 2 else 0):  # such a step may go too far: half of it
                if now < cost:
                    break
                centres = (centres + seeds.centres) / 2
                labels, costs = space.nearest(centres)
                now = float(weights @ costs)
            if now < cost:
                seeds = Seeds(centres, seeds.indices, labels, costs)
            if now >= cost * (1 - self.tol):
                return min(now, cost), seeds, done
            cost = now
        return cost, seeds, done

    def predict(self, X: Any) -> NDArray[np.int32]:
        """The nearest centre of each row."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return Dense(X, self.z).nearest(self.cluster_centers_)[0]


def swap_medoids(
    D: Any, k: int, weights: Any = None, *, z: float = 1, random_state: Any = None, max_passes: int = 100
) -> tuple[NDArray[Any], float]:
    """Weighted k-medoids by local search: single swaps while they lower the cost (FasterPAM's, with weights).

    Args:
        D: `(m, m)` distances.
        k: medoids.
        weights: `(m,)`, None for ones.
        z: power of the distance.
        random_state: seed of the start (D^z sampling) and of the order.
        max_passes: over all candidates.

    Returns:
        rows that are medoids `(k,)`, and the cost.
    """
    powers = np.asarray(D, dtype=np.float64) ** z
    m = len(powers)
    if not 1 <= k <= m:
        raise ConfigError(f"k={k}: give 1 to {m}, the number of points")
    w = np.ones(m) if weights is None else np.asarray(weights, dtype=np.float64)
    random = check_random_state(random_state)
    medoids = _start_medoids(powers, w, k, random)
    for _ in range(max_passes):
        better = False
        first, second, owner = _two_nearest(powers, medoids)
        for candidate in random.permutation(m):
            if candidate in medoids:
                continue
            to = powers[:, candidate]
            gain = w * np.minimum(to - first, 0.0)  # change without a removal
            # Removing the owner's medoid instead: its points go to the second or to the candidate.
            removed = w * (np.minimum(second, to) - first) - gain
            change = gain.sum() + np.bincount(owner, weights=removed, minlength=k)
            out = int(np.argmin(change))
            if change[out] < -1e-12 * (w @ first):
                medoids[out] = candidate
                first, second, owner = _two_nearest(powers, medoids)
                better = True
        if not better:
            break
    return np.sort(medoids), float(w @ powers[:, medoids].min(axis=1))


def _start_medoids(powers: Floats, w: Floats, k: int, random: np.random.RandomState) -> NDArray[Any]:
    chosen = [int(random.choice(len(w), p=w / w.sum()))]
    while len(chosen) < k:
        mass = w * powers[:, chosen].min(axis=1)
        mass[chosen] = 0.0
        left = np.setdiff1d(np.arange(len(w)), chosen)
        chosen.append(int(random.choice(len(w), p=mass / mass.sum()) if mass.sum() > 0 else left[0]))
    return np.asarray(chosen)


def _two_nearest(powers: Floats, medoids: NDArray[Any]) -> tuple[Floats, Floats, NDArray[Any]]:
    to = powers[:, medoids]
    owner = np.argmin(to, axis=1)
    first = to[np.arange(len(to)), owner]
    to[np.arange(len(to)), owner] = np.inf
    return first, to.min(axis=1), owner
