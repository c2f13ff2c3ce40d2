"""Answers by other means: a conic solver, a linear program, brute force, and the shortcut that is wrong."""

from itertools import product
from typing import Any

import cvxpy
import numpy as np
from scipy.optimize import linprog


def conic_plan(
    scores: np.ndarray, low: np.ndarray, high: np.ndarray, eps: float, mass: np.ndarray | None = None
) -> np.ndarray:
    """The doubly bounded transport plan by Clarabel's interior point method."""
    plan = cvxpy.Variable(scores.shape, nonneg=True)
    rows = np.ones(len(scores)) if mass is None else mass
    bounds = [
        cvxpy.sum(plan, axis=1) == rows,
        cvxpy.sum(plan, axis=0) >= low,
        cvxpy.sum(plan, axis=0) <= high,
    ]
    value = cvxpy.sum(cvxpy.multiply(scores, plan)) + eps * cvxpy.sum(cvxpy.entr(plan))
    problem = cvxpy.Problem(cvxpy.Maximize(value), bounds)
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return np.asarray(plan.value)


def value_of(scores: np.ndarray, plan: np.ndarray, eps: float) -> float:
    """<G, F> + eps H(F)."""
    safe = np.clip(plan, 1e-300, None)
    return float((scores * plan).sum() - eps * (plan * np.log(safe)).sum())


def best_total(scores: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """The largest total score of an assignment within the bounds, by HiGHS."""
    m, c = scores.shape
    rows = np.kron(np.eye(m), np.ones(c))
    columns = np.kron(np.ones(m), np.eye(c))
    found = linprog(
        -scores.ravel(),
        A_ub=np.vstack([columns, -columns]),
        b_ub=np.concatenate([high, -np.asarray(low)]),
        A_eq=rows,
        b_eq=np.ones(m),
        method="highs-ds",
    )
    return float(-found.fun)


def best_total_by_trial(scores: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """The same by trying every assignment."""
    m, c = scores.shape
    best = -np.inf
    for labels in product(range(c), repeat=m):
        sizes = np.bincount(labels, minlength=c)
        if (sizes >= low).all() and (sizes <= high).all():
            best = max(best, float(scores[np.arange(m), list(labels)].sum()))
    return best


def alternating_projections(
    scores: np.ndarray, low: np.ndarray, high: np.ndarray, eps: float, sweeps: int = 2_000
) -> np.ndarray:
    """The known wrong turn: plain projections on rows, lower and upper bounds by turns end at *a* feasible plan."""
    plan = np.exp((scores - scores.max(axis=1, keepdims=True)) / eps)
    for _ in range(sweeps):
        plan = plan / plan.sum(axis=1, keepdims=True)
        sums = plan.sum(axis=0)
        plan = plan * np.maximum(low / sums, 1)
        sums = plan.sum(axis=0)
        plan = plan * np.minimum(high / sums, 1)
    return plan / plan.sum(axis=1, keepdims=True)


def random_problem(
    rng: np.random.Generator, m: int, c: int, tight: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores in [0, 1] with a common drift between columns, and whole bounds that can be met and that bind."""
    scores: Any = rng.uniform(size=(m, c)) + rng.uniform(0, 0.7, size=c)
    sizes = rng.multinomial(m, np.ones(c) / c)
    low = np.maximum(sizes - (0 if tight else rng.integers(0, 3, c)), 0)
    high = sizes + (0 if tight else rng.integers(0, 3, c))
    return scores, low, high
