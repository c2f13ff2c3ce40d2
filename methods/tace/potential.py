"""What every interatomic potential does: a graph in; energies, and by differentiation forces and stress, out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from methods.common.errors import DataError
from methods.tace.blocks import Edges, Harmonics, RadialBasis
from methods.tace.config import Architecture, PotentialConfig


class Potential(nn.Module):
    """An interatomic potential.

    Args:
        config: its sizes. A subclass sets the architecture itself.

    Raises:
        ConfigError: see `PotentialConfig`.
    """

    architecture: ClassVar[Architecture]

    def __init__(self, config: PotentialConfig) -> None:
        super().__init__()
        self.config = config = replace(config, architecture=self.architecture)
        places = torch.full((119,), -1, dtype=torch.long)
        places[list(config.elements)] = torch.arange(len(config.elements))
        self.register_buffer("places", places)
        energies = config.energies or (0.0,) * len(config.elements)
        self.register_buffer("energies", torch.tensor(energies, dtype=torch.float64), persistent=False)
        self.embedding = nn.Parameter(torch.randn(len(config.elements), config.channels))
        self.radial = RadialBasis(config.cutoff, config.radial, config.cutoff_order)
        self.harmonics = Harmonics(config.lmax, config.basis)
        self.heads = nn.ModuleDict()
        self._build(config)

    @abstractmethod
    def _build(self, config: PotentialConfig) -> None:
        """Make the layers."""

    @abstractmethod
    def site_energies(self, edges: Edges) -> Tensor:
        """(atoms,) without unit; 0 for an atom without neighbours."""

    def sites(self, edges: Edges) -> tuple[Tensor, Tensor | None]:
        """The energies, and the atoms' features for the heads where there are any."""
        return self.site_energies(edges), None

    def forward(
        self, data: Mapping[str, Tensor], *, forces: bool = True, stress: bool = False
    ) -> dict[str, Tensor]:
        """Energies and their derivatives.

        Args:
            data: positions (atoms, 3) in angstrom; atomic_numbers (atoms,); edge_index (2, edges), from and to; shifts
                (edges, 3), the lattice vector in angstrom that is added to the first atom; batch (atoms,), the graph
                of each atom; cell (graphs, 3, 3) where the stress is wanted.
            forces: with them, -dE/dr.
            stress: with it, dE/dstrain over the volume.

        Returns:
            energy (graphs,) in eV, forces (atoms, 3) in eV/angstrom, stress (graphs, 3, 3) in eV/angstrom^3, and what
            the model has heads for: dipole (graphs, 3) in e angstrom, polarizability (graphs, 3, 3) in angstrom^3.

        Raises:
            DataError: an unknown element, positions that are no numbers, an edge of length 0, or no cell for a stress.
            TypeError: positions that are no floating-point numbers.
        """
        positions, batch, index = data["positions"], data["batch"], data["edge_index"]
        element = self._elements(data["atomic_numbers"])
        if not positions.is_floating_point():
            raise TypeError(f"positions are {positions.dtype}; give floating-point numbers")
        if not bool(positions.isfinite().all()):
            raise DataError("positions: some are no numbers (NaN or infinity)")
        graphs = int(batch.max()) + 1 if len(batch) else 0
        positions = positions.detach().requires_grad_(forces)
        strain = positions.new_zeros(graphs, 3, 3, requires_grad=stress)
        vectors = self._vectors(positions, data["shifts"].to(positions.dtype), index, batch, strain)
        lengths = vectors.norm(dim=1)
        if bool((lengths == 0).any()):
            raise DataError("edge_index: an edge has length 0; two atoms share a place")
        edges = Edges(
            element,
            index,
            self.harmonics(vectors / lengths[:, None]),
            self.radial(lengths),
            self.radial.envelope(lengths[:, None] / self.config.cutoff),
            self.harmonics.irreps_out.parts(self.config.basis),
        )
        alone: Any = self.energies
        values, features = self.sites(edges)
        sites = values * self.config.scale + alone.to(positions.dtype)[element]
        energy = positions.new_zeros(graphs).index_add(0, batch, sites)
        found = {"energy": energy}
        if features is not None:
            for name, head in self.heads.items():
                found[name] = head(features, element, batch, graphs)
        wanted = [value for value, asked in ((positions, forces), (strain, stress)) if asked]
        if not wanted:
            return found
        slopes = list(
            torch.autograd.grad(energy.sum(), wanted, create_graph=self.training, allow_unused=True)
        )
        if forces:
            slope = slopes.pop(0)
            found["forces"] = torch.zeros_like(positions) if slope is None else -slope
        if stress:
            found["stress"] = self._stress(slopes.pop(0), strain, data)
        return found

    def _elements(self, numbers: Tensor) -> Tensor:
        places: Any = self.places
        known = (numbers > 0) & (numbers < len(places))
        element: Tensor = places[numbers.clamp(0, len(places) - 1)]
        if not bool((known & (element >= 0)).all()):
            strange = sorted({int(n) for n in numbers[~known | (element < 0)]})
            raise DataError(
                f"atomic_numbers: the model knows {list(self.config.elements)}, not {strange}; train it on them"
            )
        return element

    @staticmethod
    def _vectors(positions: Tensor, shifts: Tensor, index: Tensor, batch: Tensor, strain: Tensor) -> Tensor:
        vectors = positions[index[0]] + shifts - positions[index[1]]
        if not strain.requires_grad:
            return vectors
        symmetric = (strain + strain.transpose(1, 2)) / 2
        return vectors + (vectors[:, None, :] @ symmetric[batch[index[1]]]).squeeze(1)

    @staticmethod
    def _stress(slope: Tensor | None, strain: Tensor, data: Mapping[str, Tensor]) -> Tensor:
        cell = data.get("cell")
        if cell is None:
            raise DataError("cell: the stress needs the volume; give cell (graphs, 3, 3)")
        volume = torch.linalg.det(cell.to(strain.dtype)).abs()
        if bool((volume == 0).any()):
            raise DataError("cell: one has no volume; a molecule in a vacuum has no stress")
        return torch.zeros_like(strain) if slope is None else slope / volume[:, None, None]
