"""The product with packed signs on the processor, without ever holding the whole sign matrix in memory."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from methods.littlebit2.signs import unpack_signs


def packed_product(x: Tensor, u: Tensor, v: Tensor, h: Tensor, middle: Tensor, g: Tensor) -> Tensor:
    """sum over branches of h * (sgn(U) (l * (sgn(V) (g * x)))).

    Args:
        x: [..., i].
        u: bits of U [b, o, ceil(r / 8)]. v: bits of V [b, r, ceil(i / 8)].
        h: [b, o]. middle: l, [b, r]. g: [b, i], all in the type of x.
    """
    inputs, rank = x.shape[-1], middle.shape[-1]
    output: Tensor | None = None
    for b in range(len(u)):
        inner = F.linear(x * g[b], unpack_signs(v[b], inputs, x.dtype)) * middle[b]
        part = F.linear(inner, unpack_signs(u[b], rank, x.dtype)) * h[b]
        output = part if output is None else output + part
    assert output is not None
    return output
