"""A problem of K nested levels, as an agent sees it (chain structure).

    min over x_1 of  F(x_1) = mean_n E f_1^n(x_1, x_2*, ..., x_K*),
    x_k* = argmin over x_k of  mean_n E f_k^n(x_{k-1}*, x_k)      (argmin levels)
    x_k* = mean_n E m_k^n(x_{k-1}*)                               (map levels),   k = 2 .. K.

Each level's variable is one flat float64 vector; a level with a template hands its functions a dictionary of tensors.
Everything about an agent, its data and its noise, comes in the batch: functions stay the same for all agents, so that
they can be evaluated for all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.func import grad, vjp

from methods.common.checks import check_number
from methods.common.errors import ConfigError

Kind = Literal["argmin", "map"]
Batch = Any


@dataclass(frozen=True)
class Level:
    """One lower level.

    Attributes:
        loss: of an argmin level, (x_{k-1}, x_k, batch) -> scalar; its mean over agents is strongly convex in x_k.
        map: of a map level, (x_{k-1}, batch) -> x_k. Give exactly one of the two.
        shape: number of entries, or a dictionary of example tensors that the functions receive instead.
        mu: adds mu / 2 |x_k|^2 to an argmin level's loss.
    """

    shape: int | Mapping[str, Tensor]
    loss: Callable[[Any, Any, Batch], Tensor] | None = None
    map: Callable[[Any, Batch], Any] | None = None
    mu: float = 0.0

    def __post_init__(self) -> None:
        if (self.loss is None) == (self.map is None):
            raise ConfigError("level: give either loss (argmin) or map, not both and not neither")
        check_number("mu", self.mu, least=0)
        if self.map is not None and self.mu:
            raise ConfigError(
                f"mu {self.mu!r}: a map level has no loss that it could be added to; leave it at 0"
            )
        size_of(self.shape)

    @property
    def kind(self) -> Kind:
        """argmin or map."""
        return "argmin" if self.map is None else "map"


def size_of(shape: int | Mapping[str, Tensor]) -> int:
    """Entries of a level's variable. Raises ConfigError for an empty one."""
    if isinstance(shape, bool) or not isinstance(shape, int | Mapping):
        raise ConfigError(f"shape {shape!r}: give a number of entries or a dictionary of example tensors")
    entries = shape if isinstance(shape, int) else sum(math.prod(one.shape) for one in shape.values())
    if entries < 1:
        raise ConfigError(f"shape {shape!r}: a level has at least one entry")
    return entries


def unflatten(flat: Tensor, shape: int | Mapping[str, Tensor]) -> Any:
    """A flat vector as its level's functions see it."""
    if isinstance(shape, int):
        return flat
    sizes = [math.prod(one.shape) for one in shape.values()]
    parts = flat.split(sizes)
    return {name: part.reshape(one.shape) for part, (name, one) in zip(parts, shape.items(), strict=True)}


def flatten(value: Any, shape: int | Mapping[str, Tensor]) -> Tensor:
    """The opposite of `unflatten`."""
    if isinstance(shape, int):
        flat: Tensor = value.reshape(-1)
        return flat
    return torch.cat([value[name].reshape(-1) for name in shape])


