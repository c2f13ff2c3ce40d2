"""Doubly bounded optimal transport (DB-OT) with entropy, as a Sinkhorn-Knopp iteration in the log domain.

    max_F  <G, F> + eps H(F)   s.t.  F >= 0,  F 1 = r,  l <= F^T 1 <= u,      H(F) = - sum F log F.

The optimum is F_ij = r_i softmax_j(G_ij / eps + g_j) with one multiplier a cluster: g_j > 0 where the lower bound
binds, g_j < 0 where the upper one does, 0 between them. The two column scalings of Shi et al. (Double-Bounded Optimal
Transport, AAAI 2024) are merged into g, so that a sweep is exact coordinate ascent on the dual. Alternating plain
projections on rows, lower and upper bounds, as some code does, ends at a feasible plan that is not the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from methods.common.errors import ConfigError, DataError
from methods.sc_fagc.bound_values import bound_values

Solver = Literal["sinkhorn", "newton", "sweeps"]
NEWTON_STEPS = 200
HALVINGS = 30
# Above this spread of the scores, in units of eps, the solve starts at a larger weight and comes down by steps.
SCALING_FROM = 20.0
SCALING_START = 5.0
SCALING = 0.4
GAP_SHARE = 1e-2


@dataclass(frozen=True)
class TransportInfo:
    """How a solve ended.

    Attributes:
        converged: whether the tolerances are met.
        sweeps: row and column steps done.
        newton_steps: accelerated steps among them.
        violation: largest distance of a column sum from its bounds, in units of mass.
        primal: <G, F> + eps H(F).
        dual: the dual value, an upper bound of the optimum; `dual - primal` is the duality gap.
    """

    converged: bool
    sweeps: int
    newton_steps: int
    violation: float
    primal: float
    dual: float


def double_bounded_sinkhorn(
    scores: Any,
    lower: Any,
    upper: Any,
    *,
    eps: float,
    row_mass: Any = None,
    g0: Any = None,
    max_iter: int = 500,
    tol: float = 1e-7,
    solver: Solver = "sinkhorn",
) -> tuple[Any, Any, TransportInfo]:
    """Solve the problem above.

    Args:
        scores: G, `[m, c]`, numpy or torch; a torch tensor stays on its device, and so does the plan.
        lower, upper: bounds of the column sums, a number or `[c]`, in units of mass; `upper` may be infinite.
        eps: weight of the entropy, in the units of `scores`, > 0.
        row_mass: r, `[m]`, > 0; default 1 each.
        g0: start of the multipliers (divided by eps, as they are returned), `[c]`; default 0.
        max_iter: cap of the sweeps; Newton steps come on top.
        tol: largest violation relative to the largest finite upper bound, with a change of the multipliers of at most
            `tol` or a relative duality gap of at most `tol / 100`.
        solver: `sinkhorn` sweeps up to the cap and then takes Newton steps; `newton` takes one after each sweep;
            `sweeps` only sweeps.

    Returns:
        plan `[m, c]` whose rows sum to `row_mass` to rounding, multipliers g `[c]`, and how it ended. A solve that did
        not converge says so in `converged`; nothing is raised.

    Raises:
        ConfigError: eps or the bounds are no such numbers, or no plan can meet the bounds.
        DataError: scores that are not a finite matrix.
    """
    xp: Any = np
    if not isinstance(scores, np.ndarray) and type(scores).__module__.startswith("torch"):
        import torch

        xp = torch
        g_matrix = scores if scores.dtype == torch.float64 else scores.float()
    else:
        g_matrix = np.asarray(scores)
        if g_matrix.dtype != np.float32:
            g_matrix = g_matrix.astype(np.float64)
    if g_matrix.ndim != 2 or 0 in g_matrix.shape or not bool(xp.isfinite(g_matrix).all()):
        raise DataError(
            f"scores: needs a finite matrix of at least one row and column; got shape {tuple(g_matrix.shape)}"
        )
    m, c = g_matrix.shape
    if not (eps > 0 and np.isfinite(eps)):
        raise ConfigError(f"eps={eps}: give a finite number above 0")
    mass = np.ones(m) if row_mass is None else np.asarray(row_mass, dtype=np.float64)
    if mass.shape != (m,) or not np.isfinite(mass).all() or (mass <= 0).any():
        raise ConfigError(f"row_mass: give {m} finite numbers above 0")
    low, high = _checked_bounds(lower, upper, c, float(mass.sum()))

    g = np.zeros(c) if g0 is None else np.asarray(g0, dtype=np.float64).copy()
    g[high == 0] = -np.inf
    spread = float((xp.amax(g_matrix, axis=1) - xp.amin(g_matrix, axis=1)).max())

    def solve(eps: float, g: np.ndarray, tol: float) -> tuple[Any, np.ndarray, TransportInfo]:
        return _solve(_Problem(xp, g_matrix, eps, mass, low, high), g, max_iter, tol, solver)

    def scaled() -> np.ndarray:
        """Multipliers from larger weights of the entropy, down to this one.

        Where the entropy is small, the plan is nearly 0/1 and hardly answers to a multiplier: every method crawls from
        afar. The prices eps g change little from one weight to the next.
        """
        found, before = g, None
        for weight in spread / SCALING_START * SCALING ** np.arange(200):
            if weight <= eps / SCALING:
                break
            if before is not None:
                found = found * (before / weight)
            found, before = solve(weight, found, 1e-3)[1], weight
        return found if before is None else found * (before / eps)

    far = spread > SCALING_FROM * eps and solver != "sweeps"
    if far and g0 is None:
        return solve(eps, scaled(), tol)
    plan, found, info = solve(eps, g, tol)
    if far and not info.converged:
        return solve(eps, scaled(), tol)
    return plan, found, info


def _solve(
    problem: _Problem, g: np.ndarray, max_iter: int, tol: float, solver: Solver
) -> tuple[Any, np.ndarray, TransportInfo]:
    low, high = problem.low, problem.high
    scale = float(high[np.isfinite(high)].max(initial=0.0)) or float(problem.mass.sum())
    sweeps = steps = 0
    change = np.inf
    while True:
        plan, columns = problem.rows(g)
        violation = float(np.maximum(np.maximum(low - columns, columns - high), 0).max())
        # Where a bound holds with a whole plan the multipliers may wander; a closed gap then proves the optimum.
        done = violation <= tol * scale and (change <= tol or problem.gap(plan, g) <= GAP_SHARE * tol)
        if done:
            break
        accelerated = solver == "newton" or (solver == "sinkhorn" and sweeps >= max_iter)
        if steps >= NEWTON_STEPS or (sweeps >= max_iter and solver != "sinkhorn"):
            break
        before = g
        g = problem.column_step(g)
        if accelerated:
            # The sweep finds which bounds bind; the Newton step solves for their multipliers at once.
            g = problem.newton(g)
            steps += 1
        sweeps += 1
        with np.errstate(invalid="ignore"):
            change = float(np.where(g == before, 0.0, np.abs(g - before)).max())
    info = TransportInfo(
        converged=done,
        sweeps=sweeps,
        newton_steps=steps,
        violation=violation,
        primal=problem.primal(plan),
        dual=problem.dual(g),
    )
    return plan, g, info


def _checked_bounds(lower: Any, upper: Any, c: int, total: float) -> tuple[np.ndarray, np.ndarray]:
    low, high = (bound_values(name, given, c) for name, given in (("lower", lower), ("upper", upper)))
    if (low > high).any():
        j = int(np.argmax(low - high))
        raise ConfigError(f"lower[{j}]={low[j]:g} is above upper[{j}]={high[j]:g}; lower it")
    slack = 1e-9 * max(total, 1.0)
    if low.sum() > total + slack or high.sum() < total - slack:
        raise ConfigError(
            f"bounds: the lower ones add up to {low.sum():g} and the upper ones to {high.sum():g}; "
            f"the mass {total:g} must lie between them"
        )
    # One side that takes all the mass fixes the sizes; said outright, no multiplier has to run to infinity for it.
    if low.sum() >= total - slack:
        high = low.copy()
    elif high.sum() <= total + slack:
        low = high.copy()
    return low, high


class _Problem:
    """The matrix stays in its array library; the c multipliers are numpy's."""

    def __init__(
        self, xp: Any, scores: Any, eps: float, mass: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> None:
        self.xp, self.eps, self.low, self.high = xp, eps, low, high
        self.scores = scores
        self.kernel = scores / eps
        # Without its row's largest entry, exp cannot overflow; the optimum does not change.
        self.top = xp.amax(self.kernel, axis=1, keepdims=True)
        self.kernel = self.kernel - self.top
        self.mass = mass
        self._mass_column = self._like(mass)[:, None]
        with np.errstate(divide="ignore"):
            self.log_low, self.log_high = np.log(low), np.log(high)

    def _like(self, values: np.ndarray) -> Any:
        if self.xp is np:
            return values.astype(self.scores.dtype, copy=False)
        return self.xp.as_tensor(values, dtype=self.scores.dtype, device=self.scores.device)

    def _numpy(self, values: Any) -> np.ndarray:
        return np.asarray(values if self.xp is np else values.detach().cpu().numpy(), dtype=np.float64)

    def _log_rows(self, g: np.ndarray) -> tuple[Any, Any]:
        """(K + g, its row-wise logsumexp)."""
        shifted = self.kernel + self._like(g)
        top = self.xp.amax(shifted, axis=1, keepdims=True)
        return shifted, top + self.xp.log(self.xp.sum(self.xp.exp(shifted - top), axis=1, keepdims=True))

    def rows(self, g: np.ndarray) -> tuple[Any, np.ndarray]:
        """The row step: (plan, its column sums)."""
        shifted, level = self._log_rows(g)
        plan = self._mass_column * self.xp.exp(shifted - level)
        # Rows sum to their mass to the last digit.
        plan = plan * (self._mass_column / self.xp.sum(plan, axis=1, keepdims=True))
        return plan, self._numpy(self.xp.sum(plan, axis=0))

    def column_step(self, g: np.ndarray) -> np.ndarray:
        """g_j <- max(log l_j - r_j, min(0, log u_j - r_j)), r_j = log(column sum of j) - g_j, never by subtraction."""
        _, level = self._log_rows(g)
        terms = self.kernel - level + self._like(np.log(self.mass))[:, None]
        top = self.xp.amax(terms, axis=0, keepdims=True)
        r = self._numpy((top + self.xp.log(self.xp.sum(self.xp.exp(terms - top), axis=0, keepdims=True)))[0])
        return np.maximum(self.log_low - r, np.minimum(0.0, self.log_high - r))

    def dual(self, g: np.ndarray) -> float:
        """eps (sum_i r_i (logsumexp_j(G_ij / eps + g_j) - log r_i) - l max(g, 0) + u max(-g, 0))."""
        _, level = self._log_rows(g)
        rows = self._numpy((level + self.top)[:, 0])
        # A column with an infinite multiplier is shut (its bound is 0) and adds nothing.
        up, down = (g > 0) & np.isfinite(g), (g < 0) & np.isfinite(g)
        bounds = self.high[down] @ -g[down] - self.low[up] @ g[up]
        return float(self.eps * (self.mass @ (rows - np.log(self.mass)) + bounds))

    def primal(self, plan: Any) -> float:
        flow = self._numpy(plan)
        logs = np.log(np.where(flow > 0, flow, 1.0))
        return float((self._numpy(self.scores) * flow).sum() - self.eps * (flow * logs).sum())

    def gap(self, plan: Any, g: np.ndarray) -> float:
        """Dual minus primal, relative to the primal where that is above 1."""
        primal = self.primal(plan)
        return (self.dual(g) - primal) / max(1.0, abs(primal))

    def newton(self, g: np.ndarray) -> np.ndarray:
        """One step on the active multipliers, halved until the dual improves; one that changes sign becomes 0."""
        plan, columns = self.rows(g)
        active = np.flatnonzero((g != 0) & np.isfinite(g))
        if not len(active):
            return g
        part = self._numpy(plan)[:, active]
        hessian = np.diag(columns[active]) - part.T @ (part / self.mass[:, None])
        wanted = np.where(g > 0, self.low, self.high)[active]
        # With every column active the Hessian has the constants in its null space.
        step = np.linalg.lstsq(hessian, wanted - columns[active], rcond=1e-13)[0]
        value = self.dual(g)
        for _ in range(HALVINGS):
            tried = g.copy()
            tried[active] += step
            tried[active] = np.where(tried[active] * g[active] < 0, 0.0, tried[active])
            if self.dual(tried) <= value:
                return tried
            step = step / 2
        return g
