"""Magnitude pruning: the smallest weights of each layer go. No data needed; the baseline of every pruning
paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from methods.common.errors import ConfigError
from methods.common.linear_layers import LinearLayer, linear_layers, residual_blocks
from methods.pruning_representations.masks import Compare, Pattern, check_sparsity, keep_mask, parse_pattern

Model = TypeVar("Model", bound=nn.Module)
# Called after each block with the number of finished blocks and of all blocks.
OnBlock = Callable[[int, int], None]


@torch.no_grad()
def magnitude(
    model: Model,
    *,
    sparsity: float = 0.5,
    pattern: Pattern = "unstructured",
    compare: Compare = "layer",
    on_block: OnBlock | None = None,
) -> Model:
    """Set the weights with the smallest |W| to zero, in place; embeddings, norms and head are not touched.

    Args:
        model: a causal language model of a known architecture.
        sparsity: share of each layer's weights that go, in [0, 1); 0 changes nothing.
        pattern: `"unstructured"`, `"n:m"` or (n, m).
        compare: which weights compete: all of a layer (as torch.nn.utils.prune does) or those of one output
            row.
        on_block: progress.

    Returns:
        the same model.

    Raises:
        UnknownArchitectureError, ConfigError, NumericalError: see `linear_layers` and `keep_mask`.
    """
    parsed = parse_pattern(pattern)
    check_sparsity(sparsity, parsed)
    check_widths(list(linear_layers(model)), parsed)
    count = len(residual_blocks(model))
    for block in range(count):
        for layer in linear_layers(model, block):
            weight = layer.weight
            mask = keep_mask(weight.abs(), sparsity=sparsity, pattern=parsed, compare=compare)
            weight.masked_fill_(~mask, 0)
        if on_block:
            on_block(block + 1, count)
    return model


def check_widths(layers: list[LinearLayer], pattern: tuple[int, int] | None) -> None:
    """Refuse a pattern that does not fit, before any weight is changed.

    Raises:
        ConfigError: naming the layer and its number of inputs.
    """
    for layer in layers:
        width = layer.weight.shape[1]
        if pattern is not None and width % pattern[1]:
            raise ConfigError(
                f"pattern {pattern[0]}:{pattern[1]}: the {width} inputs of {layer.name} are no multiple of "
                f"{pattern[1]}; use 'unstructured'"
            )
