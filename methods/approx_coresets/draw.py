"""Draws of indices in proportion to numbers, without a cumulative sum of all of them.

Sums are kept block by block in double precision: one running sum over more than ten million numbers drifts, and one
in single precision never reaches the last points.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods.approx_coresets.space import Floats

BLOCK = 65536


def draw(
    random: np.random.RandomState, size: int, masses: Floats, other: Floats | None = None
) -> NDArray[Any]:
    """`size` indices, independent and with replacement, P(i) in proportion to `masses[i] * other[i]`; ascending.

    Args:
        random: source of chance.
        size: how many.
        masses: `(n,)`, not negative, some positive.
        other: `(n,)` factors, or None.
    """
    starts = range(0, len(masses), BLOCK)

    def block(start: int) -> Floats:
        part = masses[start : start + BLOCK]
        return part if other is None else part * other[start : start + BLOCK]

    ends = np.cumsum([block(start).sum() for start in starts])
    targets = np.sort(random.uniform(size=size)) * ends[-1]
    # A target that rounding puts on the very end belongs to the last block with any mass.
    last = int(np.searchsorted(ends, ends[-1], side="left"))
    blocks = np.minimum(np.searchsorted(ends, targets, side="right"), last)
    found = np.empty(size, dtype=np.int64)
    for number in np.unique(blocks):
        mine = blocks == number
        within = np.cumsum(block(starts[number]))
        rest = targets[mine] - (ends[number - 1] if number else 0.0)
        full = int(np.searchsorted(within, within[-1], side="left"))
        found[mine] = starts[number] + np.minimum(np.searchsorted(within, rest, side="right"), full)
    return found
