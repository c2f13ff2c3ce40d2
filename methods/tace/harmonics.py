"""Cartesian harmonics: the symmetric traceless powers of a direction."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError, DataError, at_least
from methods.tace.irreps import Irreps, basis_like

Normalization = Literal["component", "norm", "integral", "repo"]


def harmonic_scale(rank: int, normalization: Normalization) -> float:
    """The number before the traceless power of a unit vector, whose squared norm is l! / (2 l - 1)!!.

    "component": squared norm 2 l + 1; "norm": norm 1; "integral": squared mean 1 / (4 pi) a component;
    "repo": (2 l - 1)!! / l!, as published code has it.

    Raises:
        ConfigError: an unknown normalisation.
    """
    inverse = math.prod(range(2 * rank - 1, 0, -2)) / math.factorial(rank)
    scales = {
        "component": math.sqrt((2 * rank + 1) * inverse),
        "norm": math.sqrt(inverse),
        "integral": math.sqrt((2 * rank + 1) * inverse / (4 * math.pi)),
        "repo": inverse,
    }
    if normalization not in scales:
        raise ConfigError(
            f"normalization {normalization!r}: give one of {', '.join(get_args(Normalization))}"
        )
    return scales[normalization]


class CartesianHarmonics(nn.Module):
    """Harmonics of ranks 0 to `lmax` as irreducible Cartesian tensors.

    Args:
        lmax: highest rank.
        normalization: see `harmonic_scale`; "component", "norm" and "integral" are e3nn's.
        normalize: divide vectors by their length; False takes unit vectors as they come.

    Raises:
        ConfigError: a negative rank or an unknown normalisation.
    """

    def __init__(
        self, lmax: int, normalization: Normalization = "component", *, normalize: bool = True
    ) -> None:
        super().__init__()
        self.lmax = at_least("lmax", lmax, 0)
        self.normalization, self.normalize = normalization, normalize
        self.scales = [harmonic_scale(rank, normalization) for rank in range(lmax + 1)]
        self.irreps_out = Irreps(Irreps.spherical_harmonics(lmax))

    def forward(self, vectors: Tensor) -> Tensor:
        """(..., 3) vectors to (..., sum of 3^l). Raises DataError: other shapes, or a vector of length 0."""
        if vectors.shape[-1:] != (3,):
            raise DataError(f"vectors {tuple(vectors.shape)}: the last axis must be 3 (x, y, z)")
        if self.normalize:
            length = vectors.norm(dim=-1, keepdim=True)
            if bool((length == 0).any()):
                raise DataError(
                    "vectors: one has length 0 and no direction; two atoms share a place, or an edge is a loop"
                )
            vectors = vectors / length
        power = vectors.new_ones((*vectors.shape[:-1], 1))
        found = [power * self.scales[0]]
        for rank in range(1, self.lmax + 1):
            # The power of the traceless part: its projection is that of the full power, and its numbers stay small.
            power = (power[..., :, None] * vectors[..., None, :]).flatten(-2)
            if rank > 1:
                change = basis_like(rank, power)
                power = power @ change @ change.T
            found.append(power * self.scales[rank])
        return torch.cat(found, dim=-1)
