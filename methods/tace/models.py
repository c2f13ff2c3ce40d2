"""TACE, and MACE, NequIP and Allegro in either basis, layer by layer."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from methods.tace.blocks import (
    ChannelProduct,
    Convolution,
    Edges,
    ElementLinear,
    Perceptron,
    SymmetricContraction,
    scatter_sum,
)
from methods.tace.config import PotentialConfig
from methods.tace.heads import TensorHead
from methods.tace.irreps import Irreps
from methods.tace.layers import Gate, Linear
from methods.tace.potential import Potential

# No layer adds anything to an atom without neighbours (the first one has no self-connection, the small networks no
# bias), so its energy is exactly that of the isolated atom.


def scalars(config: PotentialConfig) -> Irreps:
    """The channels as even scalars."""
    return Irreps([(config.channels, (0, 1))])


class NequIPLayer(nn.Module):
    """A convolution, a self-connection by element behind the first layer, and a gate."""

    def __init__(self, config: PotentialConfig, before: Irreps, *, first: bool, last: bool) -> None:
        super().__init__()
        silu = torch.nn.functional.silu
        kept = [] if last else [part for part in config.irreps(config.node_lmax) if part.ir.l]
        self.gate = Gate(f"{config.channels}x0e", silu, Irreps(kept), silu, config.basis)
        inner = Irreps(self.gate.irreps_in)
        self.convolution = Convolution(config, before, inner, even=False, divisor=config.neighbors**0.5)
        self.connection = None if first else ElementLinear(before, inner, len(config.elements), config.basis)
        self.irreps_out = Irreps(self.gate.irreps_out)

    def forward(self, features: Tensor, edges: Edges) -> Tensor:
        """(atoms, width) to (atoms, width out)."""
        found = self.convolution(features, edges)
        if self.connection is not None:
            found = found + self.connection(features, edges.element)
        return self.gate(found)


class CartesianNequIP(Potential):
    """NequIP (Batzner et al. 2022) in either basis: convolutions, self-connections by element, gates."""

    architecture = "nequip"

    def _build(self, config: PotentialConfig) -> None:
        before, layers = scalars(config), []
        for number in range(config.layers):
            layers.append(NequIPLayer(config, before, first=number == 0, last=number == config.layers - 1))
            before = layers[-1].irreps_out
        self.layers = nn.ModuleList(layers)
        self.readout = Perceptron([config.channels, config.readout_hidden, 1])

    def site_energies(self, edges: Edges) -> Tensor:
        """(atoms,) from the scalars behind the last gate."""
        features = self.embedding[edges.element]
        for layer in self.layers:
            features = layer(features, edges)
        return self.readout(features).squeeze(1)


class MACELayer(nn.Module):
    """A convolution, the product of messages with themselves, a self-connection behind the first layer, a readout."""

    def __init__(self, config: PotentialConfig, before: Irreps, *, first: bool, last: bool) -> None:
        super().__init__()
        messages = config.irreps(config.lmax)
        self.irreps_out = after = config.irreps(config.final_rank if last else config.node_lmax)
        self.convolution = Convolution(config, before, messages, even=False, divisor=config.neighbors)
        self.product = SymmetricContraction(config, messages, after)
        self.mix = Linear(after, after, config.basis)
        self.connection = None if first else ElementLinear(before, after, len(config.elements), config.basis)
        self.readout = Perceptron([config.channels, *([config.readout_hidden] if last else []), 1])

    def forward(self, features: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
        """(atoms, width) to (atoms, width out) and (atoms,) energies."""
        message = self.convolution(features, edges)
        found = self.mix(self.product(message, edges.element))
        if self.connection is not None:
            found = found + self.connection(features, edges.element)
        return found, self.readout(found[:, : self.irreps_out[0].mul]).squeeze(1)


class TACELayer(nn.Module):
    """A convolution without Levi-Civita symbols, powers of the message by contraction, and a readout.

    Each order has a linear map of its own by element; the self-connection, behind the first layer, is of the message.
    The power that goes on to the next order is first mixed to one set of channels, a choice of ours.
    """

    def __init__(self, config: PotentialConfig, before: Irreps, *, first: bool, last: bool) -> None:
        super().__init__()
        messages, count = config.irreps(config.lmax), len(config.elements)
        self.irreps_out = after = config.irreps(config.final_rank if last else config.node_lmax)
        self.convolution = Convolution(config, before, messages, even=True, divisor=config.neighbors)
        self.powers = nn.ModuleList(
            ChannelProduct(config, messages, messages, messages, even=True)
            for _ in range(config.correlation - 1)
        )
        self.orders = nn.ModuleList(
            ElementLinear(messages, after, count, config.basis) for _ in range(config.correlation)
        )
        self.mix = Linear(after, after, config.basis)
        alone = first and not last
        self.connection = None if alone else ElementLinear(messages, after, count, config.basis)
        self.readout = Perceptron([config.channels, *([config.readout_hidden] if last else []), 1])

    def forward(self, features: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
        """(atoms, width) to (atoms, width out) and (atoms,) energies."""
        message = power = self.convolution(features, edges)
        found = self.orders[0](message, edges.element)
        for product, order in zip(self.powers, list(self.orders)[1:], strict=True):
            power = product(power, message)
            found = found + order(power, edges.element)
        found = self.mix(found)
        if self.connection is not None:
            found = found + self.connection(message, edges.element)
        return found, self.readout(found[:, : self.irreps_out[0].mul]).squeeze(1)


class _Read(Potential):
    """Layers that each have a readout; the site's energy is their sum."""

    layer: type[MACELayer] | type[TACELayer]

    def _build(self, config: PotentialConfig) -> None:
        before, layers = scalars(config), []
        for number in range(config.layers):
            last = number == config.layers - 1
            layers.append(self.layer(config, before, first=number == 0, last=last))
            before = layers[-1].irreps_out
        self.layers = nn.ModuleList(layers)
        self.heads = nn.ModuleDict({name: TensorHead(config, name, before) for name in config.tensors})

    def site_energies(self, edges: Edges) -> Tensor:
        """(atoms,) summed over the readouts of all layers."""
        return self.sites(edges)[0]

    def sites(self, edges: Edges) -> tuple[Tensor, Tensor | None]:
        """The energies, and the features that the heads read."""
        features = self.embedding[edges.element]
        sites = features.new_zeros(len(features))
        for layer in self.layers:
            features, found = layer(features, edges)
            sites = sites + found
        return sites, features


