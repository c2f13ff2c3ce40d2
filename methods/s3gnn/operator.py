"""A graph as the sparse matrices that a layer multiplies with: made once, used by every layer and epoch.

Sparse products with rows stored together (CSR) take a fraction of the time of gathering and adding messages; their
backward pass multiplies with the transposed matrix, which is therefore made beside it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from methods.common.checks import check_choice
from methods.common.errors import DataError

P0 = Literal["mean", "sqrtdeg"]
Components = Literal["merge", "separate"]
Spectral = Tensor | tuple[Tensor, Tensor]


class _Product(torch.autograd.Function):
    """matrix @ x for a constant sparse matrix; differentiable any number of times in x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, transposed: Tensor) -> Tensor:
        ctx.pair = matrix, transposed
        return matrix @ x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        matrix, transposed = ctx.pair
        return _Product.apply(gradients[0].contiguous(), transposed, matrix), None, None


@dataclass(frozen=True)
class SparsePair:
    """A constant sparse matrix `[m, n]` and its transposed, both CSR."""

    matrix: Tensor
    transposed: Tensor

    def __matmul__(self, x: Tensor) -> Tensor:
        """Times `x` `[n, d]`; formats that sparse products lack (bfloat16, float16) are computed in the matrix's."""
        wide = x.to(self.matrix.dtype)
        product: Tensor = _Product.apply(wide, self.matrix, self.transposed)
        return product.to(x.dtype)

    @property
    def T(self) -> SparsePair:
        return SparsePair(self.transposed, self.matrix)

    def moved(self, device: torch.device, dtype: torch.dtype) -> SparsePair:
        return SparsePair(self.matrix.to(device, dtype), self.transposed.to(device, dtype))


