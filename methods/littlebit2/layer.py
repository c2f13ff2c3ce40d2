"""The layer: y = sum over branches of h * (sgn(U) (l * (sgn(V) (g * x)))) + bias, trainable or packed.

Training keeps latent U and V in float32 and takes their signs with a surrogate gradient; the packed form keeps bits.
"""

from __future__ import annotations

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.common.checks import check_choice, check_whole
from methods.common.errors import ConfigError, DataError
from methods.common.linear_layers import is_linear, oriented_weight
from methods.littlebit2.config import LittleBitConfig
from methods.littlebit2.factorize import factorize
from methods.littlebit2.factors import BinaryFactors, dual_svid, split_bits
from methods.littlebit2.kernels import packed_product
from methods.littlebit2.signs import Gradient, binarize, sgn

LATENT = ("latent_u", "latent_v", "h", "l", "g")
PACKED = ("weight", "h", "l", "g")


class LittleBitLinear(nn.Module):
    """A linear layer of binary factors.

    Args:
        in_features, out_features: as `nn.Linear`.
        rank: inner rank.
        branches: 2 with a residual branch.
        bias: whether it has one.
        packed: hold bits (uint8, for inference) instead of latent U and V (float32, for training).
        gradient: surrogate gradient of sgn.
        dtype: of the bias, and of the scales of a packed layer when it is not None (else fp16).

    Raises:
        ConfigError: a size below 1, or no such gradient.
    """

    weight: Tensor
    latent_u: Tensor
    latent_v: Tensor
    h: Tensor
    l: Tensor  # noqa: E741
    g: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int,
        *,
        branches: int = 1,
        bias: bool = False,
        packed: bool = True,
        gradient: Gradient = "smooth_sign",
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        sizes = {"in_features": in_features, "out_features": out_features, "rank": rank, "branches": branches}
        for field, size in sizes.items():
            check_whole(field, size, 1)
        check_choice("gradient", gradient, Gradient)
        self.in_features, self.out_features = in_features, out_features
        self.rank, self.branches, self.gradient = rank, branches, gradient
        self.conv1d = False  # whether it stands for a Conv1D, whose weight is transposed
        if packed:
            count = branches * (out_features * -(-rank // 8) + rank * -(-in_features // 8))
            scales = dtype or torch.float16
            self.register_buffer("weight", torch.zeros(count, dtype=torch.uint8))
            for name, size in (("h", out_features), ("l", rank), ("g", in_features)):
                self.register_buffer(name, torch.zeros(branches, size, dtype=scales))
        else:
            for name, shape in (
                ("latent_u", (out_features, rank)),
                ("latent_v", (rank, in_features)),
                ("h", (out_features,)),
                ("l", (rank,)),
                ("g", (in_features,)),
            ):
                setattr(self, name, nn.Parameter(torch.zeros(branches, *shape)))
        self.bias = nn.Parameter(torch.zeros(out_features, dtype=dtype)) if bias else None

    @property
    def is_packed(self) -> bool:
        return "weight" in self._buffers

    @property
    def trains_signs(self) -> bool:
        """Whether distillation has latents of signs to train here."""
        return not self.is_packed

    @classmethod
    def from_factors(
        cls, factors: BinaryFactors, bias: Tensor | None = None, *, gradient: Gradient = "smooth_sign"
    ) -> Self:
        """A trainable layer with these factors; without latents it starts from the signs themselves."""
        outputs, inputs = factors.shape
        layer = cls(
            inputs,
            outputs,
            factors.rank,
            branches=factors.branches,
            bias=bias is not None,
            packed=False,
            gradient=gradient,
            dtype=None if bias is None else bias.dtype,
        )
        u = factors.sign_u if factors.latent_u is None else factors.latent_u
        v = factors.sign_v if factors.latent_v is None else factors.latent_v
        with torch.no_grad():
            for name, value in zip(LATENT, (u, v, factors.h, factors.l, factors.g), strict=True):
                getattr(layer, name).copy_(value)
            if bias is not None and layer.bias is not None:
                layer.bias.copy_(bias)
        return layer

    @classmethod
    def from_linear(cls, linear: nn.Module, config: LittleBitConfig | None = None, *, name: str = "") -> Self:
        """Factorise an `nn.Linear` or GPT-2's Conv1D. ConfigError for another module; else as `factorize`."""
        if not is_linear(linear):
            raise ConfigError(f"{type(linear).__name__} is no dense linear layer; give nn.Linear or Conv1D")
        factors = factorize(oriented_weight(linear), config=config or LittleBitConfig(), name=name)
        bias = linear.bias
        layer = cls.from_factors(factors, bias.detach() if isinstance(bias, Tensor) else None)
        layer.conv1d = type(linear).__name__ == "Conv1D"
        return layer

    def factors(self) -> BinaryFactors:
        """Its factors, detached."""
        if self.is_packed:
            return BinaryFactors.unpacked({name: getattr(self, name) for name in PACKED})
        u, v, h, middle, g = (getattr(self, name).detach() for name in LATENT)
        return BinaryFactors(
            sgn(u).to(torch.int8), sgn(v).to(torch.int8), h, middle, g, latent_u=u, latent_v=v
        )

    def reconstruct(self) -> Tensor:
        """The dense weight [out, in] that the layer stands for, float32."""
        return self.factors().dense().float()

    def packed_tensors(self) -> dict[str, Tensor]:
        """What is stored of it, bias apart. DataError when a scale exceeds half precision."""
        if self.is_packed:
            half = {name: getattr(self, name).to(torch.float16) for name in ("h", "l", "g")}
            return {"weight": self.weight.contiguous(), **half}
        return self.factors().packed()

    def pack(self) -> Self:
        """Keep the bits, drop the latents: for inference, in place. Scales become fp16."""
        if not self.is_packed:
            tensors = self.packed_tensors()
            for name in LATENT:
                delattr(self, name)
            for name, value in tensors.items():
                self.register_buffer(name, value)
        return self

    @torch.no_grad()
    def rescale_latents(self) -> Self:
        """Divide U by u1 u2^T and V by v1 v2^T of their Dual-SVID: unit magnitudes, the signs stay.

        SmoothSign's gradient vanishes beyond |x| of about 0.03, so the latents' size decides how many signs can move.
        """
        if self.is_packed:
            raise ConfigError("the layer is packed and has no latents; rescale before packing")
        for u, v in zip(self.latent_u, self.latent_v, strict=True):
            u1, u2, v1, v2 = dual_svid(u, v)
            u.div_(torch.outer(u1, u2).clamp(min=1e-12))
            v.div_(torch.outer(v1, v2).clamp(min=1e-12))
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in] -> [..., out] in the type of `inputs`. DataError when that is no floating-point type."""
        dtype = inputs.dtype
        if not dtype.is_floating_point:  # scales cast to it would all become 0
            raise DataError(f"inputs of {dtype}: give floating-point numbers")
        if self.is_packed:
            bits = split_bits(self.weight, self.out_features, self.rank, self.in_features, self.branches)
            output = packed_product(inputs, *bits, self.h, self.l, self.g)
        else:
            h, middle, g = (getattr(self, name).to(dtype) for name in ("h", "l", "g"))
            u, v = binarize(self.latent_u, self.gradient).to(dtype), binarize(self.latent_v, self.gradient)
            parts = [
                F.linear(F.linear(inputs * g[b], v[b].to(dtype)) * middle[b], u[b]) * h[b]
                for b in range(self.branches)
            ]
            output = parts[0] if self.branches == 1 else torch.stack(parts).sum(0)
        return output if self.bias is None else output + self.bias.to(dtype)

    def extra_repr(self) -> str:
        state = "packed" if self.is_packed else "trainable"
        return f"{self.in_features}, {self.out_features}, rank={self.rank}, branches={self.branches}, {state}"

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Latents and scales stay float32 when a model is cast to half precision: small updates would be lost."""
        kept = {
            name: getattr(self, name).data
            for name in LATENT
            if isinstance(getattr(self, name, None), nn.Parameter)
        }
        super()._apply(fn, recurse)
        for name, before in kept.items():
            now = getattr(self, name)
            if now.dtype != before.dtype and before.device.type != "meta":
                now.data = before.to(now.device)
        return self
