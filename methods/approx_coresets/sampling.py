"""Steps 3 and 4: how likely each point is drawn, the draw, and the weights that make its cost unbiased."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods.approx_coresets.draw import draw
from methods.approx_coresets.seeding import Seeds
from methods.approx_coresets.space import Floats, Ints, Space

SCORES = ("four_term", "two", "lightweight", "uniform")
WEIGHTS = ("importance", "normalised", "residual", "voronoi")
NOTHING = 1e-290  # of the largest cost: its reciprocal would leave the finite numbers
RINGS, GROUPS = 4, 4  # of group sampling: rings -4..4 around each centre, groups 0..4 of clusters in a ring


@dataclass
class Sample:
    """Omega as rows of the input.

    Attributes:
        indices: `(m',)` ascending; -1 for a centre that is no point.
        weights: `(m',)` positive.
        extra: centres for the rows with index -1, in their order.
    """

    indices: Ints
    weights: Floats
    extra: Any = None


@dataclass
class Clusters:
    """What the scores need of the clusters of A: masses n_i, costs C_i and their sum C."""

    masses: Floats
    costs: Floats

    @property
    def total(self) -> float:
        return float(self.costs.sum())


def clusters_of(seeds: Seeds, weights: Floats | None) -> Clusters:
    k = len(seeds.centres)
    spent = seeds.costs if weights is None else seeds.costs * weights
    return Clusters(
        np.bincount(seeds.labels, weights=weights, minlength=k).astype(np.float64),
        np.bincount(seeds.labels, weights=spent, minlength=k).astype(np.float64),
    )


def cluster_scores(scores: str, seeds: Seeds, weights: Floats | None) -> Floats:
    """q, `(n,)`, summing to 1, from the clusters of A.

    four_term: q_p = v_p / 4 (1 / (K n_i) + c_p / (K C_i) + c_p / C + C_i / (n_i C)), K the clusters with mass. Where
    C_i = 0 the second term is 1 / (K n_i); where C = 0 only the first is left. two: v_p (1 / (K n_i) + c_p / C) / 2.
    """
    found = clusters_of(seeds, weights)
    largest = float(seeds.costs.max(initial=0.0))
    there, costs, total = found.masses > 0, found.costs, found.total
    count = int(there.sum())
    if total <= 0 or largest <= 0:
        flat, slope = _share(1.0, count * found.masses, there), np.zeros(len(there))
    else:
        spread = there & (costs > NOTHING * total)
        first = _share(1.0, count * found.masses, there)
        if scores == "two":
            flat, slope = first / 2, np.full(len(there), 0.5)
        else:
            last = _share(costs / total, found.masses, there)
            flat = (first + np.where(spread, 0.0, first) + last) / 4
            # In units of C, so that a tiny total does not overflow.
            slope = (_share(1.0, count * costs / total, spread) + 1.0) / 4
    q = np.empty(len(seeds.labels))
    for start in range(0, len(q), 65536):
        part = slice(start, start + 65536)
        labels = seeds.labels[part]
        chance = flat[labels]
        if total > 0:
            chance += slope[labels] * (seeds.costs[part] / total)
        q[part] = chance if weights is None else chance * weights[part]
    return q


def _share(above: Any, below: Floats, where: NDArray[np.bool_]) -> Floats:
    return np.divide(above, below, out=np.zeros(len(below)), where=where)


def plain_scores(scores: str, space: Space, weights: Floats | None) -> Floats:
    """q, `(n,)`, without a clustering: 'uniform', or 'lightweight' (half uniform, half by the distance to the mean)."""
    mass = float(space.n if weights is None else weights.sum())
    share = np.full(space.n, 1 / mass) if weights is None else weights / mass
    if scores == "uniform":
        return share
    centre = space.centroid(weights)
    away = np.concatenate([space.to_one(rows, centre) for rows in space.slices()])
    if weights is not None:
        away *= weights
    total = away.sum()
    return share if total <= 0 else (share + away / total) / 2


def sample(
    q: Floats, weights: Floats | None, size: int, merge: bool, random: np.random.RandomState
) -> Sample:
    """Step 4: `size` draws from q with replacement, each of weight v_p / (size q_p); equal draws become one point."""
    drawn = draw(random, size, q)
    indices, counts = np.unique(drawn, return_counts=True) if merge else (drawn, np.ones(size))
    mass = 1.0 if weights is None else weights[indices]
    return Sample(indices, counts * mass / (size * q[indices]))


def residual(
    seeds: Seeds, weights: Floats | None, size: int, merge: bool, random: np.random.RandomState
) -> Sample:
    """Weights "residual": draws by cost alone, and each centre carries what its cluster's draws leave of its mass."""
    found = clusters_of(seeds, weights)
    left, wanted = found.masses.copy(), size - len(seeds.centres)
    drawn = Sample(np.empty(0, dtype=np.int64), np.empty(0))
    if wanted > 0 and found.total > 0:
        spent = seeds.costs if weights is None else seeds.costs * weights
        drawn = sample(spent / found.total, weights, wanted, merge, random)
        left -= np.bincount(seeds.labels[drawn.indices], weights=drawn.weights, minlength=len(left))
    return with_centres(seeds, drawn, np.maximum(left, 0.0), merge)


