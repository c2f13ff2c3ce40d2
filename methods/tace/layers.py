"""Equivariant layers in either basis: linear maps, gates and norm activations, weight for weight those of e3nn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from e3nn.math import normalize2mom
from torch import Tensor, nn

from methods.common.errors import ConfigError
from methods.tace.irreps import Basis, check_features, irreps, size_of


class Linear(nn.Module):
    """Mix the channels of each irrep; scaled so that normal weights keep the variance, as e3nn's `Linear`.

    Args:
        irreps_in, irreps_out: irreps; an output without an input of its kind is zero.
        basis: of the features.

    Attributes:
        weight: (weight_numel,), the matrices (mul_in, mul_out) in the order of `instructions`, as e3nn keeps them.
    """

    def __init__(self, irreps_in: Any, irreps_out: Any, basis: Basis = "cartesian") -> None:
        super().__init__()
        self.irreps_in, self.irreps_out = irreps(irreps_in, "irreps_in"), irreps(irreps_out, "irreps_out")
        self.basis: Basis = basis
        self.instructions = [
            (i, o)
            for i, (_, ir_in) in enumerate(self.irreps_in)
            for o, (_, ir_out) in enumerate(self.irreps_out)
            if ir_in == ir_out
        ]
        self.shapes = [(self.irreps_in[i].mul, self.irreps_out[o].mul) for i, o in self.instructions]
        self.weight_numel = sum(a * b for a, b in self.shapes)
        self.weight = nn.Parameter(torch.randn(self.weight_numel))
        fans = [
            sum(self.irreps_in[i].mul for i, out in self.instructions if out == o)
            for _, o in self.instructions
        ]
        self.scales = [fan**-0.5 if fan else 0.0 for fan in fans]

    def forward(self, features: Tensor) -> Tensor:
        """(..., width in) to (..., width out). Raises DataError, TypeError: see `check_features`."""
        check_features(features, self.irreps_in, self.basis)
        lead = features.shape[:-1]
        parts = self.irreps_in.parts(self.basis)
        sums: list[Tensor | None] = [None] * len(self.irreps_out)
        place = 0
        for (i, o), (mul_in, mul_out), scale in zip(self.instructions, self.shapes, self.scales, strict=True):
            matrix = self.weight[place : place + mul_in * mul_out].reshape(mul_in, mul_out) * scale
            place += mul_in * mul_out
            size = size_of(self.irreps_in[i].ir.l, self.basis)
            value = features[..., parts[i]].unflatten(-1, (mul_in, size))
            mixed = torch.einsum("...um,uw->...wm", value, matrix).flatten(-2)
            before = sums[o]
            sums[o] = mixed if before is None else before + mixed
        return torch.cat(
            [features[..., :0]]
            + [
                features.new_zeros(*lead, mul * size_of(ir.l, self.basis)) if part is None else part
                for part, (mul, ir) in zip(sums, self.irreps_out, strict=True)
            ],
            dim=-1,
        )


class Gate(nn.Module):
    """Scalars through their activation, and tensors multiplied by activated scalars, one a tensor.

    Args:
        irreps_scalars: scalars that stay; even ones need no odd or even function.
        scalar_activation: of them; scaled so that a normal variable keeps its second moment, as e3nn does.
        irreps_gated: tensors of rank 1 and above.
        gate_activation: of the gates, even scalars, as many as there are gated tensors.
        basis: of the features.

    Raises:
        ConfigError: scalars that are none or are odd, or gated scalars.
    """

    def __init__(
        self,
        irreps_scalars: Any,
        scalar_activation: Callable[[Tensor], Tensor],
        irreps_gated: Any,
        gate_activation: Callable[[Tensor], Tensor],
        basis: Basis = "cartesian",
    ) -> None:
        super().__init__()
        self.scalars, self.gated = (
            irreps(irreps_scalars, "irreps_scalars"),
            irreps(irreps_gated, "irreps_gated"),
        )
        if any(ir.l or ir.p != 1 for _, ir in self.scalars):
            raise ConfigError(f"irreps_scalars {self.scalars}: give even scalars, 0e, only")
        if any(ir.l == 0 for _, ir in self.gated):
            raise ConfigError(f"irreps_gated {self.gated}: give tensors of rank 1 and above only")
        self.basis: Basis = basis
        self.scalar_activation = normalize2mom(scalar_activation)
        self.gate_activation = normalize2mom(gate_activation)
        self.gates = sum(mul for mul, _ in self.gated)
        gates = f"{self.gates}x0e + " if self.gates else ""
        self.irreps_in = irreps(f"{self.scalars} + {gates}{self.gated}".strip(" +"))
        self.irreps_out = irreps(f"{self.scalars} + {self.gated}".strip(" +"))

    def forward(self, features: Tensor) -> Tensor:
        """(..., width of scalars, gates and gated) to (..., width of scalars and gated)."""
        check_features(features, self.irreps_in, self.basis)
        count = self.scalars.num_irreps
        scalars, gates, tensors = features.split(
            [count, self.gates, features.shape[-1] - count - self.gates], dim=-1
        )
        found, place, factors = [self.scalar_activation(scalars)], 0, self.gate_activation(gates)
        for (mul, ir), part in zip(self.gated, self.gated.parts(self.basis), strict=True):
            value = tensors[..., part].unflatten(-1, (mul, size_of(ir.l, self.basis)))
            found.append((value * factors[..., place : place + mul, None]).flatten(-2))
            place += mul
        return torch.cat(found, dim=-1)


class NormActivation(nn.Module):
    """Every tensor multiplied by a function of its norm; the change of basis keeps norms, so both bases agree.

    Args:
        irreps_in: irreps of the features.
        activation: of the norm.
        normalize: divide by the norm, so that the result has the length that the activation says.
        bias: learn a number a tensor that is added to the norm.
        epsilon: below it a norm counts as this much, for finite gradients at 0.
        basis: of the features.
    """

    def __init__(
        self,
        irreps_in: Any,
        activation: Callable[[Tensor], Tensor],
        *,
        normalize: bool = True,
        bias: bool = False,
        epsilon: float = 1e-8,
        basis: Basis = "cartesian",
    ) -> None:
        super().__init__()
        self.irreps_in = self.irreps_out = irreps(irreps_in, "irreps_in")
        if epsilon <= 0:
            raise ConfigError(f"epsilon {epsilon}: must be above 0")
        self.activation, self.normalize, self.epsilon = activation, normalize, epsilon
        self.basis: Basis = basis
        self.biases = nn.Parameter(torch.zeros(self.irreps_in.num_irreps)) if bias else None

    def forward(self, features: Tensor) -> Tensor:
        """(..., width) to the same."""
        check_features(features, self.irreps_in, self.basis)
        found, place = [features[..., :0]], 0
        for (mul, ir), part in zip(self.irreps_in, self.irreps_in.parts(self.basis), strict=True):
            value = features[..., part].unflatten(-1, (mul, size_of(ir.l, self.basis)))
            norm = value.square().sum(-1, keepdim=True).clamp_min(self.epsilon**2).sqrt()
            shifted = norm if self.biases is None else norm + self.biases[place : place + mul, None]
            factor = self.activation(shifted)
            found.append((value * (factor / norm if self.normalize else factor)).flatten(-2))
            place += mul
        return torch.cat(found, dim=-1)
