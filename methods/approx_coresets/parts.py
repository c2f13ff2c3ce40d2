"""Pieces of a coreset on their way: weighted points of some rows, picked, joined and measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from methods.approx_coresets.sampling import Sample
from methods.approx_coresets.seeding import Seeds
from methods.approx_coresets.space import Floats, Ints


@dataclass
class Part:
    """Weighted points of some rows of a stream; `level` says how often they were sampled again."""

    level: int
    points: Any
    weights: Floats
    indices: Ints


def plain(value: Any) -> Any:
    """A parameter as JSON knows it."""
    return value.item() if isinstance(value, np.generic) else str(value)


def rows_of(X: Any, indices: Ints, metric: str) -> Any:
    """Copies of rows; of a distance matrix the distances among them."""
    if metric == "precomputed":
        return np.asarray(X[np.ix_(indices, indices)])
    return X[indices] if sparse.issparse(X) else np.asarray(X[indices])


def dense(points: Any) -> NDArray[Any]:
    """Points as a full matrix in double precision."""
    return np.asarray(points.toarray() if sparse.issparse(points) else points, dtype=np.float64)


def with_extra(X: Any, taken: Sample) -> Any:
    """Rows of the data, and in the places of index -1 the centres."""
    points = np.empty((len(taken.indices), X.shape[1]))
    own = taken.indices >= 0
    points[own] = dense(X[taken.indices[own]])
    points[~own] = taken.extra
    return points


def joined(parts: list[Part]) -> Part:
    """The union: all points, their weights kept, at the highest level."""
    if len(parts) == 1:
        return parts[0]
    stack = sparse.vstack if any(sparse.issparse(p.points) for p in parts) else np.concatenate
    points = stack([p.points for p in parts])
    return Part(
        max(p.level for p in parts),
        sparse.csr_array(points) if sparse.issparse(points) else points,
        np.concatenate([p.weights for p in parts]),
        np.concatenate([p.indices for p in parts]),
    )


def relative_variance(q: Floats, seeds: Seeds, weights: Floats | None, size: int) -> float:
    """Variance of cost(Omega, A) over its square, for draws from q."""
    total = float(seeds.costs.sum() if weights is None else seeds.costs @ weights)
    if total <= 0:
        return 0.0
    square = 0.0
    for start in range(0, len(q), 65536):
        part = slice(start, start + 65536)
        share = seeds.costs[part] / total
        if weights is not None:
            share *= weights[part]
        square += float(np.divide(share**2, q[part], out=np.zeros(len(share)), where=q[part] > 0).sum())
    return max(0.0, square - 1) / size
