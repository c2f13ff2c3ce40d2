"""The product with packed signs on a processor, which never holds more than one unpacked layer.

Three ways (the card has their times):

- `table`: for a single row. Of each eight inputs all 256 signed sums are made once; a byte of signs then is one look-up
  instead of eight products, and no sign is unpacked.
Else bits become int8 signs by one 64-bit look-up a byte, several times faster than making floats of them, and then:

- `integer`: activations are written as a sum of int8 numbers (three give the precision of float32, two that of the
  half formats), and torch's int8 matrix product sums exactly in int32. Fast where the processor has VNNI.
- `float`: the signs are cast, and the ordinary matrix product runs. Also the way on a GPU.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.littlebit2.signs import sign_table

Kernel = Literal["auto", "table", "integer", "float"]
_LEVELS = {torch.float32: 3, torch.bfloat16: 2, torch.float16: 2}


@functools.cache
def has_int8_products() -> bool:
    """Whether this processor multiplies int8 with one instruction (AVX512-VNNI or AMX)."""
    checks = ("_is_vnni_supported", "_is_avx512_vnni_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, check)() for check in checks if hasattr(torch.cpu, check))


def packed_product(
    x: Tensor, u: Tensor, v: Tensor, h: Tensor, middle: Tensor, g: Tensor, *, kernel: Kernel = "auto"
) -> Tensor:
    """sum over branches of h * (sgn(U) (l * (sgn(V) (g * x)))).

    Args:
        x: [..., i].
        u: bits of U [b, o, ceil(r / 8)]. v: bits of V [b, r, ceil(i / 8)].
        h: [b, o]. middle: l, [b, r]. g: [b, i]; any float type, the result has that of x.
        kernel: see above; `auto` takes the fastest for these sizes, and `integer` only when no gradient is wanted.
    """
    inputs, rank = x.shape[-1], middle.shape[-1]
    rows = x.reshape(-1, inputs)
    if x.dtype != torch.float32:  # half formats would be promoted, and float32 takes them as they are
        h, middle, g = h.to(x.dtype), middle.to(x.dtype), g.to(x.dtype)
    if kernel == "auto":
        kernel = _fastest(x, len(rows), rank)
    multiply = {"table": _table, "integer": _integer, "float": _float}[kernel]
    output: Tensor | None = None
    for b in range(len(u)):
        inner = multiply(rows * g[b], v[b], inputs) * middle[b]
        part = multiply(inner, u[b], rank) * h[b]
        output = part if output is None else output + part
    assert output is not None
    return output.view(*x.shape[:-1], u.shape[1])


def _fastest(x: Tensor, rows: int, rank: int) -> Kernel:
    """By measurement (see the card): digits cost a fixed number of small steps, which little work does not repay."""
    if x.device.type != "cpu" or x.dtype not in _LEVELS:
        return "float"
    if rows == 1:
        return "table"
    wants_gradient = torch.is_grad_enabled() and x.requires_grad
    enough = rank >= 96 and rows * rank >= 800
    return "integer" if enough and not wants_gradient and has_int8_products() else "float"


def _table(x: Tensor, packed: Tensor, count: int) -> Tensor:
    rows, groups = len(x), packed.shape[1]
    # The bits beyond `count` meet zeros.
    padded = F.pad(x.float(), (0, 8 * groups - count)) if 8 * groups != count else x.float()
    sums = (padded.reshape(-1, 8) @ sign_table(torch.float32, x.device).T).view(rows, groups, 256)
    bytes_ = packed.T.long().expand(rows, -1, -1)
    return sums.gather(2, bytes_).sum(1).to(x.dtype)


def _byte_signs(packed: Tensor, count: int) -> Tensor:
    """Bytes [n, ceil(count / 8)] -> signs [n, count], int8."""
    table = _word_table(packed.device)
    words = torch.index_select(table, 0, packed.reshape(-1).int())
    return words.view(torch.int8).view(len(packed), -1)[:, :count]


@functools.cache
def _word_table(device: torch.device) -> Tensor:
    """[256] int64: the eight int8 signs of each byte as one word."""
    return sign_table(torch.int8, device).contiguous().view(torch.int64).flatten()


def _float(x: Tensor, packed: Tensor, count: int) -> Tensor:
    return F.linear(x, _byte_signs(packed, count).to(x.dtype))


def _integer(x: Tensor, packed: Tensor, count: int) -> Tensor:
    levels = _LEVELS[x.dtype]
    rest = x.float()
    unit = rest.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    digits = []
    scale = 1.0
    rest = rest / unit
    for _ in range(levels):
        digit = rest.round()
        digits.append(digit.to(torch.int8))
        # What is left lies in [-1/2, 1/2]: the next digit counts in steps of 1/254.
        rest = (rest - digit) * 254
    sums = torch._int_mm(torch.cat(digits), _byte_signs(packed, count).T).view(levels, len(x), -1)
    total = sums[0].float()
    for level in range(1, levels):
        scale /= 254
        total = total.add_(sums[level], alpha=scale)
    return total.mul_(unit).to(x.dtype)
