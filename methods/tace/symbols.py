"""Cartesian-3j symbols: how two irreducible Cartesian tensors become a third.

Three sizes of one coupling: "canonical" is the Wigner 3j symbol seen through the change of basis, so it has its norm
and its symmetries; "path" is the coupling along the first path; "contraction" is what contracting k axes times
3^(-k/2) gives, as TACE does. A product need not build the symbol: contracting axes, and projecting what is left,
suffices.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from methods.common.errors import ConfigError, at_least
from methods.tace.paths import coupling, irreducible_basis, path_matrix

Symbol = Literal["canonical", "path", "contraction"]


class Contraction(NamedTuple):
    """The canonical product of two irreducible tensors without its dense symbol.

    Contract the last `pairs` axes of the first with the first `pairs` of the second; where `crossed`, take the cross
    product of one more axis of each; project on symmetric traceless tensors; multiply by `scale`.
    """

    pairs: int
    crossed: bool
    scale: float


def levi_civita(dtype: torch.dtype = torch.float64) -> Tensor:
    """The antisymmetric symbol, (3, 3, 3)."""
    symbol = torch.zeros(3, 3, 3, dtype=dtype)
    for p, q, r in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        symbol[p, q, r], symbol[q, p, r] = 1.0, -1.0
    return symbol


def check_triangle(l1: int, l2: int, l3: int) -> None:
    """Refuse ranks that do not couple. Raises ConfigError."""
    for name, value in (("l1", l1), ("l2", l2), ("l3", l3)):
        at_least(name, value, 0)
    if not abs(l1 - l2) <= l3 <= l1 + l2:
        raise ConfigError(f"l3 {l3}: l1 {l1} and l2 {l2} couple to {abs(l1 - l2)} to {l1 + l2} only")


def cartesian_3j(
    l1: int,
    l2: int,
    l3: int,
    *,
    symbol: Symbol = "canonical",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    """The dense Cartesian-3j symbol; built in float64 whatever `dtype`.

    Args:
        l1, l2, l3: ranks with |l1 - l2| <= l3 <= l1 + l2.
        symbol: "canonical" has unit norm and permutes as the Wigner 3j symbol; "path" is the published one, of norm
            sqrt(2 l3 + 1), whose size on irreducible tensors is `path_factor` times the canonical one's.
        dtype, device: of the result.

    Returns:
        (3^l1, 3^l2, 3^l3).

    Raises:
        ConfigError: ranks that do not couple, or an unknown symbol.
    """
    check_triangle(l1, l2, l3)
    c3 = irreducible_basis(l3)
    if symbol == "canonical":
        found = torch.einsum(
            "ai,bj,ck,ijk->abc", irreducible_basis(l1), irreducible_basis(l2), c3, coupling(l1, l2, l3)
        )
    elif symbol == "path":
        # Published code couples from the last axis to the first, so the second tensor's axes come first in the path.
        found = (path_matrix(_first_path(l1 + l2, l3)) @ c3.T).reshape(3**l2, 3**l1, 3**l3).transpose(0, 1)
    else:
        raise ConfigError(f"symbol {symbol!r}: a dense symbol is canonical or path")
    return found.to(dtype=dtype, device=device)


def _first_path(axes: int, rank: int) -> tuple[int, ...]:
    """The first path, climbing before staying before descending, over that many axes to that rank."""
    top = (axes + rank) // 2
    level = (axes + rank) % 2
    return (*range(top + 1), *[top] * level, *range(top - 1, rank - 1, -1))


@cache
def path_factor(l1: int, l2: int, l3: int) -> float:
    """How much smaller the path symbol couples irreducible tensors than the canonical one of the same norm.

    1 where l1 is at most 1, where l3 is 0 or l1 + l2; down to 1/15 at (3, 1, 2); not symmetric in the ranks.
    """
    along = path_matrix(_first_path(l1 + l2, l3)).reshape(3**l2, 3**l1, 2 * l3 + 1)
    seen = torch.einsum("bak,ai,bj->ijk", along, irreducible_basis(l1), irreducible_basis(l2))
    return float((seen * coupling(l1, l2, l3)).sum()) / (2 * l3 + 1) ** 0.5


def size_factor(symbol: Symbol, l1: int, l2: int, l3: int) -> float:
    """The size of a coupling of irreducible tensors, as a multiple of the canonical one's of the same norm."""
    if symbol == "path":
        return path_factor(l1, l2, l3)
    if symbol == "contraction":
        plan = contraction_of(l1, l2, l3)
        return float(3.0 ** (-plan.pairs / 2) / abs(plan.scale))
    return 1.0


@cache
def contraction_of(l1: int, l2: int, l3: int) -> Contraction:
    """The factored form of `cartesian_3j(l1, l2, l3)`. Raises ConfigError: ranks that do not couple."""
    check_triangle(l1, l2, l3)
    pairs, odd = divmod(l1 + l2 - l3, 2)
    symbol = coupling(l1, l2, l3)
    place = int(symbol.abs().argmax())
    i, rest = divmod(place, symbol.shape[1] * symbol.shape[2])
    j, k = divmod(rest, symbol.shape[2])
    first, second = irreducible_basis(l1)[:, i], irreducible_basis(l2)[:, j]
    plain = contract(first[None, None], second[None, None], l1, l2, pairs, bool(odd))
    value = float(plain.flatten() @ irreducible_basis(l3)[:, k])
    return Contraction(pairs, bool(odd), float(symbol[i, j, k]) / value)


def contract(first: Tensor, second: Tensor, l1: int, l2: int, pairs: int, crossed: bool) -> Tensor:
    """Contract axes of every channel of the one with every channel of the other, without a projection.

    Args:
        first: (rows, u, 3^l1).
        second: (rows, v, 3^l2).
        l1, l2: their ranks.
        pairs: axes contracted.
        crossed: whether one more axis of each becomes their cross product.

    Returns:
        (rows, u, v, 3^(l1 + l2 - 2 pairs - crossed)).
    """
    rows, u, v = first.shape[0], first.shape[1], second.shape[1]
    inner, before, behind = 3**pairs, 3 ** (l1 - pairs - crossed), 3 ** (l2 - pairs - crossed)
    if not crossed:
        left = first.reshape(rows, u * before, inner)
        right = second.reshape(rows, v, inner, behind).transpose(1, 2).reshape(rows, inner, v * behind)
        found = torch.bmm(left, right).reshape(rows, u, before, v, behind)
        return found.transpose(2, 3).flatten(3)
    left = first.reshape(rows, u, before, 3, inner)
    right = second.reshape(rows, v, inner, 3, behind)
    found = torch.einsum("zuapc,zvcqb->pqzuvab", left, right)
    cross = torch.stack(
        [found[1, 2] - found[2, 1], found[2, 0] - found[0, 2], found[0, 1] - found[1, 0]], dim=4
    )
    return cross.flatten(3)


def contract_one(first: Tensor, second: Tensor, l1: int, l2: int, pairs: int, crossed: bool) -> Tensor:
    """The same, channel by channel: (rows, u, 3^l1) and (rows, u, 3^l2) to (rows, u, 3^(...))."""
    rows, u = first.shape[:2]
    left, right = (tensor.reshape(rows * u, 1, tensor.shape[2]) for tensor in (first, second))
    one = contract(left, right, l1, l2, pairs, crossed)
    return one.reshape(rows, u, one.shape[-1])
