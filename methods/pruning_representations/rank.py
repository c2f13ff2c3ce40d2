"""Which sublayers to drop: rankings from calibration tokens alone.

`cosine` is the rule of the layer-dropping papers (LLM-Drop), `block_influence` the same for whole blocks (ShortGPT).
`kl_estimate` is an extension of this module: the predicted KL of dropping a sublayer, from the second-order estimate
in probability space, which the paper shows to be where pruning hurts generation. After the first block the head sees
a state that it was never trained on and puts all mass on one token, so the estimate is about 0 whatever is dropped
there: by this criterion the first block comes last. No evaluation text is seen.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from numbers import Integral
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError, at_least
from methods.common.sublayers import blocks_of, is_removed, layout_of, logits_of, without_sublayer
from methods.pruning_representations.calibration import check_tokens
from methods.pruning_representations.second_order import angular, check_temperature, second_order_kl
from methods.pruning_representations.streams import Probed, check_probed, streams

Criterion = Literal["cosine", "kl_estimate", "block_influence"]


@dataclass(frozen=True)
class Ranking:
    """Layers, the most droppable first.

    Attributes:
        order: the first n layers to drop.
        scores: damage of dropping each layer, as scored before any drop: 1 - cosine, or nats of predicted KL.
        sublayer: what is dropped.
        criterion: how it was scored.
    """

    order: tuple[int, ...]
    scores: dict[int, float]
    sublayer: Probed
    criterion: Criterion


@torch.no_grad()
def rank_layers(
    model: nn.Module,
    calibration: Tensor,
    *,
    criterion: Criterion = "cosine",
    n: int | None = None,
    sublayer: Probed = "attn",
    iterative: bool = False,
    temperature: float = 1.0,
    kl_tokens: int = 64,
    batch_size: int = 8,
) -> Ranking:
    """Rank the layers of a dense model by the damage of dropping each.

    Args:
        model: a causal language model of a known architecture; left as it is.
        calibration: token ids [sequences, length], no padding, from text that nothing is evaluated on.
        criterion: `cosine`: mean over tokens of cos(state without, state with the sublayer), highest first;
            `block_influence`: the same for whole blocks; `kl_estimate`: mean predicted KL, lowest first, the first
            block last.
        n: layers to return; None returns all that can go (all but one).
        sublayer: `attn`, `mlp` or `block`.
        iterative: score again after each drop, with the layers chosen so far left out; n times the cost.
        temperature: of the predicted KL.
        kl_tokens: tokens whose logits are computed for `kl_estimate`, spread over the calibration.
        batch_size: sequences per forward pass.

    Raises:
        ConfigError: n not below the number of layers, or a criterion that does not fit the sublayer.
        DataError: no calibration tokens, or tokens that the model does not have.
    """
    if criterion not in ("cosine", "kl_estimate", "block_influence"):
        raise ConfigError(f"criterion {criterion!r}: give 'cosine', 'kl_estimate' or 'block_influence'")
    if criterion == "block_influence" and sublayer != "block":
        raise ConfigError(f"criterion 'block_influence': ranks blocks, not sublayer {sublayer!r}")
    check_probed(sublayer)
    check_temperature(temperature)
    at_least("kl_tokens", kl_tokens, 1)
    at_least("batch_size", batch_size, 1)
    layout, blocks = layout_of(model), blocks_of(model)
    check_tokens(calibration, model)
    parts: tuple[Literal["attn", "mlp"], ...] = ("attn", "mlp") if sublayer == "block" else (sublayer,)
    present = [i for i, block in enumerate(blocks) if not all(is_removed(block, layout, p) for p in parts)]
    count = len(present) - 1 if n is None else n
    if not isinstance(count, Integral) or not 0 <= count < len(present):
        raise ConfigError(
            f"n {count}: the model has {len(present)} layers with {sublayer}; give less than that"
        )

    training = model.training
    model.eval()
    try:
        gone: list[int] = []
        first: dict[int, float] = {}
        while True:
            with ExitStack() as stack:
                for layer in gone:
                    for part in parts:
                        stack.enter_context(without_sublayer(blocks[layer], layout, part))
                damage = _damage(model, calibration, criterion, sublayer, temperature, kl_tokens, batch_size)
            damage = {layer: damage[layer] for layer in present if layer not in gone}
            first = first or damage
            late = 0 if criterion == "kl_estimate" else -1
            ordered = sorted(damage, key=lambda layer: (layer == late, damage[layer], layer))
            if not iterative:
                return Ranking(tuple(ordered[:count]), first, sublayer, criterion)
            if len(gone) == count:
                return Ranking(tuple(gone), first, sublayer, criterion)
            gone.append(ordered[0])
    finally:
        model.train(training)


def _damage(
    model: nn.Module,
    calibration: Tensor,
    criterion: Criterion,
    sublayer: Probed,
    temperature: float,
    kl_tokens: int,
    batch_size: int,
) -> dict[int, float]:
    device = next(model.parameters()).device
    width = calibration.shape[1]
    spots: Tensor | None = None
    if criterion == "kl_estimate":
        # The second half of a sequence: its tokens have a context.
        allowed = np.concatenate(
            [np.arange(r * width + width // 2, (r + 1) * width) for r in range(len(calibration))]
        )
        take = np.unique(np.linspace(0, len(allowed) - 1, min(kl_tokens, len(allowed))).round().astype(int))
        spots = torch.from_numpy(allowed[take])
    sums: dict[int, float] = {}
    tokens = 0
    for start in range(0, len(calibration), batch_size):
        batch = calibration[start : start + batch_size].to(device)
        picked = None
        if spots is not None:
            picked = spots[(spots >= start * width) & (spots < (start + len(batch)) * width)] - start * width
            if not len(picked):
                continue
        found = streams(model, batch, picked)
        tokens += batch.numel() if picked is None else len(picked)
        last: tuple[Tensor, Tensor] | None = None
        for index, stream in enumerate(found):
            h, h2 = stream.pair(sublayer)
            if criterion == "kl_estimate":
                # A block's input is the last one's output: its logits are at hand.
                z2 = last[1] if last is not None and last[0] is h2 else logits_of(model, h2)
                z = logits_of(model, h)
                values = second_order_kl(z, z2, temperature)
                last = (
                    (found[index + 1].before, z) if sublayer == "block" and index + 1 < len(found) else None
                )
            else:
                values = 1 - angular(h, h2).cosine
            sums[index] = sums.get(index, 0.0) + float(values.double().sum())
    return {index: total / tokens for index, total in sums.items()}
