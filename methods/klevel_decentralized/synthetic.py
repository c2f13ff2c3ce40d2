"""The field's own generator: chains of strongly convex levels with a sine in each, noise in every matrix and vector.

Made up data, labelled as such; what is known about it is exact: without noise the agents' mean problem has a solution
that `hypergradient_oracle` finds to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from methods.common.checks import check_number, check_whole
from methods.klevel_decentralized.problem import KLevelProblem, Level

RIPPLE = 0.1


@dataclass(frozen=True)
class SyntheticChain:
    """A K-level problem with its data.

    Attributes:
        problem: of K levels of equal size.
        full: every agent's data without noise, one batch a level with a leading axis of agents.
        noise: standard deviation in each entry of a gradient, Hessian and cross matrix.
    """

    problem: KLevelProblem
    full: list[Any]
    noise: float

    def sample(self, agent: int, generator: torch.Generator) -> list[Any]:
        """The agent's data with fresh noise."""
        own = [{name: value[agent] for name, value in batch.items()} for batch in self.full]
        if not self.noise:
            return own
        entries = [value.numel() for batch in own for value in batch.values()]
        drawn = iter(torch.randn(sum(entries), generator=generator, dtype=torch.float64).split(entries))
        return [
            {name: value + self._scaled(name, next(drawn).view_as(value)) for name, value in batch.items()}
            for batch in own
        ]

    def _scaled(self, name: str, drawn: Tensor) -> Tensor:
        if name == "curvature":
            drawn = (drawn + drawn.mT) / 2
        # The noise of a matrix acts on a vector with the same deviation as that of a vector.
        return self.noise / drawn.shape[-1] ** 0.5 * drawn if drawn.ndim == 2 else self.noise * drawn


def _lower(previous: Tensor, current: Tensor, batch: Any) -> Tensor:
    pull = batch["cross"] @ previous + batch["shift"]
    return 0.5 * current @ batch["curvature"] @ current - current @ pull + RIPPLE * current.sin().sum()


def _upper(first: Tensor, rest: Any, batch: Any) -> Tensor:
    last = rest[-1] if rest else first
    away = last - batch["target"]
    return 0.5 * away @ away + 0.5 * batch["weight"] @ first.square() + RIPPLE * first.sin().sum()


def synthetic_chain(
    agents: int, levels: int, size: int = 10, noise: float = 0.3, heterogeneity: float = 0.3, seed: int = 0
) -> SyntheticChain:
    """K levels of a size each: curvatures between 1 and 2 in the mean, maps of norm below 1.

    Args:
        agents: that hold different data.
        levels: K, 1 or more.
        size: entries a level.
        noise: standard deviation of what a sample adds.
        heterogeneity: standard deviation of what agents differ by; their mean stays the same, and a single agent's
            level need not be convex.
        seed: of the problem, not of its samples.

    Raises:
        ConfigError: a number out of its bounds.
    """
    check_whole("agents", agents, 1)
    check_whole("levels", levels, 1)
    check_whole("size", size, 1)
    check_number("noise", noise, least=0)
    check_number("heterogeneity", heterogeneity, least=0)
    generator = torch.Generator().manual_seed(seed)

    def spread(shape: tuple[int, ...], symmetric: bool = False) -> Tensor:
        drawn = torch.randn((agents, *shape), generator=generator, dtype=torch.float64)
        drawn = (drawn + drawn.mT) / 2 if symmetric else drawn
        return heterogeneity * (drawn - drawn.mean(0))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    full: list[Any] = [{"target": normal(size) + spread((size,)), "weight": 0.3 + spread((size,))}]
    for _ in range(levels - 1):
        basis, _ = torch.linalg.qr(normal(size, size))
        curvature = (
            basis @ torch.diag(1 + torch.rand(size, generator=generator, dtype=torch.float64)) @ basis.T
        )
        cross = normal(size, size)
        cross = 0.9 * cross / torch.linalg.matrix_norm(cross, 2)
        full.append(
            {
                "curvature": curvature + spread((size, size), symmetric=True) / size**0.5,
                "cross": cross + spread((size, size)) / size**0.5,
                "shift": 0.5 * normal(size) + spread((size,)),
            }
        )
    return SyntheticChain(KLevelProblem(size, _upper, [Level(size, _lower)] * (levels - 1)), full, noise)
