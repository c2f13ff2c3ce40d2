"""What a factorisation is compared with, each on one weight: its reconstruction and the bits that it really stores."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.littlebit2.config import LittleBitConfig
from methods.littlebit2.factors import dual_svid
from methods.littlebit2.model import target_layers
from methods.littlebit2.signs import Gradient, binarize, sgn
from methods.littlebit2.spectrum import Svd

_SHRINK_POWER, _BETA, _KAPPA, _ROUNDS = 0.7, 10.0, 1.01, 30  # HQQ's own defaults, with a few rounds more


class OneBitLinear(nn.Module):
    """OneBit's layer for distillation: y = rows * (sgn(W) (columns * x)) + bias, W latent.

    Args:
        weight: [o, i], what the signs are taken of.
        bias: [o] or None.
    """

    gradient: Gradient = "smooth_sign"
    trains_signs = True

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        rows, columns, _, _ = dual_svid(weight.float(), weight.float())
        self.latent = nn.Parameter(weight.detach().float().clone())
        self.rows, self.columns = nn.Parameter(rows), nn.Parameter(columns)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., i] -> [..., o]."""
        signs = binarize(self.latent, self.gradient).to(inputs.dtype)
        output = F.linear(inputs * self.columns, signs) * self.rows
        return output if self.bias is None else output + self.bias


def replace_by_one_bit(model: nn.Module) -> float:
    """Replace the layers that `compress_model` would take, in place. Returns the stored bits per weight."""
    bits = weights = 0
    for target in target_layers(model, LittleBitConfig()):
        outputs, inputs = target.weight.shape
        bias = getattr(target.module, "bias", None)
        model.set_submodule(target.name, OneBitLinear(target.weight, bias))
        bits += outputs * inputs + 16 * (outputs + inputs)
        weights += outputs * inputs
    return bits / weights


class Reconstruction(NamedTuple):
    """W_hat [o, i] and the bits of its storage (codes, scales, zero points)."""

    weight: Tensor
    bits: int


def relative_error(weight: Tensor, reconstruction: Tensor) -> float:
    """||W - W_hat||_F^2 / ||W||_F^2."""
    energy = float(weight.double().square().sum())
    return float((weight - reconstruction).double().square().sum()) / energy if energy > 0 else 0.0


def low_rank_error(svd: Svd, rank: int) -> float:
    """Relative squared error of the best product of that rank; rounding its factors to fp16 is neglected."""
    return 1 - min(1.0, float(svd.s[:rank].double().square().sum()) / svd.energy)


def one_bit(weight: Tensor) -> Reconstruction:
    """OneBit (Xu et al., arXiv 2402.11295): sgn(W) times the best rank-1 fit of |W|; fp16 scales."""
    rows, columns, _, _ = dual_svid(weight, weight)
    outputs, inputs = weight.shape
    return Reconstruction(
        sgn(weight) * torch.outer(rows, columns), outputs * inputs + 16 * (outputs + inputs)
    )


def half_quadratic(weight: Tensor, bits: int, group: int = 64, optimise: bool = True) -> Reconstruction:
    """HQQ (Badri and Shaji, 2023): min-max scales, zero points by half-quadratic splitting of an l_0.7 norm.

    Args:
        weight: [o, i]; i is a multiple of `group`.
        bits: of a code.
        group: weights that share a scale and a zero point (fp16 each).
        optimise: False is plain round-to-nearest.
    """
    rows = weight.reshape(-1, group)
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    top = 2**bits - 1
    scale = top / (high - low).clamp(min=1e-10)
    zero = -low * scale
    best_zero, best = zero, float("inf")
    beta = _BETA
    for _ in range(_ROUNDS if optimise else 0):
        codes = (rows * scale + zero).round().clamp(0, top)
        found = (codes - zero) / scale
        error = float((rows - found).abs().mean())
        if error >= best:
            break
        best, best_zero = error, zero
        rest = rows - found
        size = rest.abs()
        shrunk = sgn(rest) * (size - size.clamp(min=1e-8).pow(_SHRINK_POWER - 1) / beta).clamp(min=0)
        zero = (codes - (rows - shrunk) * scale).mean(1, keepdim=True)
        beta *= _KAPPA
    zero = best_zero.half().to(rows.dtype)
    # The scale is stored as its inverse, in half precision.
    step = (1 / scale).half().to(rows.dtype).clamp(min=1e-7)
    codes = (rows / step + zero).round().clamp(0, top)
    found = ((codes - zero) * step).reshape(weight.shape)
    return Reconstruction(found, weight.numel() * bits + 2 * 16 * len(rows))
