"""Parts of potentials, the same for both bases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

import torch
from e3nn.math import normalize2mom
from torch import Tensor, nn

from methods.tace.config import PotentialConfig
from methods.tace.generalised import ggcc
from methods.tace.harmonics import CartesianHarmonics
from methods.tace.irreps import (
    Basis,
    Irreps,
    check_features,
    irreps,
    project,
    size_of,
    to_cartesian,
    to_spherical,
)
from methods.tace.layers import Linear
from methods.tace.product import TensorProduct


def scatter_sum(values: Tensor, index: Tensor, rows: int) -> Tensor:
    """Sum the rows of `values` by `index`: (edges, width) to (rows, width)."""
    return values.new_zeros(rows, *values.shape[1:]).index_add(0, index, values)


class Edges(NamedTuple):
    """What the layers see of a graph."""

    element: Tensor  # (atoms,) place in the list of elements
    ends: Tensor  # (2, edges) from and to
    harmonics: Tensor  # (edges, width)
    radial: Tensor  # (edges, functions)
    envelope: Tensor  # (edges, 1): 1 close by, 0 at the cutoff
    parts: list[slice]  # where each rank lies among the harmonics


class Perceptron(nn.Module):
    """Linear maps without bias and SiLU between them; nothing in, nothing out, and unit variance is kept."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        pairs = list(pairwise(sizes))
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(a, b)) for a, b in pairs)
        self.activation = normalize2mom(torch.nn.functional.silu)

    def forward(self, values: Tensor) -> Tensor:
        """(..., sizes[0]) to (..., sizes[-1])."""
        for number, weight in enumerate(self.weights):
            if number:
                values = self.activation(values)
            values = values @ weight / math.sqrt(weight.shape[0])
        return values


class RadialBasis(nn.Module):
    """Bessel functions of a distance, brought to nothing at the cutoff with a polynomial of two smooth derivatives."""

    def __init__(self, cutoff: float, count: int, order: int) -> None:
        super().__init__()
        self.cutoff, self.order = cutoff, order
        self.register_buffer("roots", torch.arange(1, count + 1) * torch.pi)

    def forward(self, lengths: Tensor) -> Tensor:
        """(edges,) to (edges, count)."""
        share = (lengths / self.cutoff)[:, None]
        roots: Any = self.roots
        waves = math.sqrt(2 / self.cutoff) * (roots.to(share.dtype) * share).sin() / lengths[:, None]
        return waves * self.envelope(share)

    def envelope(self, share: Tensor) -> Tensor:
        """1 at 0, 0 from 1 on."""
        p = float(self.order)
        value = (
            1
            - (p + 1) * (p + 2) / 2 * share**p
            + p * (p + 2) * share ** (p + 1)
            - p * (p + 1) / 2 * share ** (p + 2)
        )
        return value * (share < 1)


class Harmonics(nn.Module):
    """The edges' harmonics in the basis of the model."""

    def __init__(self, lmax: int, basis: Basis) -> None:
        super().__init__()
        self.harmonics = CartesianHarmonics(lmax, "component", normalize=False)
        self.irreps_out, self.basis = self.harmonics.irreps_out, basis

    def forward(self, directions: Tensor) -> Tensor:
        """(edges, 3) unit vectors to (edges, width)."""
        found: Tensor = self.harmonics(directions)
        return found if self.basis == "cartesian" else to_spherical(found, self.irreps_out)


class ElementLinear(nn.Module):
    """A linear map of each irrep's channels, one for each element."""

    def __init__(self, irreps_in: Any, irreps_out: Any, elements: int, basis: Basis) -> None:
        super().__init__()
        self.irreps_in, self.irreps_out = irreps(irreps_in, "irreps_in"), irreps(irreps_out, "irreps_out")
        self.basis: Basis = basis
        self.instructions = [
            (i, o)
            for o, (_, ir_out) in enumerate(self.irreps_out)
            for i, (_, ir_in) in enumerate(self.irreps_in)
            if ir_in == ir_out
        ]
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(elements, self.irreps_in[i].mul, self.irreps_out[o].mul))
            for i, o in self.instructions
        )

    def forward(self, features: Tensor, element: Tensor) -> Tensor:
        """(atoms, width in) and their elements (atoms,) to (atoms, width out)."""
        check_features(features, self.irreps_in, self.basis)
        parts = self.irreps_in.parts(self.basis)
        sums: list[list[Tensor]] = [[] for _ in self.irreps_out]
        fans = [0] * len(self.irreps_out)
        for (i, o), weight in zip(self.instructions, self.weights, strict=True):
            value = features[:, parts[i]].unflatten(
                1, (weight.shape[1], size_of(self.irreps_in[i].ir.l, self.basis))
            )
            sums[o].append(torch.einsum("num,nuw->nwm", value, weight[element]).flatten(1))
            fans[o] += weight.shape[1]
        found = [
            torch.stack(part).sum(0) / math.sqrt(fan)
            if part
            else features.new_zeros(len(features), mul * size_of(ir.l, self.basis))
            for part, fan, (mul, ir) in zip(sums, fans, self.irreps_out, strict=True)
        ]
        return torch.cat(found, dim=1)


