"""The anchor graph: sparse weights from samples to anchors, and the similarity of anchors that they imply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.neighbors import NearestNeighbors

from methods.common.errors import ConfigError, DataError
from methods.sc_fagc.eigen import smallest_eigenvalue

CHUNK = 16_384
SPARSE_CHUNK = 2_048
TIE = 1e-12
SYMMETRY = 1e-8


def anchor_graph(x: Any, anchors: Any, n_neighbors: int = 5) -> sparse.csr_array:
    """B, `[n, m]`: row-stochastic weights of each sample to its nearest anchors, without a parameter of width.

    With squared distances d(1) <= ... <= d(s + 1) to the nearest anchors (adaptive neighbours, Nie et al. 2014):

        b_j = (d(s + 1) - d(j)) / (s d(s + 1) - sum_h d(h)),  j = 1 .. s;  1 / s each when the denominator vanishes.

    Rows are treated in chunks: no dense `[n, m]` array is held.

    Args:
        x: samples, `[n, d]`, dense or CSR.
        anchors: `[m, d]`.
        n_neighbors: s, 1 <= s < m.

    Raises:
        ConfigError: s is out of its range.
        DataError: samples and anchors have different numbers of features.
    """
    places = np.asarray(anchors, dtype=np.float64)
    m = len(places)
    s = n_neighbors
    if not 1 <= s < m:
        raise ConfigError(f"n_neighbors={s}: give 1 to {m - 1}, below the {m} anchors")
    if x.shape[1] != places.shape[1]:
        raise DataError(f"X has {x.shape[1]} features, but the anchors have {places.shape[1]}")
    n = x.shape[0]
    indices = np.empty((n, s), dtype=np.int32)
    weights = np.empty((n, s), dtype=np.float64)
    chunk, nearest = (
        (SPARSE_CHUNK, _near_sparse(places, s)) if sparse.issparse(x) else (CHUNK, _near_dense(x, places, s))
    )
    for start in range(0, n, chunk):
        distances, found = nearest(x[start : start + chunk])
        indices[start : start + chunk] = found[:, :s]
        weights[start : start + chunk] = _weights(distances)
    offsets = np.arange(0, n * s + 1, s, dtype=np.int64 if n * s > np.iinfo(np.int32).max else np.int32)
    graph = sparse.csr_array((weights.ravel(), indices.ravel(), offsets), shape=(n, m))
    graph.sort_indices()
    return graph


Nearest = Callable[[Any], tuple[np.ndarray, np.ndarray]]


def _near_dense(x: Any, anchors: np.ndarray, s: int) -> Nearest:
    """Rows -> ascending squared distances to the s + 1 nearest anchors, and which these are."""
    # Around the anchors' mean: far from the origin the distances would lose digits.
    origin = anchors.mean(axis=0)
    dtype = np.float32 if getattr(x, "dtype", None) == np.float32 else np.float64
    near = NearestNeighbors(n_neighbors=s + 1, algorithm="brute", metric="sqeuclidean")
    near.fit((anchors - origin).astype(dtype))

    def nearest(rows: Any) -> tuple[np.ndarray, np.ndarray]:
        found = near.kneighbors((np.asarray(rows) - origin).astype(dtype, copy=False))
        return found[0], found[1]

    return nearest


def _near_sparse(anchors: np.ndarray, s: int) -> Nearest:
    """The same for CSR rows, which stay sparse."""
    squares = (anchors**2).sum(axis=1)

    def nearest(rows: Any) -> tuple[np.ndarray, np.ndarray]:
        own = np.asarray(rows.multiply(rows).sum(axis=1), dtype=np.float64).reshape(-1, 1)
        distances = np.maximum(own - 2 * np.asarray(rows @ anchors.T) + squares, 0)
        found = np.argpartition(distances, s, axis=1)[:, : s + 1]
        near = np.take_along_axis(distances, found, axis=1)
        order = near.argsort(axis=1, kind="stable")
        return np.take_along_axis(near, order, axis=1), np.take_along_axis(found, order, axis=1)

    return nearest


def _weights(distances: np.ndarray) -> np.ndarray:
    """Of the s nearest anchors, from the squared distances to s + 1 of them, ascending."""
    distances = distances.astype(np.float64)
    s = distances.shape[1] - 1
    last = distances[:, -1:]
    gaps = last - distances[:, :-1]
    total = gaps.sum(axis=1, keepdims=True)
    tied = total <= TIE * np.maximum(s * last, np.finfo(np.float64).tiny)
    return np.where(tied, 1.0 / s, gaps / np.where(tied, 1.0, total))


def anchor_similarity(graph: sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """W = Lam^(-1/2) B^T B Lam^(-1/2) of the anchors that some sample points to, and their degrees.

    W is symmetric, positive semi-definite, non-negative, with the top eigenvalue 1.

    Args:
        graph: B, `[n, m]`, every column with a sum above 0.

    Returns:
        W `[m, m]` and lam `[m]`.
    """
    degrees = np.asarray(graph.sum(axis=0)).ravel()
    scaled = graph @ sparse.diags_array(1.0 / np.sqrt(degrees))
    similarity = (scaled.T @ scaled).toarray()
    return (similarity + similarity.T) / 2, degrees


def given_similarity(similarity: Any) -> Any:
    """W = D^(-1/2) S D^(-1/2) of a similarity of samples, shifted to have no negative eigenvalue; sparse stays sparse.

    Adding a multiple of the identity adds a constant to the objective of hard labels only; with soft ones it favours
    certain memberships a little.

    Raises:
        DataError: not square, not symmetric, a negative entry, or a sample without any similarity.
    """
    s = similarity.astype(np.float64)
    if s.shape[0] != s.shape[1]:
        raise DataError(f"X has shape {s.shape}; a precomputed similarity has as many columns as rows")
    if abs(s - s.T).max() > SYMMETRY * abs(s).max():
        raise DataError("X is not symmetric; a precomputed similarity must be: give (X + X.T) / 2")
    if s.min() < 0:
        raise DataError(f"X holds {s.min():g}; a precomputed similarity must not be negative")
    degrees = np.asarray(s.sum(axis=0)).ravel()
    if (degrees <= 0).any():
        raise DataError(
            f"X: row {int(degrees.argmin())} has no similarity to any sample; leave such samples out"
        )
    scale = sparse.diags_array(1 / np.sqrt(degrees))
    scaled = scale @ s @ scale
    scaled = (scaled + scaled.T) / 2
    least = smallest_eigenvalue(scaled)
    if least >= -TIE:
        return scaled
    shift = -least * (sparse.eye_array(len(degrees)) if sparse.issparse(scaled) else np.eye(len(degrees)))
    return (scaled + shift) / (1 - least)
