"""Signs: the one sgn of this method, its two surrogate gradients, and eight signs in a byte."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from methods.common.errors import DataError

Gradient = Literal["smooth_sign", "clipped"]
SMOOTHNESS = 100.0  # of SmoothSign: its gradient vanishes beyond |x| of about 0.03


def sgn(values: Tensor) -> Tensor:
    """+1 where values >= 0, else -1, in the type of `values`; `torch.sign` would make a third value, 0."""
    return torch.where(values >= 0, 1.0, -1.0).to(values.dtype)


class SmoothSign(torch.autograd.Function):
    """sgn forward; backward grad * a (1 - tanh^2(a x)), the derivative of tanh(a x), with a = 100."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return sgn(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        slope = torch.tanh(SMOOTHNESS * values).square_().neg_().add_(1).mul_(SMOOTHNESS)
        return slope.mul_(gradients[0])


class ClippedSign(torch.autograd.Function):
    """sgn forward; backward grad where |x| < 1, else 0 (the clipped straight-through estimator)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return sgn(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        return gradients[0] * (values.abs() < 1)


def binarize(values: Tensor, gradient: Gradient) -> Tensor:
    """sgn with the chosen surrogate gradient."""
    function = SmoothSign if gradient == "smooth_sign" else ClippedSign
    result: Tensor = function.apply(values)
    return result


def pack_signs(signs: Tensor) -> Tensor:
    """Signs [..., n] (anything >= 0 is +1) as bytes [..., ceil(n / 8)], uint8; bit j of byte k is sign 8 k + j.

    The rest of a last byte is 0.
    """
    bits = (signs >= 0).to(torch.uint8)
    bits = torch.nn.functional.pad(bits, (0, -bits.shape[-1] % 8))
    weights = torch.tensor([1 << j for j in range(8)], dtype=torch.uint8, device=signs.device)
    return (bits.unflatten(-1, (-1, 8)) * weights).sum(-1, dtype=torch.uint8)


def unpack_signs(packed: Tensor, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The inverse of `pack_signs`: bytes [..., ceil(count / 8)] as signs [..., count] in `dtype`.

    Raises:
        DataError: the number of bytes does not fit `count`.
    """
    if packed.shape[-1] != -(-count // 8):
        raise DataError(
            f"{packed.shape[-1]} bytes a row cannot hold {count} signs; the packed layer is damaged"
        )
    # One look-up a byte: eight times fewer steps than shifting each bit out.
    table = sign_table(dtype, packed.device)
    return table[packed.int()].flatten(-2)[..., :count]


_tables: dict[tuple[torch.dtype, str], Tensor] = {}


def sign_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    """[256, 8]: the eight signs of each byte."""
    key = (dtype, str(device))
    if key not in _tables:
        bits = torch.arange(256, device=device).unsqueeze(1) >> torch.arange(8, device=device) & 1
        _tables[key] = (2 * bits - 1).to(dtype)
    return _tables[key]
