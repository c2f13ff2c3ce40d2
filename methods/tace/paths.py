"""Irreducible Cartesian tensor decomposition by path matrices (Shao et al., JMLR 26(175), 2025).

A path (0, 1, ..., j_n) says how the n axes of a tensor are coupled one after the other: each further axis raises the
rank by one, keeps it, or lowers it. Its matrix holds an orthonormal basis of one irreducible part of R^(3^n).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from e3nn.o3 import wigner_3j
from torch import Tensor

from methods.common.errors import ConfigError, at_least

HIGHEST_RANK = 8  # of a whole decomposition, 9^8 numbers
LONGEST_PATH = 12  # 3^12 rows


class Path(NamedTuple):
    """One irreducible part of the tensors of some rank.

    Attributes:
        ranks: (0, 1, ..., j_n), the rank after each axis.
        matrix: (3^n, 2 j_n + 1) float64 with orthonormal columns; `x @ matrix @ matrix.T` is the part of `x`.
    """

    ranks: tuple[int, ...]
    matrix: Tensor


@cache
def coupling(l1: int, l2: int, l3: int) -> Tensor:
    """e3nn's real Wigner 3j symbol, (2 l1 + 1, 2 l2 + 1, 2 l3 + 1), float64 of unit norm. Do not write into it."""
    return wigner_3j(l1, l2, l3, dtype=torch.float64)


def path_matrix(path: int | Sequence[int]) -> Tensor:
    """Orthonormal basis of the irreducible part that a path leads to.

    Args:
        path: ranks (0, 1, ..., j_n); or one rank l for the path that always climbs, whose part are the symmetric
            traceless tensors.

    Returns:
        (3^n, 2 j_n + 1) float64, rows in row-major order of the axes (x, y, z); a copy.

    Raises:
        ConfigError: no path: it starts elsewhere, steps by more than one, stays at 0, or is too long.
    """
    ranks = tuple(range(at_least("path", path, 0) + 1)) if isinstance(path, int) else tuple(path)
    _check_path(ranks)
    return _path_matrix(ranks).clone()


def _check_path(ranks: tuple[int, ...]) -> None:
    steps = list(itertools.pairwise(ranks))
    fits = all(abs(a - b) <= 1 <= a + b for a, b in steps) and all(rank >= 0 for rank in ranks)
    if ranks[:1] != (0,) or not fits:
        raise ConfigError(
            f"path {ranks}: start at 0, step by -1, 0 or 1, stay at 0 or above, and from 0 go to 1 only"
        )
    if len(ranks) > LONGEST_PATH + 1:
        raise ConfigError(f"path {ranks}: has {len(ranks) - 1} axes; at most {LONGEST_PATH} are supported")


@cache
def _path_matrix(ranks: tuple[int, ...]) -> Tensor:
    if len(ranks) == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    before, last, rank = _path_matrix(ranks[:-1]), ranks[-2], ranks[-1]
    grown = torch.einsum("am,bmc->abc", before, coupling(1, last, rank)).reshape(-1, 2 * rank + 1)
    return grown / grown.norm(dim=0, keepdim=True)


def irreducible_basis(rank: int) -> Tensor:
    """`path_matrix(rank)` without the copy: (3^rank, 2 rank + 1). Do not write into it."""
    if rank > LONGEST_PATH:
        raise ConfigError(f"rank {rank}: at most {LONGEST_PATH} is supported")
    return _path_matrix(tuple(range(rank + 1)))


def paths_of(rank: int) -> list[tuple[int, ...]]:
    """All paths over `rank` axes, depth first, climbing before staying before descending."""
    found: list[tuple[int, ...]] = []
    stack: list[tuple[int, ...]] = [(0,)]
    while stack:
        path = stack.pop()
        if len(path) == rank + 1:
            found.append(path)
            continue
        last = path[-1]
        stack.extend((*path, following) for following in ([last - 1, last, last + 1] if last else [1]))
    return found


def ictd(rank: int) -> list[Path]:
    """Irreducible Cartesian tensor decomposition of all tensors of a rank.

    Args:
        rank: number of axes, 0 to 8. The matrices together hold 9^rank numbers.

    Returns:
        the paths, depth first; their matrices side by side are orthogonal, so the parts of a tensor sum to it.

    Raises:
        ConfigError: a negative rank, or one above 8.
    """
    if at_least("rank", rank, 0) > HIGHEST_RANK:
        raise ConfigError(f"rank {rank}: at most {HIGHEST_RANK} is supported")
    return [Path(path, path_matrix(path)) for path in paths_of(rank)]
