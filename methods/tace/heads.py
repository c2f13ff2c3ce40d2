"""Tensors of a molecule read from its atoms' features: gated linear maps, summed over the atoms."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from methods.tace.blocks import Perceptron, scatter_sum
from methods.tace.config import TENSOR_RANKS, PotentialConfig, Tensors
from methods.tace.irreps import Irreps, to_cartesian
from methods.tace.layers import Linear


class TensorHead(nn.Module):
    """A dipole (l = 1) or a polarizability (l = 0 and 2) of every atom, summed.

    Args:
        config: of the potential.
        name: "dipole" or "polarizability".
        irreps_in: of the atoms' features, the even scalars first.
    """

    def __init__(self, config: PotentialConfig, name: Tensors, irreps_in: Irreps) -> None:
        super().__init__()
        self.rank, self.basis, self.channels = TENSOR_RANKS[name], config.basis, config.channels
        self.irreps_out = Irreps([(config.channels, (self.rank, (-1) ** self.rank))])
        self.select = Linear(irreps_in, self.irreps_out, config.basis)
        self.gate = Perceptron([config.channels, config.readout_hidden, config.channels])
        if self.rank == 2:
            self.trace = Perceptron([config.channels, config.readout_hidden, 1])
            self.shares = nn.Parameter(torch.zeros(len(config.elements)))

    def forward(self, features: Tensor, element: Tensor, batch: Tensor, graphs: int) -> Tensor:
        """(atoms, width) to (graphs, 3) or (graphs, 3, 3)."""
        scalars = features[:, : self.channels]
        chosen = self.select(features)
        if self.basis == "spherical":
            chosen = to_cartesian(chosen, self.irreps_out)
        gated = chosen.unflatten(1, (self.channels, 3**self.rank)) * self.gate(scalars)[..., None]
        sites = gated.sum(1) / self.channels**0.5
        if self.rank == 1:
            return scatter_sum(sites, batch, graphs)
        trace = self.trace(scalars)[:, 0] + self.shares[element]
        sites = sites.unflatten(1, (3, 3)) + trace[:, None, None] * torch.eye(3).to(sites)
        return scatter_sum(sites, batch, graphs)
