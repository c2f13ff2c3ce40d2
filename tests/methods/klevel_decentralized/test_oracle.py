"""Hypergradients against central differences, against dense matrices written out, and against autograd."""

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

from methods.common.errors import ConfigError, NumericalError
from methods.klevel_decentralized import (
    KLevelProblem,
    Level,
    centralised_solution,
    hypergradient_oracle,
    synthetic_chain,
)


def start(size: int, seed: int = 5) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("levels", [1, 2, 4, 5])
def test_the_gradient_is_the_slope_of_the_value(levels: int) -> None:
    chain = synthetic_chain(2, levels, size=2, heterogeneity=0.8)
    x = start(2)
    found = hypergradient_oracle(chain.problem, x, chain.full)
    for place in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[place] = 1e-5
        up, down = (
            hypergradient_oracle(chain.problem, x + sign * step, chain.full).value for sign in (1, -1)
        )
        assert float(found.gradient[place]) == pytest.approx((up - down) / 2e-5, abs=1e-8)


@pytest.mark.parametrize("levels", [2, 3, 5])
def test_products_alone_give_what_matrices_give(levels: int) -> None:
    """An independent oracle: dense second derivatives by torch.autograd, agents averaged one by one."""
    chain = synthetic_chain(3, levels, size=3, heterogeneity=0.8)
    problem, x = chain.problem, start(3)
    found = hypergradient_oracle(problem, x, chain.full, "products")

    def mean(k: int, before: Tensor, now: Tensor) -> Tensor:
        agents = [{name: value[n] for name, value in chain.full[k - 1].items()} for n in range(3)]
        return torch.stack([problem.lower_value(k, before, now, agent) for agent in agents]).mean()

    def upper(*xs: Tensor) -> Tensor:
        agents = [{name: value[n] for name, value in chain.full[0].items()} for n in range(3)]
        return torch.stack([problem.upper_value(xs, agent) for agent in agents]).mean()

    slopes = jacobian(upper, tuple(found.xs))
    response = torch.eye(3, dtype=torch.float64)
    for k in range(2, levels + 1):
        blocks = hessian(lambda before, now, k=k: mean(k, before, now), (found.xs[k - 2], found.xs[k - 1]))
        response = -torch.linalg.solve(blocks[1][1], blocks[1][0]) @ response
    expected = slopes[0] + slopes[-1] @ response
    torch.testing.assert_close(found.gradient, expected, atol=1e-10, rtol=0)


def map_chain(kind: str) -> KLevelProblem:
    def step(x: Tensor, batch: Tensor) -> Tensor:
        return torch.tanh(batch * x) + 0.1 * x

    def as_argmin(before: Tensor, now: Tensor, batch: Tensor) -> Tensor:
        return 0.5 * (now - step(before, batch)).square().sum()

    level = Level(3, map=step) if kind == "map" else Level(3, loss=as_argmin)
    return KLevelProblem(3, lambda x1, xs, batch: (xs[-1] - batch).square().sum(), [level, level])


def test_map_levels_are_the_gradient_of_the_composition() -> None:
    batches = [
        torch.randn(4, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in range(3)
    ]
    x = start(3).requires_grad_()

    def composed(x: Tensor) -> Tensor:
        for batch in batches[1:]:
            x = torch.stack([torch.tanh(one * x) + 0.1 * x for one in batch]).mean(0)
        return torch.stack([(x - one).square().sum() for one in batches[0]]).mean()

    (expected,) = torch.autograd.grad(composed(x), x)
    for kind in ("map", "argmin"):
        found = hypergradient_oracle(map_chain(kind), x.detach(), batches)
        torch.testing.assert_close(found.gradient, expected, atol=1e-10, rtol=0)


def test_directions_vanish_at_the_solution_and_only_there() -> None:
    chain = synthetic_chain(1, 3, size=2, noise=0.0)
    best = centralised_solution(chain.problem, chain.full)
    batches = chain.sample(0, torch.Generator())
    state = torch.cat([*best.xs, *best.zs])
    assert chain.problem.directions(state, batches).abs().max() < 1e-8
    for place in range(len(state)):
        moved = state.clone()
        moved[place] += 0.01
        assert chain.problem.directions(moved, batches).abs().max() > 1e-4


def test_a_template_is_a_flat_vector_by_other_names() -> None:
    def flat_loss(before: Tensor, now: Tensor, batch: Tensor) -> Tensor:
        return 0.5 * now @ now - (batch * now) @ before

    def named_loss(before: dict[str, Tensor], now: dict[str, Tensor], batch: Tensor) -> Tensor:
        one, other = (torch.cat([part["a"].flatten(), part["b"]]) for part in (before, now))
        return flat_loss(one, other, batch)

    shape = {"a": torch.zeros(2, 2), "b": torch.zeros(1)}
    upper = Level(5, flat_loss, mu=0.5), Level(shape, named_loss, mu=0.5)
    flat = KLevelProblem(5, lambda x1, xs, batch: (xs[-1] - batch).square().sum(), [upper[0]])
    named = KLevelProblem(
        shape,
        lambda x1, xs, batch: (
            (xs[-1]["a"].flatten() - batch[:4]).square().sum() + (xs[-1]["b"] - batch[4:]).square().sum()
        ),
        [upper[1]],
    )
    state, batches = start(15), [start(5, 1), start(5, 2)]
    torch.testing.assert_close(
        named.directions(state, batches), flat.directions(state, batches), atol=0, rtol=0
    )


def test_mistakes_are_told() -> None:
    chain = synthetic_chain(2, 2, size=3)
    with pytest.raises(ConfigError, match="batches: 1 for 2 levels"):
        hypergradient_oracle(chain.problem, start(3), chain.full[:1])
    with pytest.raises(ConfigError, match=r"x1 of shape \(4,\)"):
        hypergradient_oracle(chain.problem, start(4), chain.full)
    with pytest.raises(ConfigError, match="either loss"):
        Level(3)
    with pytest.raises(ConfigError, match=r"mu 1\.0: a map level"):
        Level(3, map=lambda before, batch: before, mu=1.0)
    with pytest.raises(ConfigError, match="at least one entry"):
        Level(0, lambda before, now, batch: now.sum())
    with pytest.raises(ConfigError, match="structure 'tree'"):
        KLevelProblem(3, lambda x1, xs, batch: x1.sum(), structure="tree")  # type: ignore[arg-type]
    bent = KLevelProblem(
        2,
        lambda x1, xs, batch: xs[0].sum(),
        [
            Level(
                2, lambda before, now, batch: (now - before - 1).square().prod() + now.square().sum() * batch
            )
        ],
    )
    data = [torch.zeros(2, 1, dtype=torch.float64), torch.full((2, 1), -1.0, dtype=torch.float64)]
    with pytest.raises(NumericalError, match="level 2"):
        hypergradient_oracle(bent, start(2), [data[0][:, 0], data[1][:, 0]])
