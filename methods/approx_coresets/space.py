"""Points in a space: distances to centres to the power z, a chunk of rows at a time, in double precision.

Three kinds of points: rows of a matrix (`Dense`, also a memory map larger than memory), rows of a sparse matrix
(`Sparse`, z = 2), and the points of a distance matrix (`Metric`), whose centres are indices of its points.

Costs are exact differences where the data are dense: |x|^2 - 2 x.c + |c|^2 loses every digit of a tight cluster far
from the origin, so that form only chooses the nearest centre, and the chosen distance is computed anew.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from methods.common.errors import DataError

Floats = NDArray[np.float64]
Ints = NDArray[Any]

BUDGET = 2**22  # numbers in a temporary block of distances: 32 MiB


def power(squared: Floats, z: float) -> Floats:
    """Squared distances as d^z, in place where it can."""
    if z == 2:
        return squared
    if z == 1:
        return np.sqrt(squared, out=squared)
    return np.power(squared, z / 2, out=squared)


class Space(ABC):
    """n points, and what a clustering needs of them.

    Args:
        X: the points.
        z: power of the distance in the cost.
        chunk_size: rows that are looked at at once.
    """

    metric = False

    def __init__(self, X: Any, z: float, chunk_size: int = 8192) -> None:
        self.X, self.z, self.chunk_size = X, z, chunk_size
        self.n = int(X.shape[0])

    def slices(self, rows: int | None = None) -> Iterator[slice]:
        """The rows in chunks."""
        step = min(self.chunk_size, rows or self.chunk_size)
        for start in range(0, self.n, step):
            yield slice(start, min(start + step, self.n))

    def at(self, indices: Ints) -> Any:
        """Points as centres: `nearest` and `to_one` take them."""
        return self.X[indices]

    @abstractmethod
    def to_one(self, rows: slice, centre: Any) -> Floats:
        """d(x, centre)^z of the rows, `(len,)`."""

    @abstractmethod
    def to_all(self, rows: slice, centres: Any) -> tuple[Ints, Floats]:
        """Position of the nearest centre and d(x, S)^z of the rows, each `(len,)`."""

    def nearest(self, centres: Any) -> tuple[NDArray[np.int32], Floats]:
        """Position of the nearest centre and d(x, S)^z of every point, each `(n,)`."""
        labels, costs = np.empty(self.n, dtype=np.int32), np.empty(self.n)
        for rows in self.slices(max(1, BUDGET // max(1, len_of(centres)))):
            labels[rows], costs[rows] = self.to_all(rows, centres)
        return labels, costs

    def cost(self, centres: Any, weights: Floats | None = None) -> float:
        """cost(P, S) = sum of v d(x, S)^z."""
        parts = []
        for rows in self.slices(max(1, BUDGET // max(1, len_of(centres)))):
            found = self.to_all(rows, centres)[1]
            parts.append(found.sum() if weights is None else weights[rows] @ found)
        return float(np.sum(parts))

    @abstractmethod
    def centroid(self, weights: Floats | None = None) -> Any:
        """The weighted mean of all points, as one centre."""


def len_of(centres: Any) -> int:
    return int(centres.shape[0])


class Dense(Space):
    """Rows of a matrix `(n, d)` of any real number type."""

    def block(self, rows: slice) -> Floats:
        return np.asarray(self.X[rows], dtype=np.float64)

    def at(self, indices: Ints) -> Floats:
        return np.asarray(self.X[indices], dtype=np.float64)

    def to_one(self, rows: slice, centre: Floats) -> Floats:
        away = self.block(rows) - centre
        return power(np.einsum("ij,ij->i", away, away), self.z)

    def to_all(self, rows: slice, centres: Floats) -> tuple[Ints, Floats]:
        shift = centres.mean(axis=0)
        block, moved = self.block(rows) - shift, centres - shift
        half = np.einsum("ij,ij->i", moved, moved) / 2
        labels = np.argmin(half - block @ moved.T, axis=1)
        block -= moved[labels]
        return labels, power(np.einsum("ij,ij->i", block, block), self.z)

    def centroid(self, weights: Floats | None = None) -> Floats:
        total = np.zeros(self.X.shape[1])
        mass = 0.0
        for rows in self.slices():
            block = self.block(rows)
            total += block.sum(axis=0) if weights is None else weights[rows] @ block
            mass += len(block) if weights is None else float(weights[rows].sum())
        return total / mass

    def sums(self, rows: slice, labels: Ints, weights: Floats, k: int) -> Floats:
        """Sum of weight times point in each cluster, `(k, d)`."""
        return np.asarray(_belongs(labels, weights, k) @ self.block(rows))


class Sparse(Space):
    """Rows of a CSR matrix; centres are dense."""

    def at(self, indices: Ints) -> Floats:
        return np.asarray(self.X[indices].toarray(), dtype=np.float64)

    def _norms(self, rows: slice) -> tuple[Any, Floats]:
        block = self.X[rows].astype(np.float64)
        return block, np.asarray(block.multiply(block).sum(axis=1)).ravel()

    def to_one(self, rows: slice, centre: Floats) -> Floats:
        return self.to_all(rows, centre[None, :])[1]

    def to_all(self, rows: slice, centres: Floats) -> tuple[Ints, Floats]:
        block, norms = self._norms(rows)
        squared = np.einsum("ij,ij->i", centres, centres)
        half = squared / 2 - block @ centres.T
        labels = np.argmin(half, axis=1)
        found = norms + 2 * half[np.arange(len(labels)), labels]
        # What is below the rounding of its terms is zero: a point on its centre.
        found[found <= 1e-13 * (norms + squared[labels])] = 0.0
        return labels, power(found, self.z)

    def centroid(self, weights: Floats | None = None) -> Floats:
        mass = self.n if weights is None else weights.sum()
        row = np.ones(self.n) if weights is None else weights
        return np.asarray(self.X.T @ row).ravel() / mass

    def sums(self, rows: slice, labels: Ints, weights: Floats, k: int) -> Floats:
        return np.asarray((_belongs(labels, weights, k) @ self.X[rows]).toarray())


class Metric(Space):
    """Points of a distance matrix `(n, n)`; a centre is the index of a point."""

    metric = True

    def at(self, indices: Ints) -> Ints:
        return np.asarray(indices)

    def to_one(self, rows: slice, centre: Any) -> Floats:
        return power(np.asarray(self.X[rows, int(centre)], dtype=np.float64) ** 2, self.z)

    def to_all(self, rows: slice, centres: Ints) -> tuple[Ints, Floats]:
        away = np.asarray(self.X[rows][:, centres], dtype=np.float64)
        labels = np.argmin(away, axis=1)
        return labels, power(away[np.arange(len(away)), labels] ** 2, self.z)

    def centroid(self, weights: Floats | None = None) -> Any:
        """The medoid: the point with the least cost."""
        raise DataError("a distance matrix has no mean; choose other scores than 'lightweight'")


def _belongs(labels: Ints, weights: Floats, k: int) -> Any:
    n = len(labels)
    return sparse.csr_array((weights, (labels, np.arange(n))), shape=(k, n))


def space_of(X: Any, z: float, chunk_size: int = 8192, metric: str = "euclidean") -> Space:
    """The points of checked input."""
    if metric == "precomputed":
        return Metric(X, z, chunk_size)
    if sparse.issparse(X):
        return Sparse(sparse.csr_array(X), z, chunk_size)
    return Dense(X, z, chunk_size)
