"""What an interatomic potential is made of."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from methods.common.errors import ConfigError, at_least
from methods.tace.irreps import Basis, Irreps
from methods.tace.product import Backend
from methods.tace.symbols import Symbol

Architecture = Literal["tace", "mace", "nequip", "allegro"]
Tensors = Literal["dipole", "polarizability"]
TENSOR_RANKS: dict[Tensors, int] = {"dipole": 1, "polarizability": 2}


@dataclass(frozen=True)
class PotentialConfig:
    """Sizes of a potential; the two bases have the same ones, so that twins differ in nothing else.

    Attributes:
        elements: atomic numbers that it knows.
        energies: of the isolated atoms, eV, in the order of `elements`; empty for zeros.
        scale: eV that a site energy of 1 stands for; the RMS force of the training set serves well.
        neighbors: mean number of neighbours within the cutoff; sums of messages are divided by it or its root.
        architecture: "tace", or one of the twins "mace", "nequip", "allegro".
        basis: of features: "cartesian", 3^l numbers a tensor, or "spherical", 2 l + 1.
        symbol: "canonical" couples as e3nn does; "path" with the sizes of the published symbol.
        backend: of the Cartesian products.
        cutoff: in angstrom.
        layers: of messages.
        channels: of every irrep.
        lmax: highest rank of the edges' harmonics and of messages.
        node_lmax: highest rank that atoms keep between layers.
        correlation: atoms that a product of messages couples, beside the centre; "tace" and "mace".
        radial: Bessel functions.
        cutoff_order: of the polynomial that ends them.
        radial_hidden, readout_hidden: widths of the small networks.
        parity: "both" keeps pseudo-tensors as well ("nequip" and "allegro" with Levi-Civita paths); "natural" has
            parity (-1)^l only.
        ordered: "tace": couple l1 <= l2 only, as the large published model does.
        tensors: read beside the energy: "dipole", "polarizability"; "tace" and "mace".
    """

    elements: tuple[int, ...]
    energies: tuple[float, ...] = ()
    scale: float = 1.0
    neighbors: float = 10.0
    architecture: Architecture = "tace"
    basis: Basis = "cartesian"
    symbol: Symbol = "canonical"
    backend: Backend = "auto"
    cutoff: float = 5.0
    layers: int = 2
    channels: int = 16
    lmax: int = 2
    node_lmax: int = 1
    correlation: int = 2
    radial: int = 8
    cutoff_order: int = 6
    radial_hidden: tuple[int, ...] = (32, 32)
    readout_hidden: int = 16
    parity: Literal["natural", "both"] = "natural"
    ordered: bool = False
    tensors: tuple[Tensors, ...] = ()

    def __post_init__(self) -> None:
        """Refuse sizes that are none. Raises ConfigError: names the field."""
        allowed = {"architecture": Architecture, "basis": Basis, "symbol": Symbol, "backend": Backend}
        for name, literal in allowed.items():
            if getattr(self, name) not in get_args(literal):
                raise ConfigError(
                    f"{name} {getattr(self, name)!r}: give one of {', '.join(get_args(literal))}"
                )
        if self.parity not in ("natural", "both"):
            raise ConfigError(f"parity {self.parity!r}: give one of natural, both")
        for name in ("layers", "channels", "lmax", "correlation", "radial", "readout_hidden"):
            at_least(name, getattr(self, name), 1)
        at_least("node_lmax", self.node_lmax, 0)
        at_least("cutoff_order", self.cutoff_order, 2)
        for name in ("cutoff", "scale", "neighbors"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} {getattr(self, name)}: must be above 0")
        if not self.elements or len(set(self.elements)) < len(self.elements):
            raise ConfigError(f"elements {self.elements}: give each atomic number once")
        for number in self.elements:
            if not 1 <= number <= 118:
                raise ConfigError(f"elements {self.elements}: {number} is no atomic number")
        if self.energies and len(self.energies) != len(self.elements):
            raise ConfigError(
                f"energies: {len(self.energies)} for {len(self.elements)} elements; give one each"
            )
        for name in self.tensors:
            if name not in get_args(Tensors):
                raise ConfigError(f"tensors {name!r}: give some of {', '.join(get_args(Tensors))}")
            if self.architecture not in ("tace", "mace"):
                raise ConfigError(
                    f"tensors {name!r}: architecture {self.architecture} has none; take tace or mace"
                )
            if self.lmax < TENSOR_RANKS[name]:
                raise ConfigError(f"lmax {self.lmax}: a {name} needs at least {TENSOR_RANKS[name]}")
        if self.node_lmax > self.lmax:
            raise ConfigError(f"node_lmax {self.node_lmax}: must be at most lmax {self.lmax}")

    def irreps(self, highest: int) -> Irreps:
        """The channels of every irrep to that rank."""
        both = self.parity == "both" and self.architecture in ("nequip", "allegro")
        signs = (1, -1) if both else (0,)
        return Irreps(
            [(self.channels, (rank, sign or (-1) ** rank)) for rank in range(highest + 1) for sign in signs]
        )

    @property
    def final_rank(self) -> int:
        """Highest rank behind the last layer: 0 where only energies are read."""
        return max((TENSOR_RANKS[name] for name in self.tensors), default=0)

    def as_dict(self) -> dict[str, object]:
        """Plain values, for a file."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
