"""The models that S3GNN is compared with, under the same encoder and heads; most layers are torch-geometric's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import (
    AntiSymmetricConv,
    ChebConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GPSConv,
)

from methods.common.checks import check_choice, check_number, check_whole
from methods.s3gnn.model import S3GNN
from methods.s3gnn.network import ACTIVATIONS, Activation, GraphNetwork, Pool, Task
from methods.s3gnn.operator import GraphOperator, Spectral, graph_operator
from methods.s3gnn.weights import ConstrainedWeight

Kind = Literal[
    "s3gnn",
    "no_p0",
    "mlp",
    "gcn",
    "gcn_vn",
    "gin",
    "gat",
    "cheb",
    "stable_cheb",
    "gps",
    "adgn",
    "swan",
]
KINDS: tuple[str, ...] = get_args(Kind)
# Whose layers take the graph as sparse matrices that are made once.
ON_OPERATOR = ("stable_cheb", "swan", "gcn_vn")


def build_model(
    kind: Kind,
    in_channels: int,
    hidden: int,
    out_channels: int,
    num_layers: int,
    task: Task = "node",
    pool: Pool = "sum_max_mean",
    act: Activation = "relu",
    **settings: Any,
) -> GraphNetwork:
    """S3GNN, its ablation without P0, or a baseline.

    Args:
        kind: which.
        settings: of S3GNN's layers, or `step_size`, `dissipation` and `order` of the baselines that have them.

    Raises:
        ConfigError: a setting out of bounds.
    """
    check_choice("kind", kind, Kind)
    shape = (in_channels, hidden, out_channels, num_layers, task, pool, act)
    if kind == "s3gnn":
        return S3GNN(*shape, **settings)
    if kind == "no_p0":
        return S3GNN(*shape, **(settings | {"use_p0": False, "use_p1": False}))
    return Baseline(kind, *shape, **settings)


class Baseline(GraphNetwork):
    """A stack of one kind of layer, each with a residual connection unless it has a step of its own.

    mlp: no edges at all. gcn, gin, gat (GATv2, 4 heads), cheb (order K = `order`): torch-geometric's. gcn_vn: GCN and a
    virtual node that holds the mean of its graph. gps: GIN beside attention over each whole graph. adgn: anti-symmetric
    steps. swan: those with an antisymmetric local aggregation. stable_cheb: X + eps sum_k T_k(L) X What_k.
    """

    def __init__(
        self,
        kind: Kind,
        in_channels: int,
        hidden: int,
        out_channels: int,
        num_layers: int,
        task: Task = "node",
        pool: Pool = "sum_max_mean",
        act: Activation = "relu",
        step_size: float = 0.2,
        dissipation: float = 0.05,
        order: int = 9,
        **_: Any,
    ) -> None:
        super().__init__(in_channels, hidden, out_channels, num_layers, task, pool, act)
        check_number("step_size", step_size, above=0)
        check_number("dissipation", dissipation, least=0)
        check_whole("order", order, 1)
        self.kind: str = kind
        makers: dict[str, Callable[[], nn.Module]] = {
            "mlp": lambda: nn.Linear(hidden, hidden),
            "gcn": lambda: GCNConv(hidden, hidden),
            "gcn_vn": lambda: _VirtualNodeGCN(hidden),
            "gin": lambda: GINConv(_two_layers(hidden)),
            "gat": lambda: (
                GATv2Conv(hidden, max(1, hidden // 4), heads=4, edge_dim=1)
                if hidden % 4 == 0
                else GATv2Conv(hidden, hidden, heads=1, edge_dim=1)
            ),
            "cheb": lambda: ChebConv(hidden, hidden, K=order, normalization="sym"),
            "stable_cheb": lambda: _StableChebLayer(hidden, order, step_size, dissipation),
            "gps": lambda: GPSConv(hidden, GINConv(_two_layers(hidden)), heads=4 if hidden % 4 == 0 else 1),
            "adgn": lambda: AntiSymmetricConv(hidden, epsilon=step_size, gamma=dissipation, act="tanh"),
            "swan": lambda: _SwanLayer(hidden, step_size, dissipation),
        }
        self.convs = nn.ModuleList(makers[kind]() for _ in range(num_layers))

    def steps(
        self,
        x: Tensor,
        edge_index: Any,
        batch: Tensor | None,
        edge_weight: Tensor | None,
        spectral: Spectral | None,
    ) -> Iterator[Callable[[Tensor], Tensor]]:
        act = ACTIVATIONS[self.act]
        if self.kind in ON_OPERATOR:
            graph = self._operator(x, edge_index, batch, edge_weight)
            for conv in self.convs:
                residual = self.kind == "gcn_vn"
                yield lambda h, conv=conv, residual=residual: (  # type: ignore[misc]
                    h + act(conv(h, graph)) if residual else act(conv(h, graph))
                )
            return
        extra: dict[str, Any] = {}
        if edge_weight is not None and self.kind in ("gcn", "cheb"):
            extra["edge_weight"] = edge_weight
        if self.kind == "gat":
            weight = x.new_ones(edge_index.shape[1]) if edge_weight is None else edge_weight
            extra["edge_attr"] = weight.unsqueeze(-1)
        for conv in self.convs:
            if self.kind == "mlp":
                yield lambda h, conv=conv: h + act(conv(h))  # type: ignore[misc]
            elif self.kind == "gps":
                yield lambda h, conv=conv: conv(h, edge_index, batch)  # type: ignore[misc]
            elif self.kind == "adgn":
                yield lambda h, conv=conv: conv(h, edge_index)  # type: ignore[misc]
            else:
                yield lambda h, conv=conv: h + act(conv(h, edge_index, **extra))  # type: ignore[misc]

    def _operator(
        self, x: Tensor, edge_index: Any, batch: Tensor | None, edge_weight: Tensor | None
    ) -> GraphOperator:
        return self.cache.get(
            (edge_index, batch, edge_weight, x.shape[0], x.dtype),
            lambda: graph_operator(
                edge_index,
                x.shape[0],
                batch=batch,
                edge_weight=edge_weight,
                add_self_loops=self.kind == "gcn_vn",
                dtype=x.dtype,
            ),
        )


def _two_layers(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))


class _VirtualNodeGCN(nn.Module):
    """GCN's convolution and a linear map of each graph's mean: the plainest global mixer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.local, self.mean = nn.Linear(channels, channels), nn.Linear(channels, channels)

    def forward(self, h: Tensor, graph: GraphOperator) -> Tensor:
        return graph.adjacency @ self.local(h) + graph.spread @ self.mean(graph.pool @ h)

    def reset_parameters(self) -> None:
        self.local.reset_parameters()
        self.mean.reset_parameters()


