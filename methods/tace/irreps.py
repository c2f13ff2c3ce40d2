"""Irreps of features and their two forms: spherical, 2 l + 1 numbers a tensor, and Cartesian, 3^l numbers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

import torch
from e3nn import o3
from torch import Tensor

from methods.common.errors import ConfigError, DataError
from methods.tace.paths import irreducible_basis

Basis = Literal["cartesian", "spherical"]


class Irreps(o3.Irreps):
    """e3nn's irreps, such as "16x0e+16x1o+16x2e", which know their Cartesian size as well."""

    @property
    def cdim(self) -> int:
        """Numbers of a Cartesian feature: the sum of multiplicity times 3^l."""
        return sum(mul * 3**ir.l for mul, ir in self)

    def width(self, basis: Basis) -> int:
        """Numbers of a feature in that basis."""
        return self.cdim if basis == "cartesian" else int(self.dim)

    def parts(self, basis: Basis) -> list[slice]:
        """Where each irrep lies in a feature in that basis."""
        found, start = [], 0
        for mul, ir in self:
            stop = start + mul * size_of(ir.l, basis)
            found.append(slice(start, stop))
            start = stop
        return found


def irreps(value: Any, name: str = "irreps") -> Irreps:
    """`Irreps` of anything that e3nn reads. Raises ConfigError: it reads none, named by `name`."""
    try:
        return Irreps(value)
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"{name} {value!r}: write irreps such as '16x0e+16x1o+16x2e'") from error


def size_of(rank: int, basis: Basis) -> int:
    """Numbers of one irreducible tensor: 3^l or 2 l + 1."""
    return int(3**rank if basis == "cartesian" else 2 * rank + 1)


def check_features(features: Tensor, wanted: Irreps, basis: Basis, name: str = "features") -> None:
    """Refuse features of another size or of integers.

    Raises:
        DataError: the last axis has another size; says which is expected.
        TypeError: no floating-point numbers.
    """
    if not features.is_floating_point():
        raise TypeError(f"{name} is {features.dtype}; give floating-point numbers")
    expected = wanted.width(basis)
    if features.shape[-1:] != (expected,):
        formula = "multiplicity times 3^l" if basis == "cartesian" else "multiplicity times 2 l + 1"
        raise DataError(
            f"{name} {tuple(features.shape)}: the last axis must be {expected}, the sum of {formula} over {wanted}"
        )


@cache
def _basis_as(rank: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return irreducible_basis(rank).to(dtype=dtype, device=device)


def basis_like(rank: int, like: Tensor) -> Tensor:
    """The isometry (3^l, 2 l + 1) in the type and on the device of a tensor. Do not write into it."""
    return _basis_as(rank, like.dtype, like.device)


def _mapped(features: Tensor, wanted: Irreps, basis: Basis) -> Iterator[Tensor]:
    for (mul, ir), part in zip(wanted, wanted.parts(basis), strict=True):
        value = features[..., part].unflatten(-1, (mul, size_of(ir.l, basis)))
        if ir.l > 1:  # ranks 0 and 1 are the same in both
            change = basis_like(ir.l, features)
            value = value @ (change if basis == "cartesian" else change.T)
        yield value.flatten(-2)


def to_spherical(features: Tensor, irreps_in: Any) -> Tensor:
    """Cartesian features in e3nn's basis; what is not irreducible in them is dropped.

    Args:
        features: (..., sum of mul 3^l).
        irreps_in: their irreps.

    Returns:
        (..., sum of mul (2 l + 1)); with `to_cartesian` behind it the projection on irreducible tensors.

    Raises:
        ConfigError: no irreps. DataError, TypeError: see `check_features`.
    """
    wanted = irreps(irreps_in, "irreps_in")
    check_features(features, wanted, "cartesian")
    return torch.cat([features[..., :0], *_mapped(features, wanted, "cartesian")], dim=-1)


def to_cartesian(features: Tensor, irreps_in: Any) -> Tensor:
    """e3nn's features as irreducible Cartesian tensors of the same norm; arguments and errors as `to_spherical`."""
    wanted = irreps(irreps_in, "irreps_in")
    check_features(features, wanted, "spherical")
    return torch.cat([features[..., :0], *_mapped(features, wanted, "spherical")], dim=-1)


def project(features: Tensor, irreps_in: Any) -> Tensor:
    """The symmetric traceless part of Cartesian features; what is irreducible stays as it is."""
    wanted = irreps(irreps_in, "irreps_in")
    check_features(features, wanted, "cartesian")
    parts = []
    for (mul, ir), part in zip(wanted, wanted.parts("cartesian"), strict=True):
        value = features[..., part]
        if ir.l > 1:
            change = basis_like(ir.l, features)
            value = (value.unflatten(-1, (mul, 3**ir.l)) @ change @ change.T).flatten(-2)
        parts.append(value)
    return torch.cat([features[..., :0], *parts], dim=-1)
