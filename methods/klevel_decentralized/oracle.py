"""The exact answer that a decentralised run is measured against: lower levels solved, adjoints solved, all data seen.

Not a part of the algorithm: it reads every agent's data at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy import optimize
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor
from torch.func import grad, hessian, vjp, vmap

from methods.common.checks import check_choice
from methods.common.errors import ConfigError, NumericalError
from methods.klevel_decentralized.problem import KLevelProblem

Solver = Literal["dense", "products"]
NEWTON_STEPS = 100
SMALL = 1e-13


@dataclass(frozen=True)
class Hypergradient:
    """F and its gradient at x_1.

    Attributes:
        value: F(x_1).
        gradient: (size of x_1) grad F.
        xs: x_1, x_2*, ..., x_K*, flat.
        zs: the adjoints z_2 .. z_K.
    """

    value: float
    gradient: Tensor
    xs: list[Tensor]
    zs: list[Tensor]


def mean_over_agents(function: Any, batch: Any) -> Any:
    """The mean over the leading axis of a batch, as a function of the remaining arguments."""

    def mean(*arguments: Tensor) -> Tensor:
        found: Tensor = vmap(lambda one: function(*arguments, one))(batch).mean(0)
        return found

    return mean


def hypergradient_oracle(
    problem: KLevelProblem, x1: Tensor, batches: Sequence[Any], solver: Solver = "dense"
) -> Hypergradient:
    """Exact hypergradient by Newton's method for each level and one linear solve for each adjoint.

    Args:
        problem: of K levels.
        x1: (size of x_1) float64.
        batches: all data of all agents, one for each level, with a leading axis of agents.
        solver: dense forms each level's Hessian (up to some thousand entries); products only multiplies by it.

    Raises:
        ConfigError: a level has no batch, or x_1 another size.
        NumericalError: a level is not strongly convex at its solution, or Newton's method does not converge.
    """
    check_choice("solver", solver, Solver)
    if len(batches) != problem.depth:
        raise ConfigError(
            f"batches: {len(batches)} for {problem.depth} levels; give one for each level, upper first"
        )
    if x1.shape != (problem.sizes[0],):
        raise ConfigError(f"x1 of shape {tuple(x1.shape)}: give ({problem.sizes[0]},)")
    xs = [x1.detach().double()]
    for k in range(2, problem.depth + 1):
        xs.append(_solve_level(problem, k, xs[-1], batches[k - 1], solver))
    upper = mean_over_agents(lambda *given: problem.upper_value(given[:-1], given[-1]), batches[0])
    grads = grad(upper, argnums=tuple(range(problem.depth)))(*xs)
    adjoint = grads[-1]
    zs: list[Tensor] = []
    for k in range(problem.depth, 1, -1):
        z, across = _adjoint(problem, k, xs[k - 2], xs[k - 1], adjoint, batches[k - 1], solver)
        zs.insert(0, z)
        adjoint = grads[k - 2] - across
    return Hypergradient(float(upper(*xs)), adjoint, xs, zs)


def _mean_lower(problem: KLevelProblem, k: int, batch: Any) -> Any:
    return mean_over_agents(lambda before, now, one: problem.lower_value(k, before, now, one), batch)


def _solve_level(problem: KLevelProblem, k: int, previous: Tensor, batch: Any, solver: Solver) -> Tensor:
    if problem.levels[k - 2].kind == "map":
        mapped: Tensor = mean_over_agents(lambda before, one: problem.map_value(k, before, one), batch)(
            previous
        )
        return mapped
    value = _mean_lower(problem, k, batch)
    current = torch.zeros(problem.sizes[k - 1], dtype=torch.float64)
    for _ in range(NEWTON_STEPS):
        slope = grad(value, argnums=1)(previous, current)
        if not torch.isfinite(slope).all():
            raise NumericalError(
                f"level {k}: the gradient of its loss is not finite; check its data and scale"
            )
        if slope.abs().max() <= SMALL * (1 + current.abs().max()):
            return current
        step = _solve(problem, k, value, previous, current, slope, solver)
        current, moved = _line_search(value, previous, current, step, slope)
        if not moved:  # rounding: no step lowers the loss any more
            return current
    raise NumericalError(
        f"level {k}: Newton's method did not converge; is its loss strongly convex in x_{k}?"
    )


def _line_search(
    value: Any, previous: Tensor, current: Tensor, step: Tensor, slope: Tensor
) -> tuple[Tensor, bool]:
    """The longest of the halved Newton steps that lowers the gradient or the loss."""
    at, norm = float(value(previous, current)), float(slope.norm())
    for halvings in range(40):
        found = current - step / 2**halvings
        if float(value(previous, found)) <= at - 1e-4 * float(step @ slope) / 2**halvings:
            return found, True
        if float(grad(value, argnums=1)(previous, found).norm()) < norm / 2:
            return found, True
    return current, False


def _solve(
    problem: KLevelProblem,
    k: int,
    value: Any,
    previous: Tensor,
    current: Tensor,
    right: Tensor,
    solver: Solver,
) -> Tensor:
    """H_k^{-1} times a vector."""
    if solver == "dense":
        matrix = hessian(value, argnums=1)(previous, current)
        factor, info = torch.linalg.cholesky_ex(matrix)
        if int(info):
            raise NumericalError(
                f"level {k}: the Hessian of its mean loss is not positive definite; raise mu of this level"
            )
        return torch.cholesky_solve(right[:, None], factor)[:, 0]
    pull = vjp(lambda now: grad(value, argnums=1)(previous, now), current)[1]
    operator = LinearOperator(
        (len(right),) * 2, matvec=lambda v: pull(torch.from_numpy(np.ascontiguousarray(v).ravel()))[0].numpy()
    )
    found, info = cg(operator, right.numpy(), rtol=1e-13, maxiter=20 * len(right) + 100)
    if info:
        raise NumericalError(f"level {k}: conjugate gradients did not converge; raise mu of this level")
    return torch.from_numpy(found)


def _adjoint(
    problem: KLevelProblem,
    k: int,
    previous: Tensor,
    current: Tensor,
    right: Tensor,
    batch: Any,
    solver: Solver,
) -> tuple[Tensor, Tensor]:
    """z_k and (d2 f_k / dx_{k-1} dx_k) z_k."""
    if problem.levels[k - 2].kind == "map":
        mapped = mean_over_agents(lambda before, one: problem.map_value(k, before, one), batch)
        pull = vjp(mapped, previous)[1]
        return right, -pull(right)[0]
    value = _mean_lower(problem, k, batch)
    z = _solve(problem, k, value, previous, current, right, solver)
    pull = vjp(lambda before: grad(value, argnums=1)(before, current), previous)[1]
    return z, pull(z)[0]


def centralised_solution(
    problem: KLevelProblem,
    batches: Sequence[Any],
    start: Tensor | None = None,
    solver: Solver = "dense",
    tolerance: float = 1e-9,
) -> Hypergradient:
    """A stationary point of F by BFGS on exact hypergradients, all data in one place.

    Raises:
        NumericalError: the gradient's norm stays above `tolerance` times 1 + |F|.
    """
    x0 = torch.zeros(problem.sizes[0], dtype=torch.float64) if start is None else start.double()

    def both(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = hypergradient_oracle(problem, torch.from_numpy(x.copy()), batches, solver)
        return at.value, at.gradient.numpy()

    found = optimize.minimize(both, x0.numpy(), jac=True, method="BFGS", options={"gtol": tolerance / 10})
    at = hypergradient_oracle(problem, torch.from_numpy(found.x), batches, solver)
    if float(at.gradient.norm()) > tolerance * (1 + abs(at.value)):
        raise NumericalError(
            f"centralised solution: gradient of {float(at.gradient.norm()):.3g} is left; {found.message}"
        )
    return at
