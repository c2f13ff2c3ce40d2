"""Steps 1 and 2 of the construction: a set A of centres that is good within a constant, and one pass against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods.approx_coresets.draw import draw
from methods.approx_coresets.space import BUDGET, Dense, Floats, Ints, Space, Sparse

ROUNDS = 5  # of k-means||
OVERSAMPLING = 2  # candidates a round, as a multiple of the centres


@dataclass
class Seeds:
    """A: centres, and each point against them.

    Attributes:
        centres: `(K, d)`, or `(K,)` indices in a distance matrix.
        indices: `(K,)` the points that the centres are, -1 where a centre is no point.
        labels: `(n,)` position of the nearest centre.
        costs: `(n,)` d(p, A)^z.
    """

    centres: Any
    indices: Ints
    labels: NDArray[np.int32]
    costs: Floats


def seed(
    space: Space, weights: Floats | None, k: int, init: Any, steps: int, random: np.random.RandomState
) -> Seeds:
    """At most k centres, fewer when there are fewer distinct points.

    Args:
        space: the points.
        weights: v, `(n,)`, or None for ones.
        k: how many.
        init: 'k-means++' (D^z sampling, k passes), 'k-means||' (a handful of passes), 'random', or centres.
        steps: Lloyd (z = 2) or Weiszfeld steps afterwards.
        random: source of chance.
    """
    if not isinstance(init, str):
        centres = np.asarray(init)
        labels, costs = space.nearest(centres)
        found = Seeds(centres, np.full(len(centres), -1), labels, costs)
    elif init == "k-means||":
        found = _parallel(space, weights, k, random)
    elif init == "random":
        mass = np.ones(space.n) if weights is None else weights
        indices = np.unique(draw(random, k, mass))
        found = _at(space, indices)
    else:
        found = plus_plus(space, weights, k, random)
    for _ in range(steps):
        centres = step(space, found, weights)
        labels, costs = space.nearest(centres)
        found = Seeds(centres, np.full(len(centres), -1), labels, costs)
    return found


def _at(space: Space, indices: Ints) -> Seeds:
    centres = space.at(indices)
    labels, costs = space.nearest(centres)
    return Seeds(centres, indices, labels, costs)


def plus_plus(space: Space, weights: Floats | None, k: int, random: np.random.RandomState) -> Seeds:
    """D^z sampling (k-means++): each centre is a point drawn in proportion to v d(p, A)^z.

    The nearest centre and its cost are kept on the way, so that no further pass is needed.
    """
    costs = np.full(space.n, np.inf)
    labels = np.zeros(space.n, dtype=np.int32)
    mass = np.ones(space.n) if weights is None else weights
    first = int(draw(random, 1, mass)[0])
    if weights is None:
        del mass  # a vector of n that need not live on
    chosen = [first]
    while True:
        centre = space.at(np.asarray([chosen[-1]]))[0]
        for rows in space.slices():
            found = space.to_one(rows, centre)
            nearer = found < costs[rows]
            np.copyto(costs[rows], found, where=nearer)
            labels[rows][nearer] = len(chosen) - 1
        if len(chosen) == k or not _any_mass(costs, weights):
            break
        chosen.append(int(draw(random, 1, costs, weights)[0]))
    indices = np.asarray(chosen)
    return Seeds(space.at(indices), indices, labels, costs)


def _any_mass(costs: Floats, weights: Floats | None) -> bool:
    return bool((costs > 0).any() if weights is None else ((costs > 0) & (weights > 0)).any())


def _parallel(space: Space, weights: Floats | None, k: int, random: np.random.RandomState) -> Seeds:
    """k-means|| (Bahmani et al. 2012): each round takes about 2 k points at once, D^z sampling thins them to k."""
    mass = np.ones(space.n) if weights is None else weights
    indices = draw(random, 1, mass)
    labels, costs = space.nearest(space.at(indices))
    for _ in range(ROUNDS):
        total = float(costs.sum() if weights is None else weights @ costs)
        if total <= 0:
            break
        chance = np.minimum(1.0, OVERSAMPLING * k / total * costs * (1.0 if weights is None else weights))
        fresh = np.flatnonzero(random.uniform(size=space.n) < chance)
        if not len(fresh):
            continue
        # Points of one place are one candidate.
        centres = space.at(fresh)
        for rows in space.slices(max(1, BUDGET // len(fresh))):
            near, found = space.to_all(rows, centres)
            nearer = found < costs[rows]
            np.copyto(costs[rows], found, where=nearer)
            labels[rows] = np.where(nearer, near + len(indices), labels[rows])
        indices = np.concatenate([indices, fresh])
    counts = np.bincount(labels, weights=weights, minlength=len(indices)).astype(np.float64)
    kept = np.flatnonzero(counts > 0)
    candidates = type(space)(
        space.X[np.ix_(indices[kept], indices[kept])] if space.metric else space.X[indices[kept]],
        space.z,
        space.chunk_size,
    )
    thinned = plus_plus(candidates, counts[kept], k, random)
    return _at(space, indices[kept][thinned.indices])


def step(space: Space, seeds: Seeds, weights: Floats | None) -> Any:
    """One Lloyd step (z = 2), or one Weiszfeld step of each cluster; a cluster without points keeps its centre.

    A centre that stands on points (each seed does) would be held there by their infinite pull. For z = 1 such points
    hold it only as far as their mass outweighs the pull of the others (Vardi and Zhang 2000); for z > 1 they do not
    pull. For z > 2 the step is shortened by 1 / (z - 1), which keeps the fixed point and makes it attract.
    """
    if not isinstance(space, Dense | Sparse):
        raise TypeError("a distance matrix has no mean; medoids are found by swaps")
    k, z, centres = len(seeds.centres), space.z, np.asarray(seeds.centres, dtype=np.float64)
    total, mass, held = np.zeros_like(centres), np.zeros(k), np.zeros(k)
    near = 1e-12 * float(seeds.costs.max(initial=0.0)) ** (1 / z)
    for rows in space.slices():
        own = np.ones(rows.stop - rows.start) if weights is None else weights[rows].copy()
        labels = seeds.labels[rows]
        if z < 2:
            away = seeds.costs[rows] ** (1 / z)
            on = away <= near
            held += np.bincount(labels, weights=own * on, minlength=k)
            own *= np.where(on, 0.0, np.where(on, 1.0, away) ** (z - 2))
        elif z > 2:
            own *= seeds.costs[rows] ** ((z - 2) / z)
        total += space.sums(rows, labels, own, k)
        mass += np.bincount(labels, weights=own, minlength=k)
    there = mass > 0
    moved = np.where(there[:, None], total / np.where(there, mass, 1.0)[:, None], centres)
    if z == 1:
        pull = np.linalg.norm(total - mass[:, None] * centres, axis=1)
        stay = np.where(pull > 0, np.minimum(1.0, held / np.where(pull > 0, pull, 1.0)), held > 0)
        moved = moved + stay[:, None] * (centres - moved)
    return moved if z <= 2 else centres + (moved - centres) / (z - 1)
