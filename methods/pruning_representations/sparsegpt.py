"""SparseGPT: prune by optimal brain surgery, the remaining weights make up for the removed ones.

Frantar and Alistarh, ICML 2023 (https://arxiv.org/abs/2301.00774), written from the equations. For one layer with
inputs x_t, H = 2/n sum_t x_t x_t^T + lambda I. Columns are walked from left to right; removing weight w_j costs
w_j^2 / [H_j^-1]_11 (their eq. 3), H_j being H without the columns before j, and the columns after j take up the
error: w -= w_j / [H_j^-1]_11 * [H_j^-1]_1: (eq. 2). All the H_j^-1 that are needed are rows of one Cholesky factor.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError, NumericalError
from methods.common.linear_layers import LinearLayer, linear_layers
from methods.pruning_representations.calibration import prune_blocks
from methods.pruning_representations.magnitude import OnBlock, check_widths
from methods.pruning_representations.masks import Pattern, check_sparsity, keep_mask, parse_pattern

Model = TypeVar("Model", bound=nn.Module)


class InputSecondMoment:
    """Mean of 2 x x^T over the tokens seen, float32 [features, features]."""

    def __init__(self) -> None:
        self.tokens = 0
        self._sum: Tensor | None = None

    def add(self, inputs: Tensor) -> None:
        """Take inputs [tokens, features]."""
        x = inputs.float()
        self._sum = x.T @ x if self._sum is None else self._sum.addmm_(x.T, x)
        self.tokens += len(inputs)

    @property
    def value(self) -> Tensor:
        """[features, features]. NumericalError when no token was seen or a value is not finite."""
        if self._sum is None or not bool(self._sum.isfinite().all()):
            raise NumericalError(
                "calibration activations are not finite; try a wider number format (float32)"
            )
        return self._sum * (2 / self.tokens)


def inverse_factor(hessian: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """The upper Cholesky factor U of H^-1 = U^T U, and which inputs never fire.

    Row j of U, divided by its first entry, is the first row of H_j^-1 divided by its own first entry's root.

    Args:
        hessian: [features, features], positive semidefinite.
        damping: share of the mean diagonal that is added to the diagonal.

    Raises:
        NumericalError: not positive definite even so; names the remedy.
    """
    hessian = hessian.clone()
    diagonal = hessian.diagonal()
    dead = diagonal == 0
    diagonal[dead] = 1
    diagonal += damping * diagonal.mean()
    try:
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
        return torch.linalg.cholesky(inverse, upper=True), dead
    except RuntimeError as error:
        raise NumericalError(
            f"the inputs' second moment is singular at damping {damping:g}; raise damping or give more calibration text"
        ) from error


@torch.no_grad()
def prune_layer(
    weight: Tensor,
    hessian: Tensor,
    *,
    sparsity: float,
    pattern: tuple[int, int] | None = None,
    damping: float = 0.01,
    block_size: int = 128,
) -> Tensor:
    """The pruned and compensated weight [outputs, inputs], float32.

    Unstructured: round(sparsity * size) of each block of `block_size` columns go, over all rows together. n:m:
    m - n of every m consecutive inputs of a row. Masks are chosen from weights that already took up the error of
    the columns before.

    Args:
        weight: [outputs, inputs].
        hessian: [inputs, inputs], see `InputSecondMoment`.
        sparsity: share that goes; 0 returns the weight as it is.
        pattern: (n, m) or None.
        damping: see `inverse_factor`; 0 for the exact method on a positive definite H.
        block_size: columns whose mask is chosen together; with a pattern, rounded up to whole groups.
    """
    w = weight.detach().float().clone()
    if sparsity == 0:
        return w
    factor, dead = inverse_factor(hessian, damping)
    w[:, dead] = 0
    width = w.shape[1]
    if pattern is not None:
        block_size = math.ceil(block_size / pattern[1]) * pattern[1]
    for start in range(0, width, block_size):
        stop = min(start + block_size, width)
        errors = torch.zeros(len(w), stop - start)
        local = factor[start:stop, start:stop]
        scales = local.diagonal()
        if pattern is None:
            keep = keep_mask((w[:, start:stop] / scales).square(), sparsity=sparsity, compare="layer")
        else:
            keep = torch.ones(len(w), stop - start, dtype=torch.bool)
        for j in range(stop - start):
            if pattern is not None and j % pattern[1] == 0:
                group = slice(j, j + pattern[1])
                scores = (w[:, start:stop][:, group] / scales[group]).square()
                keep[:, group] = keep_mask(scores, sparsity=sparsity, pattern=pattern)
            column = w[:, start + j]
            error = torch.where(keep[:, j], 0, column) / scales[j]
            errors[:, j] = error
            w[:, start + j : stop] -= torch.outer(error, local[j, j:])
        w[:, start:stop].masked_fill_(~keep, 0)
        w[:, stop:] -= errors @ factor[start:stop, stop:]
    return w


@torch.no_grad()
def sparsegpt(
    model: Model,
    calibration: Tensor,
    *,
    sparsity: float = 0.5,
    pattern: Pattern = "unstructured",
    damping: float = 0.01,
    block_size: int = 128,
    batch_size: int = 8,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    on_block: OnBlock | None = None,
) -> Model:
    """Prune every linear layer of the blocks in place and let its remaining weights make up for it.

    Args:
        model: a causal language model of a known architecture.
        calibration: token ids [sequences, length], no padding (see `sample_sequences`).
        sparsity: share of weights that go, in [0, 1); 0 changes nothing.
        pattern: `"unstructured"`, `"n:m"` or (n, m).
        damping: share of the mean diagonal of H that is added to it, above 0.
        block_size: columns whose mask is chosen together.
        batch_size: sequences per forward pass.
        dtype: number format of the forward passes; None takes the model's own. The algebra is float32.
        device: where they run; None takes the model's own.
        on_block: progress.

    Returns:
        the same model.

    Raises:
        UnknownArchitectureError, ConfigError: before any weight is changed.
        DataError: no calibration tokens.
        NumericalError: activations with NaN or infinity, or a singular H; names the layer.
    """
    parsed = parse_pattern(pattern)
    check_sparsity(sparsity, parsed)
    if damping < 0:
        raise ConfigError(f"damping {damping}: give a share of at least 0, such as 0.01")
    if block_size < 1:
        raise ConfigError(f"block_size {block_size}: give at least 1 column")
    check_widths(list(linear_layers(model)), parsed)
    if sparsity == 0:
        return model

    def prune(layer: LinearLayer, moment: InputSecondMoment) -> None:
        try:
            new = prune_layer(
                layer.weight.cpu(),
                moment.value.cpu(),
                sparsity=sparsity,
                pattern=parsed,
                damping=damping,
                block_size=block_size,
            )
        except NumericalError as error:
            raise NumericalError(f"{layer.name}: {error}") from error
        layer.weight.copy_(new)

    prune_blocks(
        model,
        calibration,
        observe=lambda _layer: InputSecondMoment(),
        prune=prune,
        batch_size=batch_size,
        dtype=dtype,
        device=device,
        on_block=on_block,
    )
    return model
