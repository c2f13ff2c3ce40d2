"""The start of the weights that write into the residual stream (section 2.2 of the method's notes).

With unit-gain norms each block multiplies the squared gradient by 1 + eps on its way down, and eps is proportional to
s^2 when the two output projections are scaled by s. The product over L blocks is bounded for every L only if
s = O(L^-1/2). It is an initialisation, not a factor of the forward pass: nothing has to be folded at inference.
"""

from __future__ import annotations

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
        num_layers: L; counted when None.

    Returns:
        how many weights were scaled.

    Raises:
        ConfigError: unknown rule, a factor that is not above 0, or a model that starts scaled already.
        DataError: no block, or a block without a known output projection.
    """
    blocks = [module for module in model.modules() if isinstance(module, NormResidualBlock)]
    factor = residual_factor(rule, num_layers if num_layers is not None else max(1, len(blocks)))
    if not blocks:
        raise DataError(f"{type(model).__name__} holds no NormResidualBlock; build its blocks with it first")
    config: Any = getattr(model, "config", None)
    started = getattr(config, "residual_init", "none")
    if started != "none":
        raise ConfigError(
            f"residual_init={started!r}: the model starts scaled already; make it with residual_init='none' to "
            "scale it here"
        )
    scaled = 0
    for place, block in enumerate(blocks):
        weights = scaled_weights(block, rule)
        if not weights:
            raise DataError(
                f"block {place} has no output projection called {', '.join(OUTPUTS)}; rename it, or scale it yourself"
            )
        for weight in weights:
            weight.mul_(factor)
        scaled += len(weights)
    if hasattr(config, "residual_init"):
        config.residual_init = rule
    return scaled