def couplings(
    first: Irreps, second: Irreps, wanted: Irreps, mode: str, *, even: bool = False, ordered: bool = False
) -> tuple[Irreps, list[tuple[Any, ...]]]:
    """Every coupling into an irrep that is wanted, each with an output of its own.

    Args:
        first, second: what is coupled.
        wanted: whose irreps, not multiplicities, are looked at.
        mode: "uvu" with weights, or "uuu" without.
        even: leave out couplings by the Levi-Civita symbol.
        ordered: leave out l1 > l2.

    Returns:
        the outputs, and instructions for `TensorProduct`.
    """
    kinds = {ir for _, ir in wanted}
    outputs: list[tuple[int, Any]] = []
    instructions: list[tuple[Any, ...]] = []
    for (i, (u, one)), (j, (_, two)) in product(enumerate(first), enumerate(second)):
        for ir in one * two:
            if ir not in kinds or (even and (one.l + two.l - ir.l) % 2) or (ordered and one.l > two.l):
                continue
            instructions.append((i, j, len(outputs), mode, mode == "uvu"))
            outputs.append((u, ir))
    return Irreps(outputs), instructions


def normalization_of(config: PotentialConfig) -> str:
    """TACE takes contractions as they come; the twins keep the variance of components, as their originals do."""
    return "none" if config.symbol == "contraction" else "component"


class Convolution(nn.Module):
    """Neighbours' features coupled with the edges' harmonics, weighted by distance, summed, and mixed.

    Args:
        config: of the potential.
        irreps_in: of the neighbours.
        irreps_out: of the sum.
        even: leave out couplings by the Levi-Civita symbol.
        divisor: of the sum.
    """

    def __init__(
        self, config: PotentialConfig, irreps_in: Irreps, irreps_out: Irreps, *, even: bool, divisor: float
    ) -> None:
        super().__init__()
        # The change of basis is cheap for an atom and dear for an edge: "auto" makes it for atoms, before and behind.
        self.around = config.basis == "cartesian" and config.backend == "auto"
        basis: Basis = "spherical" if self.around else config.basis
        edges = Irreps(Irreps.spherical_harmonics(config.lmax))
        middle, instructions = couplings(
            irreps_in, edges, irreps_out, "uvu", even=even, ordered=config.ordered
        )
        self.coupling = TensorProduct(
            irreps_in,
            edges,
            middle,
            instructions,
            internal_weights=False,
            shared_weights=False,
            irrep_normalization=normalization_of(config),
            path_normalization="none",
            project=False,
            backend=config.backend,
            symbol=config.symbol,
            basis=basis,
        )
        self.radial = Perceptron([config.radial, *config.radial_hidden, self.coupling.weight_numel])
        self.irreps_edges = edges
        self.up, self.down = Linear(irreps_in, irreps_in, basis), Linear(middle, irreps_out, basis)
        self.divisor = divisor

    def forward(self, features: Tensor, edges: Edges) -> Tensor:
        """(atoms, width in) to (atoms, width out)."""
        start, to = edges.ends
        harmonics = edges.harmonics
        if self.around:
            features = to_spherical(features, self.up.irreps_in)
            harmonics = to_spherical(harmonics, self.irreps_edges)
        messages = self.coupling(self.up(features)[start], harmonics, self.radial(edges.radial))
        sums: Tensor = self.down(scatter_sum(messages, to, len(features)) / self.divisor)
        if self.around:
            return to_cartesian(sums, self.down.irreps_out)
        # What is not irreducible goes here, once an atom: projections commute with sums and linear maps.
        return project(sums, self.down.irreps_out) if self.coupling.form == "contraction" else sums


