"""Double binary factorisation by ADMM, the peer in weight space (Boza and Macko, arXiv 2505.11076).

W ~ A B with A = diag(h) sgn(A) diag(a), B = diag(b) sgn(B) diag(g). By turns, A given B and B given A minimise
||W - A B||_F^2 under that constraint by ADMM: a ridge regression, a projection (signs times the rank-1 fit of the
magnitudes) and a dual update. Written from the paper's description, without importance weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from methods.littlebit2.signs import sgn

_PENALTY = (0.03, 1.0)  # of the mean of the Gram diagonal, from the first to the last sweep


class Admm(NamedTuple):
    """A [o, r] and B [r, i], both exactly of the constrained form, and the relative squared error per sweep."""

    a: Tensor
    b: Tensor
    trace: list[float]


def project(matrix: Tensor, rounds: int = 3) -> Tensor:
    """The signs of a matrix times the best rank-1 fit of its magnitudes (a few power iterations)."""
    size = matrix.abs()
    right = size.mean(0)
    for _ in range(rounds):
        right = size.T @ (size @ right)
        norm = right.norm()
        right = right / norm if norm > 0 else right
    return sgn(matrix) * torch.outer(size @ right, right)


def admm(weight: Tensor, u: Tensor, v: Tensor, *, sweeps: int = 50, inner: int = 2) -> Admm:
    """Fit from the start U [o, r], V [r, i].

    Args:
        weight: [o, i].
        sweeps: times that A and B are each updated.
        inner: ADMM steps of an update.
    """
    energy = float(weight.double().square().sum()) or 1.0
    a, b = project(u), project(v)
    state_a, state_b = (a, torch.zeros_like(a)), (b.T, torch.zeros_like(b.T))
    best = Admm(a, b, [])
    lowest, trace = float("inf"), []
    for sweep in range(sweeps):
        progress = sweep / max(1, sweeps - 1)
        penalty = _PENALTY[0] * (_PENALTY[1] / _PENALTY[0]) ** progress
        state_a = _update(weight, state_b[0].T, state_a, penalty, inner)
        state_b = _update(weight.T, state_a[0].T, state_b, penalty, inner)
        # The two sides' magnitudes may drift apart; their product does not change.
        ratio = (state_a[0].norm() / state_b[0].norm().clamp(min=1e-30)).clamp(min=1e-6).sqrt()
        state_a = (state_a[0] / ratio, state_a[1] / ratio)
        state_b = (state_b[0] * ratio, state_b[1] * ratio)
        a, b = state_a[0], state_b[0].T
        trace.append(float((weight - a @ b).double().square().sum()) / energy)
        if trace[-1] < lowest:
            lowest, best = trace[-1], Admm(a, b, trace)
    return Admm(best.a, best.b, trace)


def _update(
    weight: Tensor, other: Tensor, state: tuple[Tensor, Tensor], penalty: float, inner: int
) -> tuple[Tensor, Tensor]:
    """ADMM on min ||weight - A other||^2 for A [o, r]; other is [r, i]."""
    z, dual = state
    gram = other @ other.T
    rho = penalty * gram.diagonal().mean().clamp(min=1e-30)
    system = gram + rho * torch.eye(len(gram), dtype=gram.dtype)
    factor, info = torch.linalg.cholesky_ex(system)
    if int(info):
        factor = torch.linalg.cholesky(system + 10 * rho * torch.eye(len(gram), dtype=gram.dtype))
    product = weight @ other.T
    for _ in range(inner):
        free = torch.cholesky_solve((product + rho * (z - dual)).T, factor).T
        z = project(free + dual)
        dual = dual + free - z
    return z, dual
