"""The fairness layer: the last layer of any network, after which the batch satisfies its parity rows.

"Differentiable Optimization Layers for Guaranteed Fairness in Deep Learning", ICML 2026 (arXiv 2605.17118).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from methods.common.checks import check_number
from methods.common.errors import ConfigError, DataError
from methods.fairness_layer.projection import InfeasibleParityError, Projected, project
from methods.fairness_layer.rows import ParityConstraint, ParityRows, as_groups

Bounds = tuple[float | None, float | None]


@dataclass(frozen=True)
class LayerInfo:
    """What the last batch met: largest gap before and after, active rows, and groups that the batch lacked."""

    gap_before: float
    gap_after: float
    active_rows: tuple[str, ...]
    missing_groups: tuple[str, ...]
    mean_abs_nu: float


def check_bounds(bounds: Bounds) -> tuple[float, float]:
    """The box as two floats; raises ConfigError unless low < high."""
    low = -math.inf if bounds[0] is None else float(bounds[0])
    high = math.inf if bounds[1] is None else float(bounds[1])
    if not low < high:
        raise ConfigError(f"bounds {bounds}: give a lower end below the upper end")
    return low, high


def check_constraint(constraint: Any) -> None:
    """Raises ConfigError unless it is a parity notion."""
    if not isinstance(constraint, ParityConstraint):
        raise ConfigError(
            f"constraint {constraint!r}: give MeanParity(), MeanResidual(), EqualizedOddsMean() or AffineRows"
        )


def check_scores(scores: np.ndarray) -> None:
    """Raises DataError for no scores, NaN or infinity."""
    if scores.size == 0:
        raise DataError("scores are empty: give at least one")
    if not np.isfinite(scores).all():
        raise DataError("scores hold NaN or infinity: check the network's output")


class FairnessLayer(nn.Module):
    """Replaces a batch of scores by the closest batch with |A y - c| <= eps inside the box; gradients flow through.

    The solve is in float64; the answer has the scores' shape, dtype and device. The backward pass multiplies by
    J = F - F A'(A F A')^+ A F over active rows A and free entries F (section 2.3): symmetric, idempotent, norm <= 1.

    Args:
        constraint: the parity notion.
        eps: tolerance of each row, in units of the scores.
        bounds: the box, None for an open end.

    Attributes:
        last_info: a `LayerInfo` of the last batch; groups that it lacked are named there.
    """

    def __init__(
        self, constraint: ParityConstraint, eps: float = 0.05, bounds: Bounds = (None, None)
    ) -> None:
        super().__init__()
        check_constraint(constraint)
        check_number("eps", eps, least=0)
        self.low, self.high = check_bounds(bounds)
        self.constraint, self.eps = constraint, float(eps)
        self.last_info: LayerInfo | None = None

    def forward(self, scores: Tensor, groups: Any, targets: Any = None) -> Tensor:
        """Projected scores.

        Args:
            scores: [b] or [b, 1].
            groups: whole codes [b] or [b, attributes].
            targets: [b], for notions that look at them. True targets at inference are an audit, not a deployment.

        Raises:
            DataError: for scores, groups or targets that do not fit.
            InfeasibleParityError: when the box leaves no solution.
        """
        if scores.ndim not in (1, 2) or (scores.ndim == 2 and scores.shape[1] != 1):
            raise DataError(f"scores of shape {tuple(scores.shape)}: give [b] or [b, 1]")
        flat = scores.reshape(-1).to(torch.float64)
        z = flat.detach().cpu().numpy()
        check_scores(z)
        rows = self.constraint.rows(as_groups(_plain(groups), len(z)), _plain(targets))
        try:
            found = project(z, rows.matrix, rows.centre, self.eps, self.low, self.high)
        except InfeasibleParityError as error:
            raise InfeasibleParityError(error.row, error.least_eps, rows.labels[error.row]) from None
        self.last_info = _info(z, rows, found)
        answer = torch.from_numpy(found.scores).to(flat.device)
        if flat.requires_grad:
            answer = answer + _jacobian_product(flat - flat.detach(), rows.matrix, found)
        return answer.to(scores.dtype).reshape(scores.shape)

    def extra_repr(self) -> str:
        """Notion, tolerance and box."""
        return f"{type(self.constraint).__name__}, eps={self.eps}, bounds=({self.low}, {self.high})"


def _jacobian_product(step: Tensor, matrix: np.ndarray, found: Projected) -> Tensor:
    """J step, in plain tensor operations; J is constant near the solution, so a second derivative is zero."""
    free = torch.from_numpy(found.free).to(step)
    moved = free * step
    if not found.active.any():
        return moved
    active = matrix[found.active] * found.free
    gram = active @ active.T
    # One row needs no decomposition, which would cost more than the solve.
    single = gram.shape == (1, 1) and gram[0, 0] > 0
    inverse = 1 / gram if single else np.linalg.pinv(gram, rcond=1e-11, hermitian=True)
    rows, middle = torch.from_numpy(active).to(step), torch.from_numpy(inverse).to(step)
    return moved - rows.T @ (middle @ (rows @ moved))


def _info(z: np.ndarray, rows: ParityRows, found: Projected) -> LayerInfo:
    if not len(rows.matrix):
        return LayerInfo(0.0, 0.0, (), rows.missing, 0.0)
    return LayerInfo(
        gap_before=float(np.abs(rows.matrix @ z - rows.centre).max()),
        gap_after=float(np.abs(rows.matrix @ found.scores - rows.centre).max()),
        active_rows=tuple(label for label, on in zip(rows.labels, found.active, strict=True) if on),
        missing_groups=rows.missing,
        mean_abs_nu=float(np.abs(found.nu).mean()),
    )


def _plain(values: Any) -> Any:
    """A tensor as an array, anything else as it is."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values
