"""PoSE, the baseline that trains on skipped positions without a second view (dwzhu-pku/PoSE, MIT licence).

Two readings: the repository's, `pose_rows` here, cuts two chunks from different places of a longer text; the
paper's comparison, "cross-entropy on the perturbed view", is `RopePSDLoss(clm_view="perturbed", kl_weight=0)`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from methods.common.errors import ConfigError
from methods.rope_psd.views import SHORTEST


def pose_rows(tokens: Tensor, length: int, target: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One training row from a longer text.

    The first chunk has 1 .. length / 2 tokens from the text's start and the indices from 0; the second takes the rest
    from a random later place, and its indices are moved by a random offset up to `target - length`.

    Args:
        tokens: (n,) a text of at least `length` tokens.
        length: tokens of the row.
        target: the context that the model is adapted to; the largest index is below it.
        generator: of the processor.

    Returns:
        ids, position_ids: (length,) each.

    Raises:
        ConfigError: the text is shorter than the row, the row than four tokens, or the target than the row.
    """
    if len(tokens) < length or length < SHORTEST:
        raise ConfigError(f"length={length}: give {SHORTEST} to {len(tokens)}, the tokens of the text")
    if target < length:
        raise ConfigError(f"target={target}: give at least length={length}")

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    first = draw(1, length // 2)
    end = draw(length, len(tokens))
    ids = torch.cat((tokens[:first], tokens[end - (length - first) : end]))
    places = torch.arange(length)
    places[first:] += draw(0, target - length)
    return ids, places
