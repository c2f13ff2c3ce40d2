"""The start of the weights that write into the residual stream (section 2.2 of the method's notes).

With unit-gain norms each block multiplies the squared gradient by 1 + eps on its way down, and eps is proportional to
s^2 when the two output projections are scaled by s. The product over L blocks is bounded for every L only if
s = O(L^-1/2). It is an initialisation, not a factor of the forward pass: nothing has to be folded at inference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from methods.common.errors import ConfigError, DataError
from methods.span_norm.block import NormResidualBlock
from methods.span_norm.schemes import residual_factor

# What attention and feed-forward modules of common libraries call the projection that writes into the stream.
OUTPUTS = (
    "o_proj",
    "out_proj",
    "down_proj",
    "c_proj",
    "to_out",
    "wo",
    "w2",
    "fc2",
    "linear2",
    "dense_4h_to_h",
)
DEEPNORM_OTHERS = ("v_proj", "gate_proj", "up_proj", "w1", "w3", "fc1", "linear1")


def scaled_weights(block: nn.Module, rule: str | float) -> list[nn.Parameter]:
    """The weights of one block that the rule scales."""
    names = (*OUTPUTS, *DEEPNORM_OTHERS) if rule == "deepnorm" else OUTPUTS
    return [
        module.weight
        for name, module in block.named_modules()
        if name.rpartition(".")[2] in names and isinstance(getattr(module, "weight", None), nn.Parameter)
    ]


@torch.no_grad()
def apply_residual_init(
    model: nn.Module, rule: str | float = "inv_sqrt_depth", num_layers: int | None = None
) -> int:
    """Multiply W_O and W_down (of every expert) of each `NormResidualBlock` by the rule's factor, in place.

    For modules of one's own. A `SpanNormForCausalLM` starts scaled by its configuration's `residual_init`; only one
    that was made with `none` is taken here, so that no factor is applied twice.

    Args:
        model: holds the blocks.
        rule: `inv_sqrt_depth` (1 / sqrt(L)), `inv_sqrt_2depth`, `inv_depth`, `deepnorm`, `none`, or a factor above 0.
        num_layers: L; None takes what the blocks were made with.

    Returns:
        how many weights were scaled.

    Raises:
        ConfigError: unknown rule, a factor that is not above 0, or blocks that start scaled already.
        DataError: no block, or a block whose attention or feed-forward module has no known output projection.
    """
    blocks = [module for module in model.modules() if isinstance(module, NormResidualBlock)]
    if not blocks:
        raise DataError(f"{type(model).__name__} holds no NormResidualBlock; build its blocks with it first")
    factor = residual_factor(rule, num_layers if num_layers is not None else blocks[0].num_layers)
    config: Any = getattr(model, "config", None)
    _refuse_started(getattr(config, "residual_init", "none"), blocks)
    weights = [scaled_weights(block, rule) for block in blocks]
    for place, block in enumerate(blocks):
        _refuse_unknown(place, block)
    for block, own in zip(blocks, weights, strict=True):
        for weight in own:
            weight.mul_(factor)
        block.residual_init = rule
    if hasattr(config, "residual_init"):
        config.residual_init = rule
    return sum(len(own) for own in weights)


def _refuse_started(configured: str | float, blocks: Sequence[NormResidualBlock]) -> None:
    """No factor is applied twice."""
    started = [rule for rule in (configured, *(block.residual_init for block in blocks)) if rule != "none"]
    if started:
        raise ConfigError(
            f"residual_init={started[0]!r}: the model starts scaled already; make it with residual_init='none' to "
            "scale it here"
        )


def _refuse_unknown(place: int, block: NormResidualBlock) -> None:
    """Half a block left at its full size would be no such start."""
    for name, branch in (("attention", block.self_attn), ("feed-forward module", block.mlp)):
        if any(True for _ in branch.parameters()) and not scaled_weights(branch, "none"):
            raise DataError(
                f"block {place}: its {name} has no output projection called {', '.join(OUTPUTS)}; rename it, or scale "
                "it yourself"
            )
