"""The projector P1 (section 2.2): eigenvectors of each graph, as a torch-geometric transform."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch_geometric.transforms import BaseTransform

from methods.common.checks import check_choice, check_number, check_whole
from methods.common.errors import ConfigError, DataError, NumericalError
from methods.s3gnn.operator import Components

Normalization = Literal["sym", "none"]
Array = np.ndarray[Any, Any]
DENSE_NODES = 2000
LANCZOS_VECTORS = 6


class AddSpectralProjector(BaseTransform):
    """Stores orthonormal columns U of the first `k` nontrivial eigenspaces of each graph's Laplacian: P1 = U U^T.

    A repeated eigenvalue (rings, grids, cliques) gives its whole eigenspace: one vector of it would depend on the
    solver and on the nodes' order. `data.spectral_index` `[2, K]` (node, column) and `data.spectral` `[K]` hold U's
    entries; batches of torch-geometric shift both rows, so that no two graphs share a column. No vector is ever made
    up: when the solver does not converge, the transform says so.

    Args:
        k: eigenspaces.
        tol: eigenvalues within this relative distance are one.
        normalization: `sym`, I - D^-1/2 A D^-1/2; `none`, D - A.
        components: `merge`: eigenvalues of the whole graph, so that a disconnected one gives vectors that tell its
            components apart; `separate`: of each component.
        max_columns: an eigenspace wider than this is refused (a star with n nodes has n - 2).

    Raises:
        ConfigError: a setting out of bounds.
    """

    def __init__(
        self,
        k: int = 1,
        tol: float = 1e-6,
        normalization: Normalization = "sym",
        components: Components = "merge",
        max_columns: int = 512,
    ) -> None:
        check_whole("k", k, 1)
        check_number("tol", tol, above=0, below=1)
        check_choice("normalization", normalization, Normalization)
        check_choice("components", components, Components)
        check_whole("max_columns", max_columns, 1)
        self.k, self.tol, self.normalization = k, tol, normalization
        self.components, self.max_columns = components, max_columns

    def forward(self, data: Any) -> Any:
        """`data` with the two fields.

        Raises:
            DataError: no edges field, or an eigenspace that is too wide.
            NumericalError: the solver did not converge.
        """
        if data.edge_index is None:
            raise DataError("data.edge_index is missing; AddSpectralProjector needs the graph's edges")
        weight = data.edge_weight if "edge_weight" in data else None
        graph = _adjacency(data.edge_index, weight, int(data.num_nodes))
        blocks = self._blocks(graph)
        rows, columns, values, width = [], [], [], 0
        for nodes, vectors in blocks:
            rows.append(np.repeat(nodes, vectors.shape[1]))
            columns.append(np.tile(width + np.arange(vectors.shape[1]), len(nodes)))
            values.append(vectors.ravel())
            width += vectors.shape[1]
        flat = np.concatenate(values) if values else np.zeros(0)
        kept = flat != 0
        index = np.stack([np.concatenate(rows), np.concatenate(columns)]) if rows else np.zeros((2, 0))
        dtype = data.x.dtype if data.x is not None and data.x.is_floating_point() else torch.float32
        device = data.edge_index.device
        data.spectral_index = torch.as_tensor(index[:, kept], dtype=torch.long, device=device)
        data.spectral = torch.as_tensor(flat[kept], dtype=dtype, device=device)
        return data

    def _blocks(self, graph: Any) -> list[tuple[Array, Array]]:
        """(nodes, orthonormal columns on them) for each part whose eigenvectors are taken."""
        count, label = connected_components(graph, directed=False)
        members = [np.flatnonzero(label == c) for c in range(count)]
        if count == 1 or self.components == "separate":
            found = [
                (nodes, self._eigenspaces(graph[nodes][:, nodes])) for nodes in members if len(nodes) > 1
            ]
            return [(nodes, vectors) for nodes, vectors in found if vectors.shape[1]]
        return [(np.arange(graph.shape[0]), self._merged(graph, members))]

    def _merged(self, graph: Any, members: list[Array]) -> Array:
        """The null space apart from the constant on the whole graph, then each component's eigenspaces as k goes on."""
        if len(members) - 1 > self.max_columns:
            raise DataError(
                f"the graph has {len(members)} components, more than max_columns={self.max_columns}; use "
                "components='separate'"
            )
        null = np.zeros((graph.shape[0], len(members)))
        for column, nodes in enumerate(members):
            vector = self._trivial(graph[nodes][:, nodes])
            null[nodes, column] = vector
        sizes = np.sqrt([len(nodes) for nodes in members])
        across = np.linalg.svd(sizes[None, :])[2][1:]  # orthonormal, orthogonal to the constant
        spaces = [null @ across.T]
        if self.k > 1:
            raise ConfigError(
                f"k={self.k}: a disconnected graph has one such eigenspace with components='merge'; use 'separate'"
            )
        return np.concatenate(spaces, 1)

    def _trivial(self, graph: Any) -> Array:
        degree = np.asarray(graph.sum(1)).ravel()
        vector = np.sqrt(degree) if self.normalization == "sym" and degree.any() else np.ones(len(degree))
        unit: Array = vector / np.linalg.norm(vector)
        return unit

    def _eigenspaces(self, graph: Any) -> Array:
        """Of a connected graph with at least two nodes: columns of its first k eigenspaces above 0."""
        size = graph.shape[0]
        laplacian = _laplacian(graph, self.normalization)
        trivial = self._trivial(graph)
        if size <= DENSE_NODES:
            return self._first(*np.linalg.eigh(laplacian.toarray()), complete=True)
        scale = 2.0 if self.normalization == "sym" else 2.0 * float(graph.sum(1).max())
        known, values = trivial[:, None], np.zeros(1)
        while known.shape[1] <= self.max_columns + 1:
            found, vectors = _lowest(laplacian, scale, known)
            before = self._first(values, known, complete=False).shape[1]
            if before and found.min() > values[before] * (1 + self.tol):
                return known[:, 1 : 1 + before]  # nothing else lies as low: a repeated eigenvalue is whole
            values, known = np.append(values, found), np.concatenate([known, vectors], 1)
            order = np.argsort(values)
            values, known = values[order], known[:, order]
        raise DataError(self._too_wide(known.shape[1] - 1))

    def _first(self, values: Array, vectors: Array, complete: bool) -> Array:
        """Columns of the k eigenspaces after the first value; none when the list may end inside the last of them."""
        rest = values[1:]
        gaps = np.flatnonzero(np.diff(rest) > self.tol * np.maximum(np.abs(rest[1:]), self.tol))
        if len(gaps) >= self.k:
            width = int(gaps[self.k - 1]) + 1
        elif complete:
            width = len(rest)
        else:
            width = 0
        if width > self.max_columns:
            raise DataError(self._too_wide(width))
        return vectors[:, 1 : 1 + width]

    def _too_wide(self, width: int) -> str:
        return (
            f"an eigenspace has {width} columns or more, above max_columns={self.max_columns}; raise it, or leave "
            "use_p1 off for such graphs"
        )

    def __repr__(self) -> str:
        return f"AddSpectralProjector(k={self.k}, components={self.components!r})"


