"""Eigenvalues of a similarity, the same for the same matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg, sparse
from scipy.sparse.linalg import eigsh

DENSE_LIMIT = 1_500


def top_eigenvectors(similarity: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest eigenvalues of a symmetric matrix, descending, and their vectors as columns."""
    m = similarity.shape[0]
    if m <= DENSE_LIMIT or count > m // 4:
        values, vectors = linalg.eigh(_dense(similarity), subset_by_index=[m - count, m - 1])
    else:
        values, vectors = eigsh(similarity, k=count, which="LA", v0=_start(m))
    order = np.argsort(values)[::-1]
    vectors = vectors[:, order]
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(count)])
    return values[order], vectors * signs


def smallest_eigenvalue(similarity: Any) -> float:
    """The smallest eigenvalue of a symmetric matrix."""
    m = similarity.shape[0]
    if m <= DENSE_LIMIT:
        return float(linalg.eigh(_dense(similarity), eigvals_only=True, subset_by_index=[0, 0])[0])
    return float(eigsh(similarity, k=1, which="SA", v0=_start(m), return_eigenvectors=False)[0])


def _dense(similarity: Any) -> np.ndarray:
    return np.asarray(similarity.toarray() if sparse.issparse(similarity) else similarity)


def _start(m: int) -> np.ndarray:
    # No vector of ones: in a graph of equal degrees that is the first eigenvector itself, and ends the search there.
    return np.random.default_rng(0).uniform(size=m)
