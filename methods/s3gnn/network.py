"""What every model here shares: encoder, layers, and a head for nodes, graphs or edges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.utils import scatter

from methods.common.checks import check_choice, check_whole
from methods.common.errors import DataError
from methods.s3gnn.layer import check_features, check_finite
from methods.s3gnn.operator import OperatorCache, Spectral

Task = Literal["node", "graph", "edge"]
Activation = Literal["relu", "tanh"]
Pool = Literal["sum_max_mean", "mean", "sum", "max"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "tanh": torch.tanh}


class GraphNetwork(nn.Module, ABC):
    """Linear encoder, layers, and a head.

    node: a linear decoder. graph: sum, max and mean over the nodes beside each other, then two layers. edge: both ends'
    vectors and their product, then two layers, for the pairs of `edge_label_index`.

    Args:
        in_channels, hidden, out_channels: widths.
        num_layers: layers.
        task: what a target belongs to.
        pool: of graph targets.
        act: after each layer.

    Raises:
        ConfigError: a setting out of bounds.
    """

    def __init__(
        self,
        in_channels: int,
        hidden: int,
        out_channels: int,
        num_layers: int,
        task: Task = "node",
        pool: Pool = "sum_max_mean",
        act: Activation = "relu",
    ) -> None:
        super().__init__()
        sizes = {"in_channels": in_channels, "hidden": hidden, "out_channels": out_channels}
        for name, value in (sizes | {"num_layers": num_layers}).items():
            check_whole(name, value, 1)
        check_choice("task", task, Task)
        check_choice("pool", pool, Pool)
        check_choice("act", act, Activation)
        self.in_channels, self.hidden, self.out_channels = in_channels, hidden, out_channels
        self.num_layers, self.task, self.pool, self.act = num_layers, task, pool, act
        self.encoder = nn.Linear(in_channels, hidden)
        self.convs = nn.ModuleList()
        self.head = self._head()
        self.cache = OperatorCache()

    def _head(self) -> nn.Module:
        if self.task == "node":
            return nn.Linear(self.hidden, self.out_channels)
        width = self.hidden * (3 if self.task == "edge" or self.pool == "sum_max_mean" else 1)
        return nn.Sequential(
            nn.Linear(width, self.hidden), nn.LeakyReLU(), nn.Linear(self.hidden, self.out_channels)
        )

    def reset_parameters(self) -> None:
        """New weights everywhere."""
        for module in (self.encoder, *self.convs, *self.head.modules()):
            if module is not self and hasattr(module, "reset_parameters"):
                module.reset_parameters()

    def embed(
        self,
        x: Tensor,
        edge_index: Any,
        batch: Tensor | None = None,
        edge_weight: Tensor | None = None,
        spectral: Spectral | None = None,
    ) -> Tensor:
        """Each node's vector after the last layer `[N, hidden]`."""
        check_features(x, self.in_channels)
        check_finite(x)
        h = self.encoder(x)
        for conv in self.steps(x, edge_index, batch, edge_weight, spectral):
            h = conv(h)
        return h

    @abstractmethod
    def steps(
        self,
        x: Tensor,
        edge_index: Any,
        batch: Tensor | None,
        edge_weight: Tensor | None,
        spectral: Spectral | None,
    ) -> Iterator[Callable[[Tensor], Tensor]]:
        """The layers on this graph, activation and all, as functions of the nodes' vectors `[N, hidden]`."""

    def forward(
        self,
        x: Tensor,
        edge_index: Any,
        batch: Tensor | None = None,
        edge_weight: Tensor | None = None,
        spectral: Spectral | None = None,
        edge_label_index: Tensor | None = None,
    ) -> Tensor:
        """Predictions: `[N, out]` for nodes, `[G, out]` for graphs, `[P, out]` for pairs of nodes `[2, P]`.

        Raises:
            DataError: what the layers refuse; no pairs with task edge.
        """
        h = self.embed(x, edge_index, batch, edge_weight, spectral)
        if self.task == "node":
            return self.head(h)
        if self.task == "edge":
            if edge_label_index is None:
                raise DataError(
                    "edge_label_index is missing; give the pairs of nodes [2, P] that have targets"
                )
            first, second = h[edge_label_index[0]], h[edge_label_index[1]]
            return self.head(torch.cat([first, second, first * second], 1))
        return self.head(self.pooled(h, batch))

    def pooled(self, h: Tensor, batch: Tensor | None) -> Tensor:
        """Each graph's vector `[G, width]`."""
        if batch is None:
            batch = h.new_zeros(h.shape[0], dtype=torch.long)
        kinds = self.pool.split("_")
        return torch.cat([scatter(h, batch, dim=0, reduce=kind) for kind in kinds], 1)

    def on(self, data: Any) -> Tensor:
        """`forward` with the fields of a torch-geometric `Data` or `Batch`."""
        return self(**fields(data))

    def parameter_count(self) -> int:
        """Numbers that are trained."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)


def fields(data: Any, pairs: bool = True) -> dict[str, Any]:
    """The arguments of `forward` that a `Data` or `Batch` holds.

    Raises:
        DataError: no node features.
    """
    if data.x is None:
        raise DataError("data.x is missing; give node features [N, F], for instance torch.ones(N, 1)")
    found: dict[str, Any] = {"x": data.x, "edge_index": data.edge_index, "batch": data.batch}
    found["edge_weight"] = data.edge_weight if "edge_weight" in data else None
    found["spectral"] = None
    if "spectral" in data:
        found["spectral"] = (
            (data.spectral_index, data.spectral) if "spectral_index" in data else data.spectral
        )
    if pairs and "edge_label_index" in data:
        found["edge_label_index"] = data.edge_label_index
    return found
