"""The projection in float64: argmin ||y - z||^2 s.t. l <= y <= u, |A y - c| <= eps (sections 2.1 and 2.2).

One row is solved exactly by sorting the breakpoints of a piecewise linear function, O(b log b). Several rows are
solved in the dual: Newton steps whose non-negative quadratic models `nnls` solves, each with a line search, then one
exact step on the rows and entries found active.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import linprog, nnls

FEASIBLE = 1e-10  # the largest violation that a finished projection may have, relative to the numbers' size
STEPS = 100  # Newton steps; a handful is the rule
HALVINGS = 40


class InfeasibleParityError(ValueError):
    """No batch within the box satisfies the rows; names the row and the least eps that the box allows."""

    def __init__(self, row: int, least_eps: float, label: str = "") -> None:
        self.row, self.least_eps = row, least_eps
        super().__init__(
            f"eps cannot be met within bounds by {label or f'row {row}'}: the least eps is {least_eps:.6g}; "
            "widen bounds or raise eps"
        )


@dataclass(frozen=True)
class Projected:
    """A solution: `scores` [b], multipliers `nu` [m] (y = clip(z - A'nu)), `free` [b] and `active` [m] masks."""

    scores: np.ndarray
    nu: np.ndarray
    free: np.ndarray
    active: np.ndarray


def project(
    z: np.ndarray, matrix: np.ndarray, centre: np.ndarray, eps: float, low: float, high: float
) -> Projected:
    """The closest scores that satisfy box and rows.

    Args:
        z: raw scores [b], float64.
        matrix: rows [m, b]; m may be 0.
        centre: [m].
        eps: tolerance of each row.
        low: lower end of the box, -inf for none.
        high: upper end of the box, inf for none.

    Raises:
        InfeasibleParityError: when the box leaves no solution.
    """
    clipped = np.clip(z, low, high)
    excess = np.abs(matrix @ clipped - centre) - eps
    if len(matrix) == 0 or excess.max() <= 0:
        free = (z > low) & (z < high)
        return Projected(clipped, np.zeros(len(matrix)), free, np.zeros(len(matrix), dtype=bool))
    if len(matrix) == 1:
        return _one_row(z, matrix[0], float(centre[0]), eps, low, high)
    return _several_rows(z, matrix, centre, eps, low, high)


def shift_of_row(z: np.ndarray, row: np.ndarray, target: float, low: float, high: float) -> float:
    """The nu >= 0 with row . clip(z - nu row) = target, for a row whose value at nu = 0 lies above; inf if none.

    The value falls piecewise linearly in nu; each entry is free between two breakpoints, where it adds -row_i^2.
    """
    used = row != 0
    d, x = row[used], z[used]
    to_low, to_high = (x - low) / d, (x - high) / d
    enter = np.maximum(np.minimum(to_low, to_high), 0.0)
    leave = np.maximum(np.maximum(to_low, to_high), 0.0)
    times = np.concatenate((enter, leave))
    slopes = np.concatenate((d * d, -d * d))
    order = np.argsort(times, kind="stable")
    times, slopes = times[order], np.cumsum(slopes[order])
    finite = np.isfinite(times)
    times, slopes = times[finite], slopes[finite]
    start = float(d @ np.clip(x, low, high))
    fallen = np.concatenate(([0.0], np.cumsum(slopes[:-1] * np.diff(times))))
    segment = int(np.searchsorted(fallen, start - target, side="left")) - 1
    segment = min(max(segment, 0), len(times) - 1)
    left = times[segment]
    right = times[segment + 1] if segment + 1 < len(times) else np.inf
    middle = left + 1.0 if np.isinf(right) else 0.5 * (left + right)
    free = (enter < middle) & (middle < leave)
    if not free.any():
        reached = float(d @ np.clip(x - left * d, low, high))
        return left if reached <= target + 1e-12 * max(1.0, abs(target)) else np.inf
    still = np.clip(x - middle * d, low, high)
    return float((d[free] @ x[free] + d[~free] @ still[~free] - target) / (d[free] @ d[free]))


def _one_row(z: np.ndarray, row: np.ndarray, centre: float, eps: float, low: float, high: float) -> Projected:
    """Section 2.2: the multiplier of one violated row, by its breakpoints."""
    side = np.sign(row @ np.clip(z, low, high) - centre)
    nu = shift_of_row(z, side * row, side * centre + eps, low, high)
    if np.isinf(nu):
        extreme = np.where(side * row > 0, low, high)
        used = row != 0
        raise InfeasibleParityError(0, float(side * (row[used] @ extreme[used] - centre)))
    shifted = z - side * nu * row
    return Projected(
        np.clip(shifted, low, high),
        np.array([side * nu]),
        (shifted > low) & (shifted < high),
        np.array([nu > 0]),
    )


def _several_rows(
    z: np.ndarray, matrix: np.ndarray, centre: np.ndarray, eps: float, low: float, high: float
) -> Projected:
    """Newton in the dual over p >= 0 of G y <= h, G = (A; -A) with rows of length 1, then the exact step."""
    size = np.linalg.norm(matrix, axis=1)
    if (size == 0).any():
        row = int(np.argmin(size))
        if abs(centre[row]) > eps:
            raise InfeasibleParityError(row, abs(float(centre[row])))
        size = np.where(size == 0, 1.0, size)
    unit = matrix / size[:, None]
    upper, lower = (eps + centre) / size, (eps - centre) / size
    p = np.zeros(2 * len(matrix))
    m = len(matrix)

    def dual(p: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        shifted = z - unit.T @ (p[:m] - p[m:])
        y = np.clip(shifted, low, high)
        value = unit @ y
        slack = np.concatenate((value - upper, -value - lower))
        return float(0.5 * np.sum((y - z) ** 2) + p @ slack), slack, (shifted > low) & (shifted < high)

    scale = 1.0 + float(np.abs(z).max()) * np.sqrt(len(z))
    value, slack, free = dual(p)
    for _ in range(STEPS):
        if np.abs(np.minimum(p, -slack)).max() <= 1e-13 * scale:
            break
        step = _newton_point(p, slack, unit[:, free]) - p
        for halving in range(HALVINGS):
            tried = p + step * 0.5**halving
            new_value, new_slack, new_free = dual(tried)
            if new_value >= value + 1e-4 * 0.5**halving * float(slack @ step) - 1e-15 * abs(value):
                break
        if halving == HALVINGS - 1:
            break
        p, value, slack, free = tried, new_value, new_slack, new_free
    nu = (p[:m] - p[m:]) / size
    found = _on_active(z, matrix, centre, eps, low, high, nu)
    worst = np.abs(matrix @ found.scores - centre) - eps
    if worst.max() > FEASIBLE * max(1.0, scale):
        raise InfeasibleParityError(int(worst.argmax()), _least_eps(matrix, centre, low, high))
    return found


def _newton_point(p: np.ndarray, slack: np.ndarray, free_rows: np.ndarray) -> np.ndarray:
    """argmax over p' >= 0 of the dual's quadratic model at p, with a small proximal term for rows that depend."""
    gram = free_rows @ free_rows.T
    curve = np.block([[gram, -gram], [-gram, gram]])
    curve[np.diag_indices_from(curve)] += 1e-9
    factor = cholesky(curve, lower=True)
    wanted = solve_triangular(factor, curve @ p + slack, lower=True)
    return nnls(factor.T, wanted, maxiter=50 * len(p))[0]


def _on_active(
    z: np.ndarray, matrix: np.ndarray, centre: np.ndarray, eps: float, low: float, high: float, nu: np.ndarray
) -> Projected:
    """The exact solution on the rows and entries that are active at nu: moves the free entries onto the rows."""
    shifted = z - matrix.T @ nu
    free = (shifted > low) & (shifted < high)
    y = np.clip(shifted, low, high)
    active = np.abs(nu) > 1e-9 * max(1e-300, float(np.abs(nu).max()))
    if active.any():
        rows = matrix[active] * free
        short = centre[active] + eps * np.sign(nu[active]) - matrix[active] @ y
        y = np.clip(
            y + rows.T @ (np.linalg.pinv(rows @ rows.T, rcond=1e-11, hermitian=True) @ short), low, high
        )
    return Projected(y, nu, free, active)


def _least_eps(matrix: np.ndarray, centre: np.ndarray, low: float, high: float) -> float:
    """The least eps that the box allows, by a linear programme in (y, eps)."""
    m, b = matrix.shape
    ones = -np.ones((m, 1))
    rows = np.block([[matrix, ones], [-matrix, ones]])
    box = [(None if np.isinf(low) else low, None if np.isinf(high) else high)] * b
    answer = linprog(
        np.append(np.zeros(b), 1.0), rows, np.concatenate((centre, -centre)), bounds=[*box, (0, None)]
    )
    return float(answer.fun) if answer.status == 0 else float("nan")