class ChannelProduct(nn.Module):
    """Two features coupled channel by channel in every way, then mixed.

    Args:
        config: of the potential.
        first, second: the features, the same channels of every irrep.
        irreps_out: of the result.
        even: leave out couplings by the Levi-Civita symbol.
    """

    def __init__(
        self, config: PotentialConfig, first: Irreps, second: Irreps, irreps_out: Irreps, *, even: bool
    ) -> None:
        super().__init__()
        middle, instructions = couplings(first, second, irreps_out, "uuu", even=even, ordered=config.ordered)
        self.coupling = TensorProduct(
            first,
            second,
            middle,
            instructions,
            irrep_normalization=normalization_of(config),
            path_normalization="none",
            project=False,
            backend=config.backend,
            symbol=config.symbol,
            basis=config.basis,
        )
        self.mix = Linear(middle, irreps_out, config.basis)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """(rows, width of each) to (rows, width out)."""
        found: Tensor = self.mix(self.coupling(first, second))
        return project(found, self.mix.irreps_out) if self.coupling.form == "contraction" else found


class SymmetricContraction(nn.Module):
    """Products of an atom's messages with themselves, up to an order, weighted by element (MACE's, by `ggcc`).

    Args:
        config: of the potential.
        irreps_in: every irrep once, with the channels as multiplicity.
        irreps_out: the same, of the result.
    """

    def __init__(self, config: PotentialConfig, irreps_in: Irreps, irreps_out: Irreps) -> None:
        super().__init__()
        self.irreps_in, self.irreps_out = irreps_in, irreps_out
        self.basis: Basis = config.basis
        self.orders = range(config.correlation, 0, -1)
        single = Irreps([(1, ir) for _, ir in irreps_in])
        self.width = single.width(config.basis)
        self.tables: dict[tuple[Any, ...], Tensor] = {}
        weights: dict[str, nn.Parameter] = {}
        for _, ir in irreps_out:
            for order in self.orders:
                table = ggcc(single, ir.l, order, parity=ir.p, symbol=config.symbol, basis=config.basis)
                self.tables[ir.l, order, torch.float64, torch.device("cpu")] = table
                shape = (len(config.elements), table.shape[-1], config.channels)
                weights[f"{ir.l}_{order}"] = nn.Parameter(torch.randn(shape) / table.shape[-1])
        self.weights = nn.ParameterDict(weights)

    def _table(self, rank: int, order: int, like: Tensor) -> Tensor:
        """The coefficients in the type of a tensor; built in float64, kept by type."""
        key = (rank, order, like.dtype, like.device)
        if key not in self.tables:
            built = self.tables[rank, order, torch.float64, torch.device("cpu")]
            self.tables[key] = built.to(dtype=like.dtype, device=like.device)
        return self.tables[key]

    def forward(self, features: Tensor, element: Tensor) -> Tensor:
        """(atoms, width in) and elements (atoms,) to (atoms, width out)."""
        channels = torch.cat(
            [
                features[:, part].unflatten(1, (mul, size_of(ir.l, self.basis)))
                for (mul, ir), part in zip(self.irreps_in, self.irreps_in.parts(self.basis), strict=True)
            ],
            dim=2,
        )
        found = [self._contracted(channels, element, ir.l).flatten(1) for _, ir in self.irreps_out]
        return torch.cat(found, dim=1)

    def _contracted(self, channels: Tensor, element: Tensor, rank: int) -> Tensor:
        """(atoms, channels, numbers of the rank): the highest order first, one input at a time."""
        found: Tensor | None = None
        for order in self.orders:
            table = self._table(rank, order, channels)
            weight = self.weights[f"{rank}_{order}"][element].transpose(1, 2)  # atoms, channels, paths
            if found is None:
                left = table.reshape(-1, self.width * table.shape[-1])
                found = (channels[..., None] * weight[:, :, None, :]).flatten(2) @ left.T
            else:
                whole = found + weight @ table.reshape(-1, table.shape[-1]).T
                found = (whole.unflatten(2, (-1, self.width)) @ channels[..., None]).squeeze(-1)
        assert found is not None
        return found