def _adjacency(edge_index: torch.Tensor, weight: torch.Tensor | None, num_nodes: int) -> Any:
    """Symmetric, without loops (they change no eigenvector's meaning here): the Laplacian's A."""
    sources, targets = edge_index.cpu().numpy()
    values = np.ones(len(sources)) if weight is None else weight.detach().cpu().double().numpy()
    keep = sources != targets
    graph = sparse.csr_array((values[keep], (targets[keep], sources[keep])), shape=(num_nodes, num_nodes))
    return sparse.csr_array((graph + graph.T) / 2)


def _lowest(laplacian: Any, scale: float, known: Array) -> tuple[Array, Array]:
    """The lowest eigenvalues of a Laplacian, and vectors, among what is orthogonal to the known columns.

    One Krylov space holds one vector of a repeated eigenvalue; asking again beside the known ones finds the others.
    """
    size, wanted = laplacian.shape[0], min(LANCZOS_VECTORS, laplacian.shape[0] - known.shape[1] - 1)
    if wanted < 1:
        return np.array([np.inf]), np.zeros((size, 1))
    shifted = LinearOperator(
        (size, size),
        # The known vectors go to 0 or below, the small eigenvalues become the largest.
        matvec=lambda v: scale * v - laplacian @ v - 2 * scale * (known @ (known.T @ v)),
        dtype=np.float64,
    )
    start = np.random.default_rng(known.shape[1]).normal(size=size)
    try:
        values, vectors = eigsh(shifted, k=wanted, which="LA", tol=1e-10, v0=start, maxiter=50 * size)
    except ArpackError as error:
        raise NumericalError(f"eigenvectors of a graph of {size} nodes: {error}") from error
    return scale - values, vectors


def _laplacian(graph: Any, normalization: Normalization) -> Any:
    degree = np.asarray(graph.sum(1)).ravel()
    if normalization == "none":
        return sparse.csr_array(sparse.diags_array(degree) - graph)
    scale = sparse.diags_array(1 / np.sqrt(degree))
    return sparse.csr_array(sparse.eye_array(len(degree)) - scale @ graph @ scale)
