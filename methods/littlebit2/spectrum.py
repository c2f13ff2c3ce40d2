"""Spectra: the truncated SVD, what it says about a layer, and the closed form for a random rotation.

With a = (2/pi)^2 and c = (2/pi)(1 - 2/pi), E the share of ||W||_F^2 in the top r singular values and
q = (sum sigma)^2 / (r sum sigma^2) over these, a Haar rotation followed by Dual-SVID leaves the relative squared error

    (1 - E) + E [(1 - a)^2 + (2 a c + c^2) q],

since rotated factors are nearly Gaussian: a sign keeps 2/pi of a Gaussian's energy, in U and in V.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from methods.common.checks import check_choice, check_whole
from methods.common.errors import ConfigError, DataError

KEPT = (2 / math.pi) ** 2
NOISE = 2 / math.pi * (1 - 2 / math.pi)
EXACT_UP_TO = 4096  # above this many rows and columns the exact decomposition takes minutes
OVERSAMPLING, POWER_ITERATIONS = 16, 4
Solver = Literal["auto", "exact", "randomized"]


class Svd(NamedTuple):
    """W ~ u diag(s) vt with u [o, k], s [k] descending, vt [k, i]; `energy` is ||W||_F^2 of the whole matrix."""

    u: Tensor
    s: Tensor
    vt: Tensor
    energy: float


def check_weight(weight: Tensor) -> Tensor:
    """The weight in float32 (float64 stays).

    Raises:
        DataError: no tensor of floating-point numbers, not a matrix, empty, or it holds NaN or infinity.
    """
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        kind = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise DataError(f"a weight of {kind} holds no floating-point numbers; give a torch tensor of them")
    if weight.ndim != 2 or weight.numel() == 0:
        raise DataError(f"a weight of shape {tuple(weight.shape)} is no matrix; give [outputs, inputs]")
    if not weight.isfinite().all():
        raise DataError("the weight holds NaN or infinity; use an intact checkpoint")
    return weight.detach().to(torch.float64 if weight.dtype == torch.float64 else torch.float32)


def check_rank(rank: int, weight: Tensor) -> None:
    """ConfigError unless it is a whole number in 1..min(o, i)."""
    check_whole("rank", rank)
    if not 1 <= rank <= min(weight.shape):
        outputs, inputs = weight.shape
        raise ConfigError(f"rank {rank}: a weight of {outputs}x{inputs} allows 1 to {min(weight.shape)}")


def truncated_svd(
    weight: Tensor, rank: int, *, solver: Solver = "auto", generator: torch.Generator | None = None
) -> Svd:
    """The top `rank` singular triplets (all of them with the exact solver).

    Args:
        weight: [o, i].
        rank: at most min(o, i).
        solver: `exact`; `randomized` with 4 power iterations and 16 more columns than asked; `auto` is exact up to
            4096 rows or columns.
        generator: of the randomized solver's start.

    Raises:
        ConfigError: rank is not in 1..min(o, i), or no such solver.
    """
    check_choice("solver", solver, Solver)
    weight = check_weight(weight)
    check_rank(rank, weight)
    most = min(weight.shape)
    energy = float(weight.double().square().sum())
    if solver == "exact" or (solver == "auto" and most <= EXACT_UP_TO):
        u, s, vt = torch.linalg.svd(weight, full_matrices=False)
        return Svd(u, s, vt, energy)
    width = min(most, rank + OVERSAMPLING)
    basis = weight @ torch.randn(weight.shape[1], width, dtype=weight.dtype, generator=generator)
    basis = torch.linalg.qr(basis).Q
    for _ in range(POWER_ITERATIONS):
        basis = torch.linalg.qr(weight.T @ basis).Q
        basis = torch.linalg.qr(weight @ basis).Q
    u, s, vt = torch.linalg.svd(basis.T @ weight, full_matrices=False)
    return Svd((basis @ u)[:, :rank], s[:rank], vt[:rank], energy)


def energy_share(s: Tensor, rank: int, energy: float) -> float:
    """E: share of ||W||_F^2 in the top `rank` singular values; 1 for a zero matrix."""
    return min(1.0, float(s[:rank].double().square().sum()) / energy) if energy > 0 else 1.0


def haar_error(s: Tensor, rank: int, energy: float) -> float:
    """The closed form above: relative squared error of a random rotation at this rank."""
    share = energy_share(s, rank, energy)
    top = s[:rank].double()
    squares = float(top.square().sum())
    spread = float(top.sum()) ** 2 / (rank * squares) if squares > 0 else 1.0
    return (1 - share) + share * ((1 - KEPT) ** 2 + (2 * KEPT * NOISE + NOISE**2) * spread)


def decay(s: Tensor) -> float:
    """gamma of sigma_k ~ k^-gamma: the least-squares slope over the first half of the spectrum, its ends left out."""
    values = s.double().cpu().numpy()
    high = max(2, len(values) // 2)
    low = min(2, high - 2)
    index = np.arange(low + 1, high + 1)
    kept = values[low:high]
    if len(kept) < 2 or kept.min() <= 0:
        return float("nan")
    return float(-np.polyfit(np.log(index), np.log(kept), 1)[0])


def coherence(columns: Tensor) -> Tensor:
    """mu_k = n max_j x_jk^2 / ||x_k||^2 of each column of [n, r]: 1 is flat, n is a spike; 1 for a zero column."""
    squares = columns.double().square()
    total = squares.sum(0)
    return torch.where(total > 0, len(columns) * squares.amax(0) / total.clamp(min=1e-300), 1.0)


def alignment(x: Tensor) -> float:
    """||X||_1 / (sqrt(N r) ||X||_F) in (0, 1]: 1 when all entries have one magnitude, 0.798 for a Gaussian."""
    norm = float(x.double().norm())
    return float(x.double().abs().sum()) / (math.sqrt(x.numel()) * norm) if norm > 0 else 1.0


def power_spectrum(count: int, gamma: float) -> npt.NDArray[np.float64]:
    """sigma_k = k^-gamma."""
    return np.arange(1, count + 1, dtype=float) ** -gamma


def break_even(size: int, rank: int, low_rank: int) -> float:
    """The gamma at which a random rotation of rank `rank` leaves as much error as an fp16 product of `low_rank`.

    For a size x size matrix with sigma_k = k^-gamma. Above it the fp16 product is better.
    """

    def difference(gamma: float) -> float:
        s = torch.from_numpy(power_spectrum(size, gamma))
        energy = float(s.square().sum())
        return haar_error(s, rank, energy) - (1 - energy_share(s, low_rank, energy))

    low, high = 0.0, 3.0
    if difference(low) >= 0:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if difference(middle) < 0 else (low, middle)
    return (low + high) / 2
