"""The iteratively re-weighted (IRW) loop: linearise the convex part, solve a doubly bounded transport problem, repeat.

    max_F  J(F) = q(F) + eps H(F),   F 1 = 1,  l <= F^T 1 <= u,   q(F) = tr(F^T W F)  (`sum`)
                                                            or q(F) = m / c sum_k f_k^T W f_k / (1^T f_k)  (`ratio`)

Both q are convex for a positive semi-definite W, so their tangent at F_t lies below them; with the entropy kept exact,
the maximum of tangent plus entropy cannot be below J(F_t). J is bounded, so it converges, to a stationary point: the
problem is NP-hard, and no global optimum is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from methods.common.errors import ConfigError
from methods.sc_fagc.transport import Solver, TransportInfo, double_bounded_sinkhorn

Objective = Literal["sum", "ratio"]
TINY = 1e-12  # mass of a column below which its ratio has no gradient


@dataclass(frozen=True)
class Weighted:
    """What the loop ended with.

    Attributes:
        membership: F, `[m, c]`, in the array library of W; rows sum to 1.
        path: J after each outer step, the start's first.
        solves: how each transport problem ended.
        converged: whether J stopped changing, and every transport problem converged.
    """

    membership: Any
    path: tuple[float, ...]
    solves: tuple[TransportInfo, ...]
    converged: bool


def reweighted(
    similarity: Any,
    start: Any,
    lower: Any,
    upper: Any,
    *,
    eps: float,
    objective: Objective = "sum",
    solver: Solver = "sinkhorn",
    max_iter: int = 100,
    tol: float = 1e-7,
    ot_max_iter: int = 500,
    ot_tol: float = 1e-7,
) -> Weighted:
    """Run the loop.

    Args:
        similarity: W, `[m, m]`, symmetric and positive semi-definite, numpy or torch.
        start: F_0, `[m, c]`, rows sum to 1; within the bounds for the first step to count as monotone.
        lower, upper: bounds of the column sums, a number or `[c]`.
        eps: weight of the entropy, > 0; see `critical_eps`.
        objective: `sum` or `ratio`, as above.
        solver, ot_max_iter, ot_tol: of `double_bounded_sinkhorn`.
        max_iter: outer steps.
        tol: relative change of J at which the loop ends.

    Raises:
        ConfigError: a bound that no membership meets, eps that is no positive number, an unknown objective.
    """
    if objective not in ("sum", "ratio"):
        raise ConfigError(f"objective={objective!r}: give 'sum' or 'ratio'")
    membership, g = start, None
    product = similarity @ membership
    path = [_value(product, membership, eps, objective)]
    solves: list[TransportInfo] = []
    settled = False
    for _ in range(max_iter):
        scores = _gradient(product, membership, objective)
        membership, g, info = double_bounded_sinkhorn(
            scores, lower, upper, eps=eps, g0=g, max_iter=ot_max_iter, tol=ot_tol, solver=solver
        )
        solves.append(info)
        product = similarity @ membership
        path.append(_value(product, membership, eps, objective))
        if abs(path[-1] - path[-2]) <= tol * abs(path[-1]):
            settled = True
            break
    return Weighted(membership, tuple(path), tuple(solves), settled and all(s.converged for s in solves))


def objective_value(similarity: Any, membership: Any, eps: float, objective: Objective = "sum") -> float:
    """J(F); with eps = 0 and hard labels, the similarity kept inside clusters."""
    return _value(similarity @ membership, membership, eps, objective)


def _value(product: Any, membership: Any, eps: float, objective: Objective) -> float:
    inside = _numpy((membership * product).sum(0))
    flow = _numpy(membership)
    entropy = -float((flow * np.log(np.where(flow > 0, flow, 1.0))).sum())
    if objective == "ratio":
        mass = flow.sum(axis=0)
        inside = np.where(mass > TINY, inside / np.where(mass > TINY, mass, 1.0), 0.0)
        inside = inside * flow.shape[0] / flow.shape[1]
    return float(inside.sum()) + eps * entropy


def _gradient(product: Any, membership: Any, objective: Objective) -> Any:
    if objective == "sum":
        return 2 * product
    m, c = membership.shape
    mass = membership.sum(0)
    mass = mass + TINY  # of either array library
    inside = (membership * product).sum(0)
    return (m / c) * (2 * product / mass - inside / mass**2)


def _numpy(values: Any) -> np.ndarray:
    return np.asarray(
        values if isinstance(values, np.ndarray) else values.detach().cpu().numpy(), dtype=float
    )


def critical_eps(second_eigenvalue: float, clusters: int) -> float:
    """eps* = 2 lambda_2(W) / c: above it the uniform membership attracts, and labels would be noise of the rounding.

    F = 1 / c is always a fixed point; linearised there, a deviation grows by 2 lambda_2 / (c eps) a step.
    """
    return 2.0 * second_eigenvalue / clusters


def is_collapsed(membership: Any) -> bool:
    """Whether the membership is close to uniform: its rows' largest entry is below 2 / c on average."""
    flow = _numpy(membership)
    c = flow.shape[1]
    # Where 2 / c says nothing (c = 2), half way from uniform to certain.
    bar = min(2.0 / c, (1.0 + 1.0 / c) / 2)
    return c > 1 and float(flow.max(axis=1).mean()) < bar