class CartesianMACE(_Read):
    """MACE (Batatia et al. 2022) in either basis: products of messages by generalised Clebsch-Gordan coefficients."""

    architecture = "mace"
    layer = MACELayer


class TACE(_Read):
    """TACE-v1 (Xu et al. 2025, arXiv 2509.14961): contractions without Levi-Civita symbols, products of messages."""

    architecture = "tace"
    layer = TACELayer

    def _build(self, config: PotentialConfig) -> None:
        super()._build(replace(config, symbol="contraction"))


class AllegroLayer(nn.Module):
    """An edge's tensors coupled with what stands around its centre, and its scalars renewed."""

    def __init__(self, config: PotentialConfig, before: Irreps, around: Irreps, *, last: bool) -> None:
        super().__init__()
        channels = config.channels
        self.irreps_out = scalars(config) if last else config.irreps(config.lmax)
        self.environment = Perceptron([channels, channels * len(around)])
        self.product = ChannelProduct(config, before, around, self.irreps_out, even=False)
        self.latent = Perceptron([2 * channels, *config.radial_hidden, channels])
        # A mean: neighbours of one kind add up in step, and what is multiplied layer by layer would grow.
        self.divisor = config.neighbors

    def forward(self, latent: Tensor, tensors: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
        """Scalars (edges, channels) and tensors (edges, width) to the same, renewed."""
        own = weighted(edges, self.environment(latent))
        around = scatter_sum(own, edges.ends[1], len(edges.element)) / self.divisor
        tensors = self.product(tensors, around[edges.ends[1]])
        fresh = self.latent(torch.cat([latent, tensors[:, : latent.shape[1]]], dim=1)) * edges.envelope
        return (latent + fresh) * 0.5**0.5, tensors


def weighted(edges: Edges, weights: Tensor) -> Tensor:
    """The edges' harmonics times weights (edges, channels of every rank), channel by channel."""
    by_rank = weights.chunk(len(edges.parts), dim=1)
    return torch.cat(
        [
            (own[:, :, None] * edges.harmonics[:, None, part]).flatten(1)
            for own, part in zip(by_rank, edges.parts, strict=True)
        ],
        dim=1,
    )


class CartesianAllegro(Potential):
    """Allegro (Musaelian et al. 2023) in either basis: features of edges, so no site sees beyond one cutoff."""

    architecture = "allegro"

    def _build(self, config: PotentialConfig) -> None:
        channels = config.channels
        around = Irreps([(channels, ir) for _, ir in self.harmonics.irreps_out])
        self.first = Perceptron([config.radial + 2 * channels, *config.radial_hidden, channels])
        self.spread = Perceptron([channels, channels * len(around)])
        before, layers = around, []
        for number in range(config.layers):
            layers.append(AllegroLayer(config, before, around, last=number == config.layers - 1))
            before = layers[-1].irreps_out
        self.layers = nn.ModuleList(layers)
        self.readout = Perceptron([channels, config.readout_hidden, 1])

    def site_energies(self, edges: Edges) -> Tensor:
        """(atoms,) summed over an atom's edges."""
        kinds = self.embedding[edges.element]
        known = torch.cat([edges.radial, kinds[edges.ends[0]], kinds[edges.ends[1]]], dim=1)
        latent = self.first(known) * edges.envelope
        tensors = weighted(edges, self.spread(latent))
        for layer in self.layers:
            latent, tensors = layer(latent, tensors, edges)
        sites = scatter_sum(self.readout(latent) * edges.envelope, edges.ends[1], len(edges.element))
        return sites.squeeze(1) / self.config.neighbors


ARCHITECTURES: dict[str, type[Potential]] = {
    "tace": TACE,
    "mace": CartesianMACE,
    "nequip": CartesianNequIP,
    "allegro": CartesianAllegro,
}


def build_potential(config: PotentialConfig) -> Potential:
    """The potential of the configuration's architecture. Raises ConfigError: see `PotentialConfig`."""
    return ARCHITECTURES[config.architecture](config)
