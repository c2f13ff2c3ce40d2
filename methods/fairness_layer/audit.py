"""What a set of scores does to its groups: gaps of scores, of decisions, and of batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from methods.common.checks import check_whole
from methods.fairness_layer.layer import check_constraint, check_scores
from methods.fairness_layer.rows import MeanParity, ParityConstraint, as_groups


@dataclass(frozen=True)
class Audit:
    """The findings.

    `pooled_gap` is the largest row over all samples, `weighted_batch_gap` the sample-weighted mean of the batches'
    largest rows, `decision_gap` the pooled gap of (score >= threshold); batches without any row are counted.
    """

    pooled_gap: float
    weighted_batch_gap: float
    largest_batch_gap: float
    decision_gap: float
    per_row: dict[str, float]
    n_per_group: dict[str, int]
    mean_per_group: dict[str, float]
    missing_groups: tuple[str, ...]
    batches_without_rows: int


def audit(
    scores: Any,
    groups: Any,
    targets: Any = None,
    constraint: ParityConstraint | None = None,
    *,
    batch_size: int | None = None,
    threshold: float = 0.5,
) -> Audit:
    """Gaps of scores [n] under a notion, pooled and in consecutive batches.

    Args:
        scores: [n].
        groups: whole codes [n] or [n, attributes].
        targets: [n] for notions that look at them.
        constraint: the notion; MeanParity when None.
        batch_size: of the consecutive batches; None for one batch.
        threshold: at which a score becomes a decision.
    """
    constraint = MeanParity() if constraint is None else constraint
    check_constraint(constraint)
    if batch_size is not None:
        check_whole("batch_size", batch_size, 1)
    y = np.asarray(scores, dtype=np.float64).reshape(-1)
    check_scores(y)
    codes = as_groups(groups, len(y))
    truth = None if targets is None else np.asarray(targets).reshape(-1)
    rows = constraint.rows(codes, truth)
    value = rows.matrix @ y - rows.centre
    decided = rows.matrix @ (y >= threshold).astype(float) - rows.centre
    size = len(y) if batch_size is None else batch_size
    gaps, sizes = [], []
    without = 0
    for start in range(0, len(y), size):
        part = slice(start, start + size)
        of_batch = constraint.rows(codes[part], None if truth is None else truth[part])
        if len(of_batch.matrix):
            gaps.append(float(np.abs(of_batch.matrix @ y[part] - of_batch.centre).max()))
            sizes.append(len(y[part]))
        else:
            without += 1
    members = {
        f"attribute {a}={code}": codes[:, a] == code
        for a in range(codes.shape[1])
        for code in np.unique(codes[:, a])
    }
    return Audit(
        pooled_gap=float(np.abs(value).max(initial=0.0)),
        weighted_batch_gap=float(np.average(gaps, weights=sizes)) if gaps else 0.0,
        largest_batch_gap=max(gaps, default=0.0),
        decision_gap=float(np.abs(decided).max(initial=0.0)),
        per_row=dict(zip(rows.labels, value.tolist(), strict=True)),
        n_per_group={name: int(inside.sum()) for name, inside in members.items()},
        mean_per_group={name: float(y[inside].mean()) for name, inside in members.items()},
        missing_groups=rows.missing,
        batches_without_rows=without,
    )
