"""The S3GNN model (section 2.4)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from methods.s3gnn.layer import S3GNNConv
from methods.s3gnn.network import ACTIVATIONS, Activation, GraphNetwork, Pool, Task
from methods.s3gnn.operator import GraphOperator, Spectral


class S3GNN(GraphNetwork):
    """Encoder, `S3GNNConv` layers with an activation each, and a head for node, graph or edge targets.

    The graph's matrices are made once a call, and kept for the next call with the same tensors.

    Args:
        in_channels, hidden, out_channels, num_layers, task, pool, act: see `GraphNetwork`.
        layer: settings of `S3GNNConv`.

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
        **layer: Any,
    ) -> None:
        super().__init__(in_channels, hidden, out_channels, num_layers, task, pool, act)
        self.convs = nn.ModuleList(S3GNNConv(hidden, **layer) for _ in range(num_layers))

    def steps(
        self,
        x: Tensor,
        edge_index: Any,
        batch: Tensor | None,
        edge_weight: Tensor | None,
        spectral: Spectral | None,
    ) -> Iterator[Callable[[Tensor], Tensor]]:
        graph, act = self.operator(x, edge_index, batch, edge_weight, spectral), ACTIVATIONS[self.act]
        for conv in self.convs:
            yield lambda h, conv=conv: act(conv(h, graph))  # type: ignore[misc]

    def operator(
        self,
        x: Tensor,
        edge_index: Any,
        batch: Tensor | None = None,
        edge_weight: Tensor | None = None,
        spectral: Spectral | None = None,
    ) -> GraphOperator:
        """The graph's matrices, from the last calls when the tensors are the same."""
        if isinstance(edge_index, GraphOperator):
            return edge_index
        first: Any = self.convs[0]
        return self.cache.get(
            (edge_index, batch, edge_weight, spectral, x.shape[0], x.dtype),
            lambda: first.operator(x, edge_index, batch, edge_weight, spectral),
        )

    def layers(self) -> Iterator[Any]:
        """Its `S3GNNConv` or folded layers."""
        return iter(self.convs)

    def alphas(self) -> Tensor:
        """alpha0 and alpha1 of each layer `[num_layers, 2]`; 0 where a branch is off."""
        rows = [
            [0.0 if a is None else float(a.detach()) for a in (c.alpha0, c.alpha1)] for c in self.layers()
        ]
        return torch.tensor(rows)

    def spectral_abscissa(self) -> float:
        """Largest real part of an eigenvalue of any layer's What_out What_in; above 0 a step can expand."""
        return max(max(conv.spectral_abscissa()) for conv in self.convs if isinstance(conv, S3GNNConv))

    def fold(self) -> S3GNN:
        """A copy for inference whose layers are folded; outputs stay the same to rounding."""
        folded = copy.deepcopy(self)
        folded.convs = nn.ModuleList(
            conv.fold() if isinstance(conv, S3GNNConv) else conv for conv in folded.convs
        )
        return folded.eval()
