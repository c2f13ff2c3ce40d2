"""Generalised Clebsch-Gordan coefficients: many tensors at once become one, in either basis."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from e3nn.o3 import Irrep
from torch import Tensor

from methods.common.errors import ConfigError, at_least
from methods.tace.irreps import Basis, Irreps, irreps
from methods.tace.paths import coupling, irreducible_basis
from methods.tace.symbols import Symbol, size_factor


class _Chain(NamedTuple):
    """Irreps coupled one behind the other: (2 l + 1, dim, ..., dim) with an axis for each."""

    ir: Irrep
    tensor: Tensor


def ggcc(
    irreps_in: Any,
    L: int,
    nu: int,
    *,
    parity: int = 0,
    through: Collection[int] | None = None,
    normalization: str = "component",
    symbol: Symbol = "canonical",
    basis: Basis = "cartesian",
) -> Tensor:
    """Cartesian generalised Clebsch-Gordan coefficients of left-nested chains.

    Args:
        irreps_in: what each of the `nu` inputs holds, every irrep once, such as "0e+1o+2e".
        L: rank of the result.
        nu: number of inputs, 1 or more. The result has (sum of 3^l)^nu columns: 64,000 for ranks to 3 and nu = 3.
        parity: of the result; 0 takes (-1)^L, that of a true tensor.
        through: ranks that a chain may pass on its way; None takes all.
        normalization: "component" scales a coupling by sqrt(2 l + 1) of its result, "norm" by that of its inputs.
        symbol: "path" gives each coupling the size of the published symbol.
        basis: "spherical" gives (2 L + 1, (sum of 2 l + 1)^nu, paths).

    Returns:
        (3^L, (sum of 3^l)^nu, paths) float64; the columns of a chain in row-major order of the inputs.

    Raises:
        ConfigError: multiplicities above 1, an unknown normalisation, or no chain that ends there.
    """
    wanted = irreps(irreps_in, "irreps_in")
    if not len(wanted) or any(mul != 1 for mul, _ in wanted):
        raise ConfigError(f"irreps_in {wanted}: give each irrep once, such as '0e+1o+2e'")
    if normalization not in ("component", "norm"):
        raise ConfigError(f"normalization {normalization!r}: give one of component, norm")
    target = Irrep(at_least("L", L, 0), parity or (-1) ** L)
    singles = _singles(wanted)
    chains = singles
    for order in range(1, at_least("nu", nu, 1)):
        last = order == nu - 1
        chains = [
            _grown(left, right, ir, normalization, symbol)
            for left in chains
            for right in singles
            for ir in left.ir * right.ir
            if (ir == target if last else through is None or ir.l in through)
        ]
    found = [chain.tensor for chain in chains if chain.ir == target]
    if not found:
        raise ConfigError(f"L {L}: no chain of {nu} irreps of {wanted} ends at {target}")
    if basis == "spherical":
        return torch.stack([tensor.reshape(2 * L + 1, -1) for tensor in found], dim=-1)
    change = _change_of(wanted)
    return torch.stack([_cartesian(tensor, change, L) for tensor in found], dim=-1)


def _singles(wanted: Irreps) -> list[_Chain]:
    """Each irrep of the input alone: the slice of an identity."""
    identity = torch.eye(int(wanted.dim), dtype=torch.float64)
    return [
        _Chain(ir, identity[part]) for (_, ir), part in zip(wanted, wanted.parts("spherical"), strict=True)
    ]


def _grown(left: _Chain, right: _Chain, ir: Irrep, normalization: str, symbol: Symbol) -> _Chain:
    """The chain with one more input, coupled to `ir`."""
    sizes = ir.dim if normalization == "component" else left.ir.dim * right.ir.dim
    ranks = (ir.l, left.ir.l, right.ir.l)
    size = sizes**0.5 * size_factor(symbol, *ranks)
    half = torch.tensordot(coupling(*ranks) * size, left.tensor, ([1], [0]))
    return _Chain(ir, torch.tensordot(half, right.tensor, ([1], [0])))


def _change_of(wanted: Irreps) -> Tensor:
    """Block-diagonal isometry (sum of 3^l, sum of 2 l + 1)."""
    return torch.block_diag(*(irreducible_basis(ir.l) for _, ir in wanted))


def _cartesian(tensor: Tensor, change: Tensor, rank: int) -> Tensor:
    """Every axis of a chain in the Cartesian basis, the inputs' axes as one."""
    found = torch.tensordot(irreducible_basis(rank), tensor, ([1], [0]))
    for _ in range(tensor.ndim - 1):
        # The axis that is mapped goes to the end, so after all of them the order is the old one.
        found = torch.tensordot(found, change, ([1], [1]))
    return found.reshape(3**rank, -1)
