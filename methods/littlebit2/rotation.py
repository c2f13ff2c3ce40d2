"""Internal latent rotation: W ~ U V = (U R)(R^T V) for every orthogonal R; Joint-ITQ picks one that fits signs.

Joint-ITQ minimises ||B - X R||_F^2 over orthogonal R and B in {-1, +1}, X = [U; V^T] in R^{(o+i) x r}, by turns:
B = sgn(X R), then R = Q P^T from the SVD B^T X = P D Q^T (orthogonal Procrustes). Each half-step can only lower it.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from methods.common.checks import check_choice, check_whole
from methods.common.errors import ConfigError, DataError, NumericalError
from methods.littlebit2.signs import sgn

Polar = Literal["svd", "newton"]
Target = Literal["unit", "row_normalised"]
_STEPS, _TOLERANCE = 40, 1e-6


class Rotation(NamedTuple):
    """R [r, r], and ||B - X R||_F^2 before each update of R and after the last one."""

    r: Tensor
    trace: list[float]


def haar(size: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """A random orthogonal matrix, uniform over rotations and reflections."""
    q, r = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))
    # Without the signs of R's diagonal, QR does not give the uniform distribution.
    return (q * sgn(r.diagonal())).to(dtype)


def polar_factor(matrix: Tensor, solver: Polar = "svd") -> Tensor:
    """The orthogonal matrix next to a square one.

    Args:
        matrix: [r, r].
        solver: `svd`; or `newton`, scaled Newton iterations with a last Newton-Schulz step, which need no SVD and fall
            back to it for a singular matrix.
    """
    if solver == "newton":
        found = _newton_polar(matrix)
        if found is not None:
            return found
    try:
        p, _, qt = torch.linalg.svd(matrix)
    except RuntimeError:  # rarely, LAPACK's divide and conquer does not converge in float32
        p, _, qt = torch.linalg.svd(matrix.double())
    return (p @ qt).to(matrix.dtype)


def _newton_polar(matrix: Tensor) -> Tensor | None:
    """Higham's iteration X <- (t X + X^-T / t) / 2, then X <- X (3 I - X^T X) / 2 against rounding."""
    x = matrix
    for _ in range(_STEPS):
        inverse, info = torch.linalg.inv_ex(x)
        if int(info) or not bool(inverse.isfinite().all()):
            return None
        # The 1,infinity-norm scaling: near-optimal and cheap; near the limit it would disturb, so it ends there.
        t = float(_norms(inverse) / _norms(x)) ** 0.25
        t = 1.0 if abs(t - 1) < 0.01 else t
        nearer = (x * t + inverse.T / t) / 2
        change = float((nearer - x).norm() / nearer.norm())
        x = nearer
        if change < _TOLERANCE * 100:
            return x @ (1.5 * torch.eye(len(x), dtype=x.dtype) - 0.5 * (x.T @ x))
    return None


def _norms(x: Tensor) -> Tensor:
    absolute = x.abs()
    return absolute.sum(0).max() * absolute.sum(1).max()


def joint_itq(
    x: Tensor,
    *,
    n_iter: int = 50,
    generator: torch.Generator,
    restarts: int = 1,
    target: Target = "unit",
    polar: Polar = "svd",
    start: Tensor | None = None,
) -> Rotation:
    """Find R for X = [U; V^T] [o + i, r]; the best of `restarts` random starts.

    Args:
        x: the stacked factors.
        n_iter: updates of R; 0 leaves the random start, which is `init="random_rotation"`.
        generator: of the Haar-random starts.
        restarts: starts; the lowest final objective wins.
        target: `unit` fits X R to signs as they are, so large rows count more; `row_normalised` fits rows of one norm.
        polar: solver of the Procrustes step.
        start: use this R as the (only) start.

    Raises:
        ConfigError: a setting out of range, or a start that is not [r, r].
        DataError: x is no matrix.
        NumericalError: the objective is not finite.
    """
    check_choice("target", target, Target)
    check_choice("polar", polar, Polar)
    check_whole("n_iter", n_iter, 0)
    check_whole("restarts", restarts, 1)
    if x.ndim != 2:
        raise DataError(f"factors of shape {tuple(x.shape)} are no matrix; give [outputs + inputs, rank]")
    if not x.isfinite().all():
        raise NumericalError("the factors hold NaN or infinity; the weight's scale is too large for float32")
    if start is not None and start.shape != (x.shape[1], x.shape[1]):
        raise ConfigError(f"start of shape {tuple(start.shape)}: give [{x.shape[1]}, {x.shape[1]}]")
    if target == "row_normalised":
        x = x / x.norm(dim=1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    best: Rotation | None = None
    for _ in range(1 if start is not None else restarts):
        first = haar(x.shape[1], generator, x.dtype) if start is None else start
        found = _descend(x, first, n_iter, polar)
        if best is None or found.trace[-1] < best.trace[-1]:
            best = found
    assert best is not None
    return best


def _descend(x: Tensor, r: Tensor, n_iter: int, polar: Polar) -> Rotation:
    squares = float(x.double().square().sum()) + x.numel()
    trace = []
    for step in range(n_iter + 1):
        rotated = x @ r
        # ||B - X R||^2 = N r + ||X||^2 - 2 ||X R||_1 when B = sgn(X R).
        trace.append(squares - 2 * float(rotated.abs().sum(dtype=torch.float64)))
        if step < n_iter:
            r = polar_factor(x.T @ sgn(rotated), polar)
    if not all(map(math.isfinite, trace)):
        raise NumericalError("Joint-ITQ left the finite numbers; the weight's scale is too large for float32")
    return Rotation(r, trace)
