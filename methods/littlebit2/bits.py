"""How many bits a factorised layer takes, and the rank that a target allows.

Three numbers are kept apart everywhere: nominal (the paper's formula), stored (bytes of the layer's tensors), and
the whole model's (all weight files, embeddings included).
"""

from __future__ import annotations

from typing import NamedTuple

from methods.common.checks import check_number, check_whole

SCALE_BITS = 16  # h, l and g are kept in half precision


class Rank(NamedTuple):
    """A rank, and whether it is not what the target asked for."""

    rank: int
    clamped: bool


def nominal_bits(outputs: int, inputs: int, rank: int, branches: int = 1) -> int:
    """Bits of a layer by the paper's formula: r (o + i + 16) + 16 (o + i) a branch."""
    size = outputs + inputs
    return branches * (rank * (size + SCALE_BITS) + SCALE_BITS * size)


def stored_bytes(outputs: int, inputs: int, rank: int, branches: int = 1) -> int:
    """Bytes of a layer's tensors in a packed file: rows of signs padded to whole bytes, fp16 scales."""
    signs = outputs * -(-rank // 8) + rank * -(-inputs // 8)
    return branches * (signs + SCALE_BITS // 8 * (outputs + rank + inputs))


def smallest_bpp(outputs: int, inputs: int, residual: bool, min_rank: int = 8) -> float:
    """The lowest nominal bits per weight that a layer can reach."""
    return nominal_bits(outputs, inputs, min_rank, 1 + residual) / (outputs * inputs)


def rank_for(
    outputs: int, inputs: int, bpp: float, *, residual: bool = False, min_rank: int = 8, multiple: int = 8
) -> Rank:
    """The largest rank whose nominal bits stay within `bpp` bits a weight, rounded down to a multiple of `multiple`.

    Never below `min_rank` nor above min(outputs, inputs); `clamped` says that the target was missed for that reason.

    Raises:
        ConfigError: bpp is not above 0, or a size, min_rank or multiple below 1.
    """
    check_number("bpp", bpp, above=0)
    for field, value in (
        ("outputs", outputs),
        ("inputs", inputs),
        ("min_rank", min_rank),
        ("multiple", multiple),
    ):
        check_whole(field, value, 1)
    most = min(outputs, inputs)
    branches = 1 + residual
    size = outputs + inputs
    budget = outputs * inputs * bpp - branches * SCALE_BITS * size
    rank = int(budget / (branches * (size + SCALE_BITS)) // multiple * multiple)
    floor = min(min_rank, most)
    if rank < floor:
        return Rank(floor, True)
    return Rank(most, True) if rank > most else Rank(rank, False)


def equal_bits_rank(outputs: int, inputs: int, bits: float) -> int:
    """Rank of an fp16 low-rank product U V with at least that many bits: rounded up, in its favour."""
    return max(1, -(-int(bits) // (SCALE_BITS * (outputs + inputs))))
