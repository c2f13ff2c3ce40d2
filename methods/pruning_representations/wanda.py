"""Wanda: prune by weights and activations (Sun et al., ICLR 2024, https://arxiv.org/abs/2306.11695).

Score of weight W_ij: |W_ij| * ||X_j||_2 (eq. 1 there), X_j being input j over all calibration tokens. Weights
compete within their output row. Written from the equations.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from methods.common.errors import NumericalError
from methods.common.linear_layers import LinearLayer, linear_layers
from methods.pruning_representations.calibration import prune_blocks
from methods.pruning_representations.magnitude import OnBlock, check_widths
from methods.pruning_representations.masks import Compare, Pattern, check_sparsity, keep_mask, parse_pattern

Model = TypeVar("Model", bound=nn.Module)


class InputNorm:
    """Root mean square of each input over the tokens seen, in float32: ||X_j||_2 up to a factor common to all
    j."""

    def __init__(self) -> None:
        self.tokens = 0
        self._squares: Tensor | None = None

    def add(self, inputs: Tensor) -> None:
        """Take inputs [tokens, features]."""
        squares = inputs.float().square().sum(dim=0)
        self._squares = squares if self._squares is None else self._squares + squares
        self.tokens += len(inputs)

    @property
    def value(self) -> Tensor:
        """[features], float32. NumericalError when no token was seen or a value is not finite."""
        if self._squares is None or not bool(self._squares.isfinite().all()):
            raise NumericalError(
                "calibration activations are not finite; try a wider number format (float32)"
            )
        return (self._squares / self.tokens).sqrt()


def wanda_scores(weight: Tensor, norms: Tensor) -> Tensor:
    """|W_ij| * ||X_j||, float32 [outputs, inputs], from the weight [outputs, inputs] and the norms
    [inputs]."""
    return weight.float().abs() * norms.to(weight.device, torch.float32)


@torch.no_grad()
def wanda(
    model: Model,
    calibration: Tensor,
    *,
    sparsity: float = 0.5,
    pattern: Pattern = "unstructured",
    compare: Compare = "row",
    batch_size: int = 8,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    on_block: OnBlock | None = None,
) -> Model:
    """Set the weights with the lowest score to zero, block by block, in place.

    Args:
        model: a causal language model of a known architecture.
        calibration: token ids [sequences, length], no padding (see `sample_sequences`).
        sparsity: share of weights that go from each row, in [0, 1); 0 changes nothing.
        pattern: `"unstructured"`, `"n:m"` or (n, m).
        compare: which weights compete: those of one output row (the paper) or all of a layer (its ablation).
        batch_size: sequences per forward pass.
        dtype: number format of the calibration forward passes; None takes the model's own. Statistics are
            float32.
        device: where these run, a copy of one block at a time; None takes the model's own.
        on_block: progress.

    Returns:
        the same model. Same inputs give the same bits on one machine with one number of threads; elsewhere sums may
        round differently and flip weights whose scores are nearly equal.

    Raises:
        UnknownArchitectureError, ConfigError: before any weight is changed.
        DataError: no calibration tokens.
        NumericalError: activations with NaN or infinity, naming the layer.
    """
    parsed = parse_pattern(pattern)
    check_sparsity(sparsity, parsed)
    check_widths(list(linear_layers(model)), parsed)

    def prune(layer: LinearLayer, norm: InputNorm) -> None:
        try:
            scores = wanda_scores(layer.weight, norm.value)
        except NumericalError as error:
            raise NumericalError(f"{layer.name}: {error}") from error
        mask = keep_mask(scores, sparsity=sparsity, pattern=parsed, compare=compare)
        layer.weight.masked_fill_(~mask, 0)

    prune_blocks(
        model,
        calibration,
        observe=lambda _layer: InputNorm(),
        prune=prune,
        batch_size=batch_size,
        dtype=dtype,
        device=device,
        on_block=on_block,
    )
    return model
