"""Hard labels with strict size bounds, exactly: Y = argmax <S, Y> over 0/1 rows with l <= Y^T 1 <= u.

The linear program's vertices are integral, so successive shortest paths between clusters solve it exactly: each row
starts at its best cluster, which is optimal for the sizes that this gives, and every path moves one unit of size to
where a bound still misses it, at the least loss.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from methods.common.errors import ConfigError, DataError
from methods.sc_fagc.bound_values import bound_values


def round_bounded(scores: Any, lower: Any, upper: Any, *, prices: Any = None) -> np.ndarray:
    """The assignment of rows to clusters of the largest total score within the bounds.

    Args:
        scores: S, `[m, c]`, finite.
        lower, upper: bounds of the sizes in rows, a number or `[c]`; fractions are tightened to whole rows
            (`ceil(lower)`, `floor(upper)`), `upper` may be infinite.
        prices: added to the columns for the start only, in the units of the scores; good ones save paths, the result
            is optimal with any.

    Returns:
        labels `[m]`, int64.

    Raises:
        ConfigError: no assignment has such sizes; names both sums and bounds that can be met.
        DataError: scores that are not a finite matrix.
    """
    s = np.asarray(scores, dtype=np.float64)
    if s.ndim != 2 or 0 in s.shape or not np.isfinite(s).all():
        raise DataError(f"scores: needs a finite matrix of at least one row and column; got shape {s.shape}")
    m, c = s.shape
    low, high = whole_bounds(lower, upper, m, c)
    return _shortest_paths(s, low, high, np.zeros(c) if prices is None else np.asarray(prices, dtype=float))


def whole_bounds(lower: Any, upper: Any, m: int, c: int, what: str = "rows") -> tuple[np.ndarray, np.ndarray]:
    """The bounds in whole rows, `[c]` each.

    Raises:
        ConfigError: see `round_bounded`.
    """
    given = [bound_values(name, values, c) for name, values in (("lower", lower), ("upper", upper))]
    # A bound that was scaled by a ratio of counts misses a whole number by rounding only.
    low = np.ceil(given[0] - 1e-9 * np.maximum(given[0], 1)).astype(np.int64)
    high = np.floor(np.minimum(given[1], m) * (1 + 1e-9) + 1e-9).astype(np.int64)
    if (low > high).any():
        j = int(np.argmax(low - high))
        raise ConfigError(
            f"bounds: cluster {j} needs at least {given[0][j]:g} and at most {given[1][j]:g} {what}, and no whole "
            f"number lies between; give at most {int(np.floor(given[0][j]))} or at least {int(np.ceil(given[1][j]))}"
        )
    if low.sum() > m or high.sum() < m:
        raise ConfigError(
            f"bounds: over {c} clusters the lower ones add up to {low.sum()} and the upper ones to {high.sum()} whole "
            f"{what}, and {m} must lie between them; lower bounds of {m // c} and upper ones of {-(-m // c)} can be met"
        )
    return low, high


def _shortest_paths(s: np.ndarray, low: np.ndarray, high: np.ndarray, prices: np.ndarray) -> np.ndarray:
    m, c = s.shape
    labels = (s + prices).argmax(axis=1)
    sizes = np.bincount(labels, minlength=c)
    # Node c stands for "all rows placed"; an arc from cluster k to it carries k's size within its bounds. With prices,
    # complementary slackness fixes the flow at the bound that a price pays for.
    flow = np.where(prices > 0, low, np.where(prices < 0, high, np.clip(sizes, low, high)))
    excess = np.append(sizes - flow, flow.sum() - m)
    # loss[k, j]: the least score lost by moving one row from k to j; by[k, j]: that row.
    loss = np.full((c + 1, c + 1), np.inf)
    by = np.full((c, c), -1)
    for k in range(c):
        _cheapest_moves(s, labels, k, loss, by)
    while (excess > 0).any():
        loss[:c, c] = np.where(flow < high, 0.0, np.inf)
        loss[c, :c] = np.where(flow > low, 0.0, np.inf)
        path = _cheapest_path(loss, excess)
        excess[path[0]] -= 1
        excess[path[-1]] += 1
        touched = set()
        for k, j in pairwise(path):
            if j == c:
                flow[k] += 1
            elif k == c:
                flow[j] -= 1
            else:
                labels[by[k, j]] = j
                touched |= {k, j}
        for k in touched:
            _cheapest_moves(s, labels, k, loss, by)
    return labels


def _cheapest_moves(s: np.ndarray, labels: np.ndarray, k: int, loss: np.ndarray, by: np.ndarray) -> None:
    c = s.shape[1]
    members = np.flatnonzero(labels == k)
    if not len(members):
        loss[k, :c] = np.inf
        by[k] = -1
        return
    lost = s[members, k][:, None] - s[members]
    best = lost.argmin(axis=0)
    loss[k, :c] = lost[best, np.arange(c)]
    loss[k, k] = np.inf
    by[k] = members[best]


def _cheapest_path(loss: np.ndarray, excess: np.ndarray) -> list[int]:
    """Bellman-Ford from all nodes with too much to the nearest one with too little; losses may be negative."""
    size = len(excess)
    distance = np.where(excess > 0, 0.0, np.inf)
    before = np.full(size, -1)
    # Rounding may show a cycle of -1e-17 that is none: only a real gain changes a distance.
    least = 1e-13 * max(1.0, float(np.abs(loss[np.isfinite(loss)]).max(initial=0.0)))
    for _ in range(size):
        through = distance[:, None] + loss
        nearest = through.argmin(axis=0)
        value = through[nearest, np.arange(size)]
        better = value < distance - least
        if not better.any():
            break
        distance = np.where(better, value, distance)
        before = np.where(better, nearest, before)
    ends = np.where(excess < 0, distance, np.inf)
    node = int(ends.argmin())
    if not np.isfinite(ends[node]):  # cannot happen with checked bounds
        raise ConfigError("bounds: no assignment meets them")
    path = [node]
    while before[path[-1]] >= 0 and len(path) <= size:
        path.append(int(before[path[-1]]))
    return path[::-1]
