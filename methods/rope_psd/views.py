"""Views: the RoPE indices under which a model reads a sequence. Tokens, their order and the mask stay as they are.

With p the standard index 0 .. L-1 of a token in its sequence:

    skip     r = p for p < s, p + y for p >= s            the paper's default
    cyclic   r = (p + u) mod L                            the paper's variant; u is called y here
    nope     r = 0                                        ablation: without any position
    chunks   chunks of s tokens take each other's indices  ablation; y seeds the permutation
    none     r = p
"""

from __future__ import annotations

import math
import random
from typing import Literal, get_args

import torch
from torch import Tensor

from methods.common.errors import ConfigError

Mode = Literal["skip", "cyclic", "nope", "chunks", "none"]
MODES: tuple[str, ...] = get_args(Mode)
SHORTEST = 4  # a shorter sequence has no suffix worth comparing
CHUNKS = 8  # chunks of a sequence in the ablation


def check_mode(mode: str) -> None:
    """Raises ConfigError for an unknown mode."""
    if mode not in MODES:
        raise ConfigError(f"perturbation mode={mode!r}: choose one of {', '.join(MODES)}")


def largest_skip(lengths: Tensor, max_skip: float | int) -> Tensor:
    """Y of each sequence: a float is a multiple of its length, an int a number of tokens; at least 1.

    Raises:
        ConfigError: `max_skip` is not positive, or not finite.
    """
    if not 0 < max_skip < math.inf:
        raise ConfigError(
            f"max_skip={max_skip}: give a positive multiple of the length, or a number of tokens"
        )
    if isinstance(max_skip, float):
        return (lengths * max_skip).round().long().clamp(min=1)
    return torch.full_like(lengths, max_skip)


def sample_perturbation(
    lengths: Tensor,
    max_skip: float | int = 1.0,
    generator: torch.Generator | None = None,
    mode: Mode = "skip",
) -> tuple[Tensor, Tensor]:
    """Draw (s, y) for each sequence.

    Args:
        lengths: (rows,) tokens of each sequence.
        max_skip: Y, the largest gap; a float is a multiple of the length.
        generator: of the processor; the global one when left out.
        mode: skip: s uniform in 0 .. L-1, y uniform in 1 .. Y. cyclic: s = 0, y uniform in 1 .. L-1. chunks: s is
            the length of a chunk, y the seed. nope, none: s = 0, y = 1.

    Returns:
        s, y: (rows,) int64, on the processor.

    Raises:
        ConfigError: unknown mode, or `max_skip` not positive.
    """
    check_mode(mode)
    lengths = lengths.cpu().long()
    highest = largest_skip(lengths, max_skip)
    # Always two draws a row: which mode is used does not shift the stream of the rows after it.
    first, second = torch.rand(2, len(lengths), generator=generator, dtype=torch.float64)
    zeros, ones = torch.zeros_like(lengths), torch.ones_like(lengths)
    if mode == "skip":
        return _below(first, lengths), 1 + _below(second, highest)
    if mode == "cyclic":
        return zeros, 1 + _below(second, (lengths - 1).clamp(min=1))
    if mode == "chunks":
        return (lengths // CHUNKS).clamp(min=1), 1 + _below(second, torch.full_like(lengths, 2**31 - 1))
    return zeros, ones


def _below(share: Tensor, count: Tensor) -> Tensor:
    """Whole numbers 0 .. count-1 from shares in [0, 1)."""
    return torch.minimum((share * count).long(), (count - 1).clamp(min=0))


def perturb_position_ids(
    position_ids: Tensor,
    mode: Mode,
    s: Tensor | int,
    y: Tensor | int,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """The RoPE indices of the perturbed view.

    Args:
        position_ids: (rows, length) standard indices: 0, 1, ... from each sequence's first token. They may start
            again within a row that holds several documents (mode skip only, with (rows, length) s and y).
        mode: see the module's text.
        s, y: a number, (rows,) or, for documents, (rows, length).
        attention_mask: (rows, length), 1 for tokens and 0 for padding on either side, which keeps its indices.

    Returns:
        (rows, length) int64.

    Raises:
        ConfigError: unknown mode, fewer than four indices, s outside 0 .. L-1, y below 1.
        NotImplementedError: indices with several axes (M-RoPE).
    """
    check_mode(mode)
    if position_ids.ndim != 2:
        raise NotImplementedError(
            f"position_ids with {position_ids.ndim} axes: only one temporal index a token is supported, not M-RoPE"
        )
    length = position_ids.shape[1]
    if length < SHORTEST:
        raise ConfigError(f"length={length}: a sequence needs at least {SHORTEST} tokens for two views")
    split, gap = _column(s, position_ids), _column(y, position_ids)
    if int(split.min()) < 0 or int(split.max()) >= length:
        raise ConfigError(f"s={int(split.max())}: the split must lie in 0 .. {length - 1}")
    if int(gap.min()) < 1:
        raise ConfigError(f"y={int(gap.min())}: the gap must be at least 1; at 0 both views are the same")
    real = torch.ones_like(position_ids) if attention_mask is None else attention_mask.long()
    if mode == "skip":
        moved = position_ids + gap * (position_ids >= split)
    elif mode == "cyclic":
        moved = (position_ids + gap) % real.sum(1, keepdim=True).clamp(min=1)
    elif mode == "nope":
        moved = torch.zeros_like(position_ids)
    elif mode == "chunks":
        moved = _permuted(position_ids, split, gap, real)
    else:
        return position_ids
    return torch.where(real.bool(), moved, position_ids)


def _column(value: Tensor | int, like: Tensor) -> Tensor:
    found = torch.as_tensor(value, dtype=torch.long).to(like.device)
    return found[:, None] if found.ndim == 1 else found.expand(1, 1) if found.ndim == 0 else found


def _permuted(position_ids: Tensor, split: Tensor, gap: Tensor, real: Tensor) -> Tensor:
    rows = []
    for i, places in enumerate(position_ids):
        count, size = int(real[i].sum()), max(1, int(split[i % len(split), 0]))
        chunks = [list(range(start, min(start + size, count))) for start in range(0, count, size)]
        order = list(range(len(chunks)))
        random.Random(int(gap[i % len(gap), 0])).shuffle(order)
        table = torch.zeros(max(count, 1), dtype=torch.long)
        start = 0
        for number in order:
            chunk = chunks[number]
            table[chunk] = torch.arange(start, start + len(chunk))
            start += len(chunk)
        rows.append(table.to(places.device)[places.clamp(0, max(count - 1, 0))])
    return torch.stack(rows)


def standard_position_ids(attention_mask: Tensor) -> Tensor:
    """0, 1, ... from each row's first token; padding on the left has 0. (rows, length) -> (rows, length)."""
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)
