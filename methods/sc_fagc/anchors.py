"""Anchors: a few representatives of all samples.

The default is balanced hierarchical 2-means (BKHK of the anchor-graph line): every anchor is the mean of an equal
share of the samples, which is what turns bounds on anchors into control of the samples' sizes. A few steps of k-means
then move the anchors off the borders between clusters, where cuts into equal halves put some; the shares stay close.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

AnchorMethod = Literal["bkhk", "kmeans", "random"]
ITERATIONS = 15
# A larger group's two centres are sought on this many of its members; the split itself is over all of them.
SAMPLE = 8_192
CHUNK = 16_384
TIE = 1e-9
REFINE, REFINE_SAMPLE = 3, 64


def choose_anchors(
    x: Any, count: int, method: AnchorMethod, rng: np.random.RandomState, refine: int = REFINE
) -> np.ndarray:
    """`count` anchors of the samples.

    Args:
        x: samples, `[n, d]`, dense or CSR, n >= count.
        count: how many; a power of two for `bkhk`.
        method: `bkhk`, centres of scikit-learn's MiniBatchKMeans, or random samples.
        rng: of every random choice.
        refine: steps of k-means from the balanced anchors, on at most 64 samples an anchor; 0 keeps equal shares.

    Returns:
        `[count, d]`, float64.
    """
    if method == "bkhk":
        anchors = balanced_anchors(x, count, rng)
        return refined(x, anchors, refine, rng) if refine else anchors
    if method == "random":
        return _dense(x[np.sort(rng.choice(x.shape[0], count, replace=False))])
    from sklearn.cluster import MiniBatchKMeans

    means = MiniBatchKMeans(count, n_init=1, batch_size=max(1024, 4 * count), random_state=rng).fit(x)
    return np.asarray(means.cluster_centers_, dtype=np.float64)


def balanced_anchors(x: Any, count: int, rng: np.random.RandomState) -> np.ndarray:
    """Means of the leaves of balanced 2-means splits: every leaf holds n / count samples, rounded up or down.

    Cost O(n d log count). No copy of `x` is made: groups are lists of row numbers.
    """
    groups = [np.arange(x.shape[0])]
    while len(groups) < count:
        groups = [half for group in groups for half in _halves(x, group, rng)]
    return np.stack([_mean(x, group) for group in groups])


def refined(x: Any, anchors: np.ndarray, steps: int, rng: np.random.RandomState) -> np.ndarray:
    """The anchors after `steps` of scikit-learn's k-means on at most 64 samples an anchor."""
    from sklearn.cluster import KMeans

    count = REFINE_SAMPLE * len(anchors)
    rows = slice(None) if x.shape[0] <= count else np.sort(rng.choice(x.shape[0], count, replace=False))
    part = x[rows].astype(np.float64)  # a copy, which k-means may centre in place
    means = KMeans(
        len(anchors), init=anchors, n_init=1, max_iter=steps, tol=0.0, copy_x=False, random_state=rng
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # equal rows: unused anchors are dropped later
        means.fit(part)
    return np.asarray(means.cluster_centers_)


def _halves(x: Any, group: np.ndarray, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """The group in two: the floor(h / 2) members nearest to the first centre against the second, and the rest."""
    half = len(group) // 2
    sample = group if len(group) <= SAMPLE else np.sort(rng.choice(group, SAMPLE, replace=False))
    rows = _dense(x[sample])
    rows -= rows.mean(axis=0)
    cut = len(sample) // 2
    one, two = rng.choice(len(sample), 2, replace=False)
    direction = rows[two] - rows[one]
    side: np.ndarray | None = None
    chosen = np.zeros(0, dtype=bool)
    total = rows.sum(axis=0)
    for _ in range(ITERATIONS):
        # |x - c1|^2 - |x - c2|^2 = 2 x (c2 - c1) + a constant, which does not change the order.
        chosen = _smallest(rows @ direction, cut)
        if side is not None and np.array_equal(side, chosen):
            break
        side = chosen
        first = rows[chosen].sum(axis=0)
        direction = (total - first) / (len(sample) - cut) - first / cut
    if len(sample) < len(group):
        chosen = _smallest(np.concatenate([_project(x[part], direction) for part in _chunks(group)]), half)
    return group[chosen], group[~chosen]


def _smallest(values: np.ndarray, count: int) -> np.ndarray:
    """Which entries are the `count` smallest; of equal ones, up to rounding, the first: scaled data split alike."""
    span = float(np.abs(values).max()) or 1.0
    steps = np.rint(values.astype(np.float64) * (1 / (TIE * span)))
    threshold = np.partition(steps, count - 1)[count - 1]
    chosen = steps < threshold
    ties = np.flatnonzero(steps == threshold)
    chosen[ties[: count - int(chosen.sum())]] = True
    return np.asarray(chosen)


def _chunks(group: np.ndarray) -> list[np.ndarray]:
    return [group[start : start + CHUNK] for start in range(0, len(group), CHUNK)]


def _project(rows: Any, direction: np.ndarray) -> np.ndarray:
    return np.asarray(rows @ direction.astype(rows.dtype, copy=False)).ravel()


def _dense(rows: Any) -> np.ndarray:
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows, dtype=np.float64)


def _mean(x: Any, group: np.ndarray) -> np.ndarray:
    total = np.zeros(x.shape[1])
    for part in _chunks(group):
        rows = x[part]
        total += np.asarray(rows.sum(axis=0, dtype=np.float64)).ravel()
    return total / len(group)