def sparse_pair(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> SparsePair:
    """The matrix with these entries, no place twice."""
    return SparsePair(_csr(rows, columns, values, shape), _csr(columns, rows, values, shape[::-1]))


def _csr(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    order = torch.argsort(rows * shape[1] + columns)
    start = rows.new_zeros(shape[0] + 1)
    start[1:] = torch.bincount(rows, minlength=shape[0]).cumsum(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            start, columns[order], values[order], size=shape, check_invariants=False
        )


@dataclass(frozen=True)
class GraphOperator:
    """The matrices of one graph or batch with N nodes and G groups (graphs, or their components).

    Attributes:
        adjacency: Atil = D^-1/2 (A + I) D^-1/2 `[N, N]`, rows are targets.
        index, values: the same as PyG's edges; `values` carries gradients when the edge weights do.
        pool, spread: P0 = spread @ pool, `[N, G] @ [G, N]`.
        columns: U `[N, C]` of P1 = U U^T, or None.
        num_groups: G.
    """

    adjacency: SparsePair
    index: Tensor
    values: Tensor
    pool: SparsePair
    spread: SparsePair
    columns: SparsePair | None
    num_groups: int

    @property
    def num_nodes(self) -> int:
        return int(self.adjacency.matrix.shape[0])

    def to(self, device: torch.device, dtype: torch.dtype) -> GraphOperator:
        """The same where and as `x` is; narrow formats stay float32."""
        dtype = torch.float64 if dtype == torch.float64 else torch.float32
        ours = self.adjacency.matrix
        if ours.device == device and ours.dtype == dtype:
            return self
        return GraphOperator(
            self.adjacency.moved(device, dtype),
            self.index.to(device),
            self.values.to(device, dtype),
            self.pool.moved(device, dtype),
            self.spread.moved(device, dtype),
            None if self.columns is None else self.columns.moved(device, dtype),
            self.num_groups,
        )


def graph_operator(
    edge_index: Tensor,
    num_nodes: int,
    *,
    batch: Tensor | None = None,
    edge_weight: Tensor | None = None,
    spectral: Spectral | None = None,
    add_self_loops: bool = True,
    p0: P0 = "mean",
    components: Components = "merge",
    symmetrize: bool = False,
    dtype: torch.dtype = torch.float32,
) -> GraphOperator:
    """The matrices of a graph or batch (section 2.2 of the method).

    Args:
        edge_index: `[2, E]`, sources above targets, or a sparse `[N, N]` tensor whose rows are targets.
        num_nodes: N.
        batch: graph of each node `[N]`, ascending; None: one graph.
        edge_weight: `[E]`, none negative; None: 1 each. Places named twice add up.
        spectral: eigenvectors `[N, m]`, zero-padded, or (index `[2, K]`, values `[K]`) as the transform
            `AddSpectralProjector` stores them.
        add_self_loops: weight 1 for nodes without a loop of their own.
        p0: `mean`, 1 1^T / n; `sqrtdeg`, the null vector D^1/2 1 of the normalised Laplacian.
        components: whether P0 mixes a disconnected graph as a whole.
        symmetrize: give every edge its opposite.
        dtype: of the matrices; narrow ones are held as float32.

    Raises:
        DataError: shapes, an index out of range, a negative weight, an unsorted batch, numbers that are none.
    """
    check_choice("p0", p0, P0)
    check_choice("components", components, Components)
    dtype = torch.float64 if dtype == torch.float64 else torch.float32
    index, weight = _edges(edge_index, edge_weight, num_nodes, dtype)
    batch = _checked_batch(batch, num_nodes, index)
    index, weight = _coalesced(index, weight, num_nodes)
    index, weight = _both_ways(index, weight, num_nodes, symmetrize)
    group = batch if components == "merge" else _component(index, num_nodes)
    num_groups = int(group.max()) + 1 if num_nodes else 0
    pool, spread = _mean_projector(group, num_groups, p0, _degree(index, weight.detach(), num_nodes))
    looped, values = _normalised(index, weight, num_nodes, add_self_loops)
    return GraphOperator(
        sparse_pair(looped[1], looped[0], values.detach(), (num_nodes, num_nodes)),
        looped,
        values,
        pool,
        spread,
        None if spectral is None else _columns(spectral, batch, num_nodes, dtype),
        num_groups,
    )


def _edges(
    edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    if edge_index.layout != torch.strided:
        coo = edge_index.to_sparse_coo().coalesce()
        if tuple(coo.shape) != (num_nodes, num_nodes):
            raise DataError(
                f"edge_index: a sparse tensor of {tuple(coo.shape)} for {num_nodes} nodes; give [N, N]"
            )
        edge_index, edge_weight = coo.indices().flip(0), coo.values()
    if (
        edge_index.dim() != 2
        or edge_index.shape[0] != 2
        or edge_index.dtype not in (torch.int64, torch.int32)
    ):
        raise DataError(
            f"edge_index of shape {tuple(edge_index.shape)} and type {edge_index.dtype}: give whole numbers [2, E]"
        )
    if edge_index.numel() and (int(edge_index.min()) < 0 or int(edge_index.max()) >= num_nodes):
        worst = int(edge_index.max()) if int(edge_index.min()) >= 0 else int(edge_index.min())
        raise DataError(f"edge_index names node {worst}, but x has rows 0 to {num_nodes - 1}")
    if edge_weight is None:
        return edge_index.long(), torch.ones(edge_index.shape[1], dtype=dtype, device=edge_index.device)
    if edge_weight.shape != edge_index.shape[1:]:
        raise DataError(
            f"edge_weight of shape {tuple(edge_weight.shape)} for {edge_index.shape[1]} edges: give one number an edge"
        )
    plain = edge_weight.detach()
    if plain.numel() and not (bool(plain.isfinite().all()) and float(plain.min()) >= 0):
        raise DataError(
            "edge_weight holds negative numbers or numbers that are none; give weights of at least 0"
        )
    return edge_index.long(), edge_weight.to(dtype)


def _checked_batch(batch: Tensor | None, num_nodes: int, index: Tensor) -> Tensor:
    if batch is None:
        return torch.zeros(num_nodes, dtype=torch.long, device=index.device)
    if batch.shape != (num_nodes,):
        raise DataError(
            f"batch of shape {tuple(batch.shape)} for {num_nodes} nodes: give one graph number a node"
        )
    if num_nodes and (int(batch[0]) < 0 or bool((batch[1:] < batch[:-1]).any())):
        raise DataError("batch is not ascending from 0; sort the nodes by graph")
    if index.numel() and bool((batch[index[0]] != batch[index[1]]).any()):
        raise DataError("edge_index joins nodes of different graphs of the batch")
    return batch.long()


def _coalesced(index: Tensor, weight: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    key = index[0] * num_nodes + index[1]
    if bool((key[1:] > key[:-1]).all()):
        return index, weight
    places, inverse = torch.unique(key, return_inverse=True)
    summed = weight.new_zeros(len(places)).index_add(0, inverse, weight)
    return torch.stack([places // num_nodes, places % num_nodes]), summed


def _both_ways(index: Tensor, weight: Tensor, num_nodes: int, symmetrize: bool) -> tuple[Tensor, Tensor]:
    """The edges, symmetric on request; warns when they are not. `index` is coalesced."""
    back = torch.argsort(index[1] * num_nodes + index[0])
    flipped = index[:, back].flip(0)
    if torch.equal(flipped, index) and torch.allclose(weight.detach()[back], weight.detach()):
        return index, weight
    if not symmetrize:
        warnings.warn(
            "edge_index is directed; S3GNN is made for undirected graphs: give both directions, or symmetrize=True",
            stacklevel=4,
        )
        return index, weight
    missing = ~torch.isin(flipped[0] * num_nodes + flipped[1], index[0] * num_nodes + index[1])
    return _coalesced(
        torch.cat([index, flipped[:, missing]], 1), torch.cat([weight, weight[back][missing]]), num_nodes
    )


def _degree(index: Tensor, weight: Tensor, num_nodes: int) -> Tensor:
    return weight.new_zeros(num_nodes).index_add(0, index[1], weight)


def _normalised(index: Tensor, weight: Tensor, num_nodes: int, add_self_loops: bool) -> tuple[Tensor, Tensor]:
    """Edges and values of Atil; a node without any edge gets a zero row when there are no self-loops."""
    if add_self_loops:
        free = torch.ones(num_nodes, dtype=torch.bool, device=index.device)
        free[index[0][index[0] == index[1]]] = False
        loops = free.nonzero().flatten()
        index = torch.cat([index, torch.stack([loops, loops])], 1)
        weight = torch.cat([weight, weight.new_ones(len(loops))])
    degree = _degree(index, weight, num_nodes)
    positive = degree > 0
    scale = torch.where(positive, torch.where(positive, degree, 1.0).rsqrt(), 0.0)
    return index, scale[index[0]] * weight * scale[index[1]]


def _component(index: Tensor, num_nodes: int) -> Tensor:
    sources, targets = index.cpu().numpy()
    graph = sparse.coo_array((np.ones(len(sources)), (sources, targets)), shape=(num_nodes, num_nodes))
    _, label = connected_components(graph.tocsr(), directed=False)
    return torch.as_tensor(label, dtype=torch.long, device=index.device)


def _mean_projector(group: Tensor, num_groups: int, p0: P0, degree: Tensor) -> tuple[SparsePair, SparsePair]:
    """P0 as `[G, N]` and `[N, G]`: v v^T / |v|^2 a group, v = 1 or the roots of the degrees."""
    vector = torch.ones_like(degree) if p0 == "mean" else degree.sqrt()
    norm = degree.new_zeros(num_groups).index_add(0, group, vector**2)
    edgeless = (norm == 0)[group]
    vector = torch.where(edgeless, 1.0, vector)  # a group without an edge has no degrees: its plain mean
    norm = degree.new_zeros(num_groups).index_add(0, group, vector**2)
    nodes = torch.arange(len(group), device=group.device)
    shape = (num_groups, len(group))
    return (
        sparse_pair(group, nodes, vector / norm[group], shape),
        sparse_pair(nodes, group, vector, shape[::-1]),
    )


def _columns(spectral: Spectral, batch: Tensor, num_nodes: int, dtype: torch.dtype) -> SparsePair:
    """U with a column of its own for each graph and eigenvector, so that no two graphs mix."""
    if isinstance(spectral, tuple):
        index, values = spectral
        if index.dim() != 2 or index.shape[0] != 2 or values.shape != index.shape[1:]:
            raise DataError("spectral: give (index [2, K], values [K]) as AddSpectralProjector stores them")
        if index.numel() and (int(index.min()) < 0 or int(index.max()) >= num_nodes):
            raise DataError(
                "spectral names nodes that x does not have; run AddSpectralProjector on this graph"
            )
        width = num_nodes
    else:
        if spectral.dim() != 2 or spectral.shape[0] != num_nodes:
            raise DataError(f"spectral of shape {tuple(spectral.shape)} for {num_nodes} nodes: give [N, m]")
        graphs = int(batch.max()) + 1 if num_nodes else 0
        width = graphs * spectral.shape[1]
        nodes, column = (spectral != 0).nonzero(as_tuple=True)
        index, values = (
            torch.stack([nodes, batch[nodes] * spectral.shape[1] + column]),
            spectral[nodes, column],
        )
    if values.numel() and not bool(values.isfinite().all()):
        raise DataError("spectral holds numbers that are none")
    return sparse_pair(index[0], index[1], values.to(dtype), (num_nodes, max(width, 1)))


@dataclass
class _Kept:
    key: tuple[Any, ...]
    tensors: tuple[Any, ...]
    operator: GraphOperator


class OperatorCache:
    """The last few operators, found again when the very same tensors come in unchanged."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._kept: list[_Kept] = []

    def get(self, tensors: tuple[Any, ...], make: Callable[[], GraphOperator]) -> GraphOperator:
        """The operator of these tensors; holding them keeps their identities from being reused."""
        flat = [part for t in tensors for part in (t if isinstance(t, tuple) else (t,))]
        if any(isinstance(t, Tensor) and t.requires_grad for t in flat):
            return make()
        key = tuple((id(t), t._version) if isinstance(t, Tensor) else t for t in flat)
        for kept in self._kept:
            if kept.key == key:
                return kept.operator
        made = make()
        self._kept = [_Kept(key, tensors, made), *self._kept[: self.size - 1]]
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> OperatorCache:
        return OperatorCache(self.size)

    def __reduce__(self) -> tuple[Any, ...]:
        return OperatorCache, (self.size,)
