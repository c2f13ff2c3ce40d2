"""Which weights go: masks from scores, with an exact number of zeros and a fixed order for ties.

Scores are [outputs, inputs]; among equal scores the one with the lower index goes first.
"""

from __future__ import annotations

import re
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from methods.common.errors import ConfigError, NumericalError

Compare = Literal["layer", "row"]
# None is unstructured; (n, m) keeps n of every m consecutive inputs.
Pattern = str | tuple[int, int] | None
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


def parse_pattern(pattern: Pattern) -> tuple[int, int] | None:
    """`"unstructured"` or None -> None; `"2:4"` or (2, 4) -> (2, 4).

    Raises:
        ConfigError: anything else, or not 0 < n < m.
    """
    if pattern is None or pattern == "unstructured":
        return None
    if isinstance(pattern, str):
        match = re.fullmatch(r"(\d+):(\d+)", pattern)
        pair = (int(match[1]), int(match[2])) if match else (0, 0)
    else:
        pair = pattern
    if len(pair) != 2 or not 0 < pair[0] < pair[1]:
        raise ConfigError(f"pattern {pattern!r}: give 'unstructured' or 'n:m' with 0 < n < m, such as '2:4'")
    return pair


def check_sparsity(sparsity: float, pattern: tuple[int, int] | None) -> float:
    """The share of weights to remove.

    Raises:
        ConfigError: outside [0, 1), or not what the pattern removes (0 switches either off).
    """
    if not isinstance(sparsity, int | float) or not 0 <= sparsity < 1:
        raise ConfigError(f"sparsity {sparsity!r}: give a share of weights to remove in [0, 1)")
    if pattern is not None and min(sparsity, abs(sparsity - (1 - pattern[0] / pattern[1]))) > 1e-9:
        n, m = pattern
        raise ConfigError(f"sparsity {sparsity}: the pattern {n}:{m} removes exactly {1 - n / m:g}; set that")
    return sparsity


def keep_mask(
    scores: Tensor, *, sparsity: float, pattern: tuple[int, int] | None = None, compare: Compare = "row"
) -> Tensor:
    """True for the weights that stay.

    Unstructured: exactly round(sparsity * size) go from each row, or from the layer as a whole, as
    `torch.nn.utils.prune.l1_unstructured` counts them. n:m: exactly m - n go from each group.

    Args:
        scores: float [outputs, inputs], finite.
        sparsity: share of weights to remove; 0 keeps all.
        pattern: (n, m) or None for unstructured.
        compare: which weights compete: those of one output row, or of the whole layer. Groups compete among
            themselves.

    Raises:
        NumericalError: scores with NaN.
        ConfigError: inputs that m does not divide.
    """
    check_sparsity(sparsity, pattern)
    if compare not in ("layer", "row"):
        raise ConfigError(f"compare {compare!r}: give 'layer' or 'row'")
    values: Floats = scores.detach().to("cpu", torch.float32).contiguous().numpy()
    if np.isnan(values.max(initial=0)):
        raise NumericalError(
            "pruning scores hold NaN: the weights or the calibration activations are not finite"
        )
    if sparsity == 0:
        return torch.ones_like(scores, dtype=torch.bool)
    if pattern is not None:
        removed = _lowest_of_groups(values, *pattern)
    elif compare == "row":
        removed = _lowest(values, round(sparsity * values.shape[1]))
    else:
        removed = _lowest(values.reshape(1, -1), round(sparsity * values.size)).reshape(values.shape)
    return torch.from_numpy(~removed).to(scores.device)


def _lowest(values: Floats, count: int) -> Bools:
    """The `count` lowest of each row; a selection, not a sort: numpy's is many times faster than torch's on
    the CPU."""
    if count == 0:
        return np.zeros(values.shape, dtype=np.bool_)
    threshold = np.partition(values, count - 1, axis=1)[:, count - 1 : count]
    below, tied = values < threshold, values == threshold
    room = count - below.sum(axis=1)
    rows = np.flatnonzero(tied.sum(axis=1) != room)
    if rows.size:
        tied[rows] &= np.cumsum(tied[rows], axis=1) <= room[rows, None]
    removed: Bools = below | tied
    return removed


def _lowest_of_groups(values: Floats, n: int, m: int) -> Bools:
    """The m - n lowest of every m consecutive inputs, by the rank of each in its group."""
    if values.shape[1] % m:
        raise ConfigError(
            f"pattern {n}:{m}: {values.shape[1]} inputs are no multiple of {m}; use 'unstructured'"
        )
    columns = np.ascontiguousarray(values.reshape(-1, m).T)
    rank = np.zeros(columns.shape, dtype=np.int8 if m < 128 else np.int32)
    for i in range(m):
        for j in range(i + 1, m):
            swapped = columns[j] < columns[i]
            rank[i] += swapped
            rank[j] += ~swapped
    removed: Bools = (rank < m - n).T.reshape(values.shape)
    return removed
