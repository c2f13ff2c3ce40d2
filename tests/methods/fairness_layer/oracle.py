"""The projection by a conic solver, and the certificate that a point is the projection."""

import cvxpy as cp
import numpy as np


def conic(z, matrix, centre, eps, low, high):
    """argmin ||y - z||^2 within box and rows, by Clarabel."""
    y = cp.Variable(len(z))
    limits = [cp.abs(matrix @ y - centre) <= eps]
    limits += [] if np.isinf(low) else [y >= low]
    limits += [] if np.isinf(high) else [y <= high]
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y - z)), limits)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return np.asarray(y.value)


def kkt_residual(z, matrix, centre, eps, low, high, y, nu):
    """How far (y, nu) is from the conditions that only the projection satisfies; 0 proves it."""
    stationary = np.abs(y - np.clip(z - matrix.T @ nu, low, high)).max()
    value = matrix @ y - centre
    outside = np.maximum(np.abs(value) - eps, 0.0).max()
    slack = np.where(nu != 0, np.abs(value - eps * np.sign(nu)), 0.0).max()
    return max(stationary, outside, slack)