def with_centres(seeds: Seeds, drawn: Sample, masses: Floats, merge: bool) -> Sample:
    """The draws and those centres of A that carry mass."""
    carry = masses > 0
    own = np.where(carry, seeds.indices, -1)
    indices = np.concatenate([drawn.indices, own[carry]])
    weights = np.concatenate([drawn.weights, masses[carry]])
    extra = np.asarray(seeds.centres)[carry & (seeds.indices < 0)]
    if merge and not len(extra):
        unique, where = np.unique(indices, return_inverse=True)
        indices, weights = unique, np.bincount(where, weights=weights)
    order = np.argsort(indices, kind="stable")
    return Sample(indices[order], weights[order], extra)


def group_sample(
    seeds: Seeds, weights: Floats | None, size: int, merge: bool, random: np.random.RandomState
) -> Sample:
    """Group sampling (Cohen-Addad, Saulpic, Schwiegelshohn 2021).

    Rings by cost around each centre, clusters of a ring grouped by their share of its cost; a group gets draws by its
    cost, within it by cost. Points closer than the innermost ring go to their centre. Weights are not exactly unbiased.
    """
    found = clusters_of(seeds, weights)
    k, labels = len(seeds.centres), seeds.labels
    mass = np.ones(len(labels)) if weights is None else weights
    spent = mass * seeds.costs
    mean = _share(found.costs, found.masses, found.masses > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ring = np.floor(np.log2(seeds.costs / mean[labels]))
    ring = np.where(seeds.costs > 0, np.clip(ring, -RINGS - 1, RINGS + 1), -RINGS - 1).astype(np.int64)
    outside = ring >= -RINGS
    number = (ring + RINGS) * k + labels  # one for each ring of each cluster
    shares = np.bincount(number[outside], weights=spent[outside], minlength=(2 * RINGS + 2) * k)
    shares = shares.reshape(2 * RINGS + 2, k)
    rings = shares.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.clip(np.ceil(-np.log2(shares / rings * k)), 0, GROUPS)
    group = np.nan_to_num(level).astype(np.int64) + (GROUPS + 1) * np.arange(2 * RINGS + 2)[:, None]
    group_of = np.where(outside, group.ravel()[np.where(outside, number, 0)], -1)
    total = float(spent[outside].sum())
    carried = np.bincount(labels[~outside], weights=mass[~outside], minlength=k).astype(np.float64)
    indices, given = [], []
    wanted = max(0, size - k)
    for one in np.unique(group_of[outside]):
        members = np.flatnonzero(group_of == one)
        cost = float(spent[members].sum())
        share = wanted * cost / total if total > 0 else 0.0
        if share < 1:
            carried += np.bincount(labels[members], weights=mass[members], minlength=k)
        elif share >= len(members):
            indices.append(members)
            given.append(mass[members])
        else:
            draws = math.floor(share) + int(random.uniform() < share - math.floor(share))
            taken = sample(spent[members] / cost, mass[members], draws, merge, random)
            indices.append(members[taken.indices])
            given.append(taken.weights)
    drawn = Sample(
        np.concatenate(indices) if indices else np.empty(0, dtype=np.int64),
        np.concatenate(given) if given else np.empty(0),
    )
    return with_centres(seeds, drawn, carried, merge)
