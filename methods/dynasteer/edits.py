"""Edits of a model's activations while it generates, as hooks that are always taken off again.

Every edit works on the last position of a forward pass and on the rows that its control names; with no row it does
not touch a tensor, so that generation without a trigger is plain generation bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.common.errors import DataError
from methods.dynasteer.heads import head_layout

SIGMA_FLOOR = 1e-6
AlphaUnit = Literal["raw", "sigma"]
ClusterRule = Literal["sum", "nearest"]


class Control:
    """Which rows of the coming forward pass are edited: None for no row, or indices [rows]."""

    def __init__(self, rows: Tensor | None = None, every: bool = False) -> None:
        self.rows, self.every = rows, every

    def pick(self, batch: int, device: Any) -> Tensor | None:
        if self.every:
            return torch.arange(batch, device=device)
        return self.rows


class Edit(ABC):
    """What is added to the activations."""

    @abstractmethod
    def hooks(self, model: nn.Module, control: Control, stack: ExitStack) -> None:
        """Register the hooks; their removal goes onto the stack."""

    @contextmanager
    def attached(self, model: nn.Module, every: bool = False) -> Iterator[Control]:
        """The model with the edit, until the block ends, whatever ends it.

        With `every=True` each forward pass is edited at its last position: steering that is always on, also under
        `model.generate`.
        """
        control = Control(every=every)
        with ExitStack() as stack:
            self.hooks(model, control, stack)
            yield control


def edit_strength(projection: Tensor, mu: Tensor, sigma: Tensor, alpha: float, unit: AlphaUnit) -> Tensor:
    """eta = alpha tanh(ReLU((mu - w.z) / sigma)) (Eq. 9): 0 at or above the Truth mean, always below alpha.

    Args:
        projection: w.z.
        mu, sigma: mean and standard deviation of the Truth samples' projections; sigma is kept above 1e-6.
        alpha: largest step, in units of the activations ("raw") or of sigma ("sigma").
    """
    sigma = sigma.clamp_min(SIGMA_FLOOR)
    strength = alpha * torch.tanh(torch.relu((mu - projection) / sigma))
    return strength * sigma if unit == "sigma" else strength


@dataclass(frozen=True)
class HeadDirections:
    """Directions in chosen heads: K heads, M patterns each, head width d.

    Attributes:
        layers, heads: [K] where each head is.
        w: [K, M, d] unit directions, zero where a pattern was dropped; the state is read along them.
        mu, sigma: [K, M] of the Truth samples' projections.
        kept: [K, M] whether the pattern has a direction.
        push: [K, M, d] unit directions that the state is moved along: w, but for the random control.
    """

    layers: Tensor
    heads: Tensor
    w: Tensor
    mu: Tensor
    sigma: Tensor
    kept: Tensor
    push: Tensor

    def __len__(self) -> int:
        return len(self.layers)

    def check(self, shape: tuple[int, int, int]) -> None:
        """Raises ValueError, naming the tensor, unless all fit a model of (blocks, heads, head width)."""
        count, patterns = self.w.shape[:2] if self.w.ndim == 3 else (-1, -1)
        table, wide = (count, patterns), (count, patterns, shape[2])
        wanted = {"layers": (count,), "heads": (count,), "w": wide, "push": wide}
        for name, value in vars(self).items():
            if tuple(value.shape) != wanted.get(name, table):
                raise ValueError(f"{name} has shape {tuple(value.shape)}")
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise ValueError(f"{name} holds NaN or infinity")
        for name, size in (("layers", shape[0]), ("heads", shape[1])):
            places = getattr(self, name)
            if places.is_floating_point() or not bool(((places >= 0) & (places < size)).all()):
                raise ValueError(f"{name} names one that is not among {size}")

    def take(self, index: Tensor) -> HeadDirections:
        """A part of the heads."""
        return HeadDirections(**{name: value[index] for name, value in vars(self).items()})


@dataclass(frozen=True)
class HeadEdit(Edit):
    """z <- z + sum_m eta_m w_m in each chosen head, before the output projection (Eq. 9).

    Attributes:
        directions: the heads and their directions.
        alpha, unit: strength.
        cluster: "sum" adds every pattern; "nearest" only the one that asks for most.
        constant: add alpha in full, whatever the state (constant steering; ITI with its own directions).
    """

    directions: HeadDirections
    alpha: float
    unit: AlphaUnit = "raw"
    cluster: ClusterRule = "sum"
    constant: bool = False

    def strength(self, z: Tensor, which: Tensor | None = None) -> Tensor:
        """eta [..., K, M] of head states z [..., K, d], in float32 at least; `which` names a part of the heads."""
        d = self.directions if which is None else self.directions.take(which)
        z = z if z.dtype == torch.float64 else z.float()
        w, mu, sigma = (t.to(z.device, z.dtype) for t in (d.w, d.mu, d.sigma))
        if self.constant:
            scale = sigma.clamp_min(SIGMA_FLOOR) if self.unit == "sigma" else torch.ones_like(sigma)
            eta = (self.alpha * scale).expand(*z.shape[:-2], *scale.shape)
        else:
            projection = torch.einsum("...kd,kmd->...km", z, w)
            eta = edit_strength(projection, mu, sigma, self.alpha, self.unit)
        eta = eta * d.kept.to(z.device, z.dtype)
        if self.cluster == "nearest":
            best = eta == eta.amax(-1, keepdim=True)
            first = best & (best.cumsum(-1) == 1)
            eta = eta * first
        return eta

    def edited(self, z: Tensor, which: Tensor | None = None) -> Tensor:
        """The head states after the edit; those that are not moved stay as they were, bit for bit."""
        eta = self.strength(z, which)
        push = self.directions.push if which is None else self.directions.push[which]
        step = torch.einsum("...km,kmd->...kd", eta, push.to(eta.device, eta.dtype))
        moved = (z.to(eta.dtype) + step).to(z.dtype)
        return torch.where((eta > 0).any(-1, keepdim=True), moved, z)

    def hooks(self, model: nn.Module, control: Control, stack: ExitStack) -> None:
        layout = head_layout(model)
        layout.check(self.directions.layers, self.directions.heads, self.directions.w.shape[-1])
        for layer in sorted({int(layer) for layer in self.directions.layers}):
            which = (self.directions.layers == layer).nonzero()[:, 0]
            hook = self._hook(which, layout.n_heads, control)
            stack.callback(layout.projections[layer].register_forward_pre_hook(hook).remove)

    def _hook(self, which: Tensor, n_heads: int, control: Control) -> Any:
        places = self.directions.heads[which]

        def hook(_module: nn.Module, args: tuple[Any, ...]) -> Any:
            rows = control.pick(args[0].shape[0], args[0].device)
            if rows is None or not len(rows):
                return None
            states = args[0].clone()
            last = states[rows, -1].unflatten(-1, (n_heads, -1))
            last[:, places] = self.edited(last[:, places], which)
            states[rows, -1] = last.flatten(-2)
            return (states, *args[1:])

        return hook


@dataclass(frozen=True)
class ResidualEdit(Edit):
    """h_l <- h_l + multiplier * v_l on the residual stream after chosen blocks (CAA, control vectors).

    Attributes:
        layers: [K] blocks.
        vectors: [K, width].
        multiplier: strength, in units of the vectors.
    """

    layers: Tensor
    vectors: Tensor
    multiplier: float = 1.0

    def hooks(self, model: nn.Module, control: Control, stack: ExitStack) -> None:
        from methods.common.linear_layers import residual_blocks

        blocks = residual_blocks(model)
        for layer, vector in zip(self.layers.tolist(), self.vectors, strict=True):
            if not 0 <= layer < len(blocks):
                raise DataError(
                    f"layer {layer}: the model has {len(blocks)} blocks; fit the edit on this model"
                )
            stack.callback(blocks[layer].register_forward_hook(self._hook(vector, control)).remove)

    def _hook(self, vector: Tensor, control: Control) -> Any:
        def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
            states = output[0] if isinstance(output, tuple) else output
            rows = control.pick(states.shape[0], states.device)
            if rows is None or not len(rows):
                return None
            if vector.shape[-1] != states.shape[-1]:
                raise DataError(
                    f"vectors are {vector.shape[-1]} wide, the model {states.shape[-1]}; fit them on this model"
                )
            states = states.clone()
            states[rows, -1] += self.multiplier * vector.to(states.device, states.dtype)
            return (states, *output[1:]) if isinstance(output, tuple) else states

        return hook