class KLevelProblem:
    """K nested levels: `first` and `upper` are level 1, `levels` are levels 2 .. K.

    Args:
        first: entries of x_1, or a dictionary of example tensors.
        upper: f_1: (x_1, [x_2, ..., x_K], batch) -> scalar. With no further level: (x_1, [], batch).
        levels: from level 2 to level K, each conditioned on the one before it.
        structure: chain; the only one so far.

    Raises:
        ConfigError: a level without entries, or another structure.
    """

    def __init__(
        self,
        first: int | Mapping[str, Tensor],
        upper: Callable[[Any, Sequence[Any], Batch], Tensor],
        levels: Sequence[Level] = (),
        structure: Literal["chain"] = "chain",
    ) -> None:
        if structure not in get_args(Literal["chain"]):
            raise ConfigError(f"structure {structure!r}: chain is the one there is")
        self.upper = upper
        self.levels = tuple(levels)
        self.shapes = (first, *(level.shape for level in self.levels))
        self.sizes = tuple(size_of(shape) for shape in self.shapes)
        # x_1 .. x_K, then the adjoints z_2 .. z_K.
        self.blocks = (*self.sizes, *self.sizes[1:])

    @property
    def depth(self) -> int:
        """K."""
        return len(self.sizes)

    @property
    def total(self) -> int:
        """Entries of all 2K - 1 blocks."""
        return sum(self.blocks)

    def split(self, state: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """A state `[total]` as x_1 .. x_K and z_2 .. z_K, flat."""
        parts = list(state.split(self.blocks))
        return parts[: self.depth], parts[self.depth :]

    def upper_value(self, xs: Sequence[Tensor], batch: Batch) -> Tensor:
        """f_1 of flat variables."""
        first, *rest = (unflatten(x, shape) for x, shape in zip(xs, self.shapes, strict=True))
        return self.upper(first, rest, batch)

    def lower_value(self, k: int, previous: Tensor, current: Tensor, batch: Batch) -> Tensor:
        """f_k of flat variables, k = 2 .. K; a map level in its argmin form 1/2 |x_k - m_k|^2."""
        level = self.levels[k - 2]
        if level.loss is None:
            return 0.5 * (current - self.map_value(k, previous, batch)).square().sum()
        value = level.loss(
            unflatten(previous, self.shapes[k - 2]), unflatten(current, self.shapes[k - 1]), batch
        )
        return value + 0.5 * level.mu * current.square().sum() if level.mu else value

    def map_value(self, k: int, previous: Tensor, batch: Batch) -> Tensor:
        """m_k of a flat variable, for a map level k."""
        level = self.levels[k - 2]
        assert level.map is not None
        return flatten(level.map(unflatten(previous, self.shapes[k - 2]), batch), level.shape)

    def directions(self, state: Tensor, batches: Sequence[Batch]) -> Tensor:
        """Raw directions D of all blocks at one agent's state; K gradients and one product with each level's matrices.

        Args:
            state: `[total]` x_1 .. x_K, z_2 .. z_K.
            batches: one for each level, the upper one first.

        Returns:
            `[total]`: D[x_1] = p_1, D[x_k] = grad f_k, D[z_k] = H_k z_k - p_k.
        """
        xs, zs = self.split(state)
        upper_grads = grad(
            lambda *flat: self.upper_value(flat, batches[0]), argnums=tuple(range(self.depth))
        )(*xs)
        x_parts, z_parts = [torch.empty(0)] * self.depth, [torch.empty(0)] * (self.depth - 1)
        adjoint = upper_grads[-1]
        for k in range(self.depth, 1, -1):
            slope, towards_previous, towards_current = self._products(
                k, xs[k - 2], xs[k - 1], zs[k - 2], batches[k - 1]
            )
            x_parts[k - 1] = slope
            z_parts[k - 2] = towards_current - adjoint
            adjoint = upper_grads[k - 2] - towards_previous
        x_parts[0] = adjoint
        return torch.cat([*x_parts, *z_parts])

    def _products(
        self, k: int, previous: Tensor, current: Tensor, z: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """grad_k f_k, (d2 f_k / dx_{k-1} dx_k) z and H_k z, by one reverse pass over the gradient."""
        if self.levels[k - 2].kind == "map":
            value, pull = vjp(lambda flat: self.map_value(k, flat, batch), previous)[:2]
            return current - value, -pull(z)[0], z
        slope, pull = vjp(
            lambda before, now: grad(self.lower_value, argnums=2)(k, before, now, batch), previous, current
        )[:2]
        towards_previous, towards_current = pull(z)
        return slope, towards_previous, towards_current
