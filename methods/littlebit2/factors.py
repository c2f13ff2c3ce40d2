"""A factorised weight: W_hat = sum over branches of diag(h) sgn(U) diag(l) sgn(V) diag(g), and its scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from methods.common.errors import DataError
from methods.littlebit2.bits import nominal_bits, stored_bytes
from methods.littlebit2.signs import pack_signs, sgn, unpack_signs


@dataclass
class BinaryFactors:
    """The factors of one layer, b = 1 or 2 branches (the second is the residual one).

    Attributes:
        sign_u: [b, o, r], -1 or +1. sign_v: [b, r, i].
        h: [b, o], l: [b, r], g: [b, i]: output, latent and input scales.
        latent_u, latent_v: what the signs were taken of, where training starts from; None after loading.
        trace: Joint-ITQ's objective per iteration, or ADMM's relative squared error; one list a branch.
        stats: `error` = ||W - W_hat||_F^2 / ||W||_F^2, and facts about the spectrum.
    """

    sign_u: Tensor
    sign_v: Tensor
    h: Tensor
    l: Tensor  # noqa: E741 (the paper's letter)
    g: Tensor
    latent_u: Tensor | None = None
    latent_v: Tensor | None = None
    trace: list[list[float]] = field(default_factory=list)
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def branches(self) -> int:
        return self.sign_u.shape[0]

    @property
    def rank(self) -> int:
        return self.sign_u.shape[2]

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return self.sign_u.shape[1], self.sign_v.shape[2]

    def dense(self) -> Tensor:
        """W_hat [o, i]."""
        left = self.h.unsqueeze(-1) * self.sign_u.to(self.h.dtype) * self.l.unsqueeze(1)
        return (left @ (self.sign_v.to(self.h.dtype) * self.g.unsqueeze(1))).sum(0)

    def bits(self) -> int:
        """Nominal bits, by the paper's formula."""
        return nominal_bits(*self.shape, self.rank, self.branches)

    def stored_bytes(self) -> int:
        """Bytes of `packed()`'s tensors."""
        return stored_bytes(*self.shape, self.rank, self.branches)

    def packed(self) -> dict[str, Tensor]:
        """What is stored: `weight`, all bits of U row by row, then of V, branch by branch, uint8 in one dimension;
        `h`, `l`, `g` in fp16.

        The name and the single dimension are on purpose: software that does not know this format refuses the size of
        `weight` instead of running with random numbers.
        """
        h, middle, g = balanced(self.h, self.l, self.g)
        scales = {name: as_half(name, value) for name, value in (("h", h), ("l", middle), ("g", g))}
        parts = [
            part
            for u, v in zip(self.sign_u, self.sign_v, strict=True)
            for part in (pack_signs(u).flatten(), pack_signs(v).flatten())
        ]
        return {"weight": torch.cat(parts), **scales}

    @classmethod
    def unpacked(cls, tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> BinaryFactors:
        """The inverse of `packed`.

        Raises:
            DataError: the shapes do not fit each other.
        """
        h, middle, g = (tensors[name] for name in ("h", "l", "g"))
        (branches, outputs), rank, inputs = h.shape, middle.shape[-1], g.shape[-1]
        sign_u, sign_v = split_bits(tensors["weight"], outputs, rank, inputs, branches)
        return cls(
            unpack_signs(sign_u, rank, torch.int8),
            unpack_signs(sign_v, inputs, torch.int8),
            h.to(dtype),
            middle.to(dtype),
            g.to(dtype),
        )

    def save(self, file: str | Path) -> None:
        """Write the packed factors as a safetensors file."""
        from safetensors.torch import save_file

        save_file(self.packed(), file, metadata={"format": "littlebit2"})

    @classmethod
    def load(cls, file: str | Path) -> BinaryFactors:
        """Read what `save` wrote. DataError when it is none of these files."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(file)
            return cls.unpacked(tensors)
        except (SafetensorError, KeyError, OSError) as error:
            raise DataError(f"{file}: holds no factors of this format ({error})") from error


def split_bits(bits: Tensor, outputs: int, rank: int, inputs: int, branches: int) -> tuple[Tensor, Tensor]:
    """Views of the flat bytes as U [b, o, ceil(r/8)] and V [b, r, ceil(i/8)]. DataError when the count is wrong."""
    u, v = outputs * -(-rank // 8), rank * -(-inputs // 8)
    if bits.ndim != 1 or bits.dtype != torch.uint8 or bits.numel() != branches * (u + v):
        raise DataError(
            f"packed bits {tuple(bits.shape)} {bits.dtype} do not fit {outputs}x{inputs} of rank {rank}; damaged file"
        )
    rows = bits.view(branches, u + v)
    return rows[:, :u].view(branches, outputs, -1), rows[:, u:].view(branches, rank, -1)


def balanced(h: Tensor, middle: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same product with max |h| = max |g| = 1 in each branch, so that fp16 neither over- nor underflows."""
    top_h, top_g = h.abs().amax(-1, keepdim=True), g.abs().amax(-1, keepdim=True)
    zero = (top_h == 0) | (top_g == 0)
    one = torch.ones_like(top_h)
    scale_h, scale_g = torch.where(zero, one, top_h), torch.where(zero, one, top_g)
    return h / scale_h, torch.where(zero, 0.0, middle * scale_h * scale_g), g / scale_g


def as_half(name: str, values: Tensor) -> Tensor:
    """fp16, refused when it overflows or nothing is left."""
    half = values.to(torch.float16)
    if not half.isfinite().all():
        raise DataError(f"the scale {name} exceeds half precision or is not finite; training has diverged")
    if values.any() and not half.any():
        raise DataError(
            f"the scale {name} is too small for half precision; multiply the weights by a constant"
        )
    return half


def dual_svid(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Dual-SVID: |U| ~ u1 u2^T and |V| ~ v1 v2^T, each the best rank-1 fit, its singular value split as square roots.

    Args:
        u: [o, r]. v: [r, i].

    Returns:
        u1 [o], u2 [r], v1 [r], v2 [i], none negative (Perron).
    """
    return (*_leading_pair(u.abs()), *_leading_pair(v.abs()))


def _leading_pair(matrix: Tensor) -> tuple[Tensor, Tensor]:
    work = matrix.double()
    wide = work.shape[0] < work.shape[1]
    gram = work @ work.T if wide else work.T @ work
    side = torch.linalg.eigh(gram).eigenvectors[:, -1].abs()
    other = (work.T if wide else work) @ side
    sigma = other.norm()
    if sigma > 0:
        other = other / sigma
    first, second = (side, other) if wide else (other, side)
    root = sigma.sqrt()
    return (first * root).to(matrix.dtype), (second * root).to(matrix.dtype)


def refit_scales(
    weight: Tensor, u: Tensor, v: Tensor, scales: tuple[Tensor, Tensor, Tensor], rounds: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Alternating least squares of h, l, g on fixed signs u [o, r], v [r, i]; never raises the error.

    No part of the paper: it moves the error little except on planted weights.
    """
    w, u, v = weight.double(), u.double(), v.double()
    h, middle, g = (s.double() for s in scales)
    for _ in range(rounds):
        p, q = h.unsqueeze(1) * u, v * g
        system = (p.T @ p) * (q @ q.T)
        right = (p * (w @ q.T)).sum(0)
        # The pseudo-inverse: columns of signs may coincide.
        middle = torch.linalg.pinv(system, hermitian=True) @ right
        core = (u * middle) @ (v * g)
        h = (w * core).sum(1) / core.square().sum(1).clamp(min=1e-300)
        core = (h.unsqueeze(1) * u * middle) @ v
        g = (w * core).sum(0) / core.square().sum(0).clamp(min=1e-300)
    dtype = weight.dtype
    return h.to(dtype), middle.to(dtype), g.to(dtype)


def stack(parts: list[dict[str, Any]]) -> BinaryFactors:
    """Branches -> factors. Each part has latent u [o, r], v [r, i], h, l, g, trace."""

    def every(name: str) -> Tensor:
        return torch.stack([part[name] for part in parts])

    u, v = every("u"), every("v")
    return BinaryFactors(
        sgn(u).to(torch.int8),
        sgn(v).to(torch.int8),
        every("h"),
        every("l"),
        every("g"),
        latent_u=u,
        latent_v=v,
        trace=[list(part["trace"]) for part in parts],
    )