class _StableChebLayer(nn.Module):
    """H + eps sum_{k<=K} T_k(-D^-1/2 A D^-1/2) H What_k^T, antisymmetric What_k (Stable-ChebNet)."""

    def __init__(self, channels: int, order: int, step_size: float, dissipation: float) -> None:
        super().__init__()
        self.step_size = step_size
        self.weights = nn.ModuleList(
            ConstrainedWeight(channels, "antisymmetric", dissipation) for _ in range(order)
        )
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, h: Tensor, graph: GraphOperator) -> Tensor:
        before, now = h, h
        total: Tensor = self.bias
        for k, weight in enumerate(self.weights):
            if k == 1:
                now = -(graph.adjacency @ h)
            elif k > 1:
                before, now = now, -2 * (graph.adjacency @ now) - before
            total = total + F.linear(now, weight())
        return h + self.step_size * total

    def reset_parameters(self) -> None:
        for weight in self.weights:
            weight.reset_parameters()  # type: ignore[operator]
        nn.init.zeros_(self.bias)


class _SwanLayer(nn.Module):
    """H + eps tanh(H W^T + S H V^T + beta (S - S^T) H Z^T): W, V antisymmetric, Z symmetric, S = D^-1 A (SWAN's form).

    S comes out of the symmetric D^-1/2 A D^-1/2 by the degrees' roots on both sides.
    """

    def __init__(self, channels: int, step_size: float, dissipation: float, beta: float = 0.5) -> None:
        super().__init__()
        self.step_size, self.beta = step_size, beta
        self.own = ConstrainedWeight(channels, "antisymmetric", dissipation)
        self.near = ConstrainedWeight(channels, "antisymmetric", 0.0)
        self.free = nn.Parameter(torch.empty(channels, channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        nn.init.xavier_uniform_(self.free)

    def forward(self, h: Tensor, graph: GraphOperator) -> Tensor:
        root = _degree_roots(graph).to(h.dtype).unsqueeze(-1)
        walked = graph.adjacency @ (h * root) / root
        back = graph.adjacency @ (h / root) * root
        inner = F.linear(h, self.own()) + F.linear((walked + back) / 2, self.near())
        inner = inner + self.beta * F.linear(walked - back, (self.free + self.free.T) / 2) + self.bias
        return h + self.step_size * torch.tanh(inner)

    def reset_parameters(self) -> None:
        self.own.reset_parameters()
        self.near.reset_parameters()
        nn.init.xavier_uniform_(self.free)
        nn.init.zeros_(self.bias)


def _degree_roots(graph: GraphOperator) -> Tensor:
    """Square roots of the degrees (1 without an edge): counted, since the operator holds normalised values only."""
    counts = torch.diff(graph.adjacency.matrix.crow_indices())
    return counts.clamp(min=1).to(graph.adjacency.matrix.dtype).sqrt()
