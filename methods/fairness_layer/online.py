"""Online primal-dual inference: aggregate parity over a stream of batches as small as one (sections 2.4 and 2.5).

`mode="paper"`: what is bounded is the sample-weighted mean of the batches' absolute gaps. That is no bound of the gap
of the pooled stream when group shares vary from batch to batch, and a batch with one group has no gap at all.
`mode="pooled"`: signed rows weighted by running group shares, whose telescoped bound holds for batches of one.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from methods.common.checks import check_choice, check_number
from methods.common.errors import ConfigError, DataError
from methods.fairness_layer.layer import Bounds, check_bounds, check_constraint, check_scores
from methods.fairness_layer.projection import InfeasibleParityError, project, shift_of_row
from methods.fairness_layer.rows import MeanParity, ParityConstraint, as_groups

Mode = Literal["paper", "pooled"]
ETA = {"paper": 0.5, "pooled": 0.05}
HALVINGS = 60  # of the gap's interval in the step of several rows


class OnlineParityProjector:
    """Adjusts a stream batch by batch with multipliers that carry over; small state, saved as JSON.

    Args:
        constraint: the parity notion; `pooled` serves MeanParity with `levels`.
        eps: tolerance of the aggregate.
        bounds: the box of the scores.
        mode: "paper" bounds the mean absolute gap of the batches, "pooled" the gap of the stream.
        eta0: first step; 0.5 in the paper's mode and 0.05 in the pooled one when None. Step t is eta0 / sqrt(t).
        shares: for "pooled", how many samples of each code of each attribute the training set holds: the start of
            the running shares. None starts from one of each.
    """

    def __init__(
        self,
        constraint: ParityConstraint,
        eps: float = 0.05,
        *,
        bounds: Bounds = (None, None),
        mode: Mode = "paper",
        eta0: float | None = None,
        shares: list[list[float]] | None = None,
    ) -> None:
        check_constraint(constraint)
        check_choice("mode", mode, Mode)
        check_number("eps", eps, least=0)
        if mode == "pooled" and not (isinstance(constraint, MeanParity) and constraint.levels is not None):
            raise ConfigError(
                "mode 'pooled': give MeanParity(levels=...), whose groups are known before the stream"
            )
        self.eta0 = ETA[mode] if eta0 is None else eta0
        check_number("eta0", self.eta0, above=0)
        self.constraint, self.eps, self.mode = constraint, float(eps), mode
        self.low, self.high = check_bounds(bounds)
        self.shares = shares
        self.reset()

    def reset(self) -> None:
        """Forget the stream: multipliers, counts and running sums back to zero; before every new stream."""
        self.batches = 0
        self.samples = 0
        self.without_rows = 0
        self.weighted_gap = 0.0
        self.total = 0.0
        self.largest = 0.0
        self.multipliers: list[float] = [0.0]
        self.sums: list[float] = []
        self.counts: list[list[float]] = []
        if self.mode == "pooled":
            levels = self.constraint.levels or ()
            self.counts = (
                [[1.0] * len(codes) for codes in levels]
                if self.shares is None
                else [[float(count) for count in counts] for counts in self.shares]
            )
            if [len(counts) for counts in self.counts] != [len(codes) for codes in levels]:
                raise ConfigError(f"shares {self.shares}: give one count for each code of levels {levels}")
            pairs = sum(len(codes) * (len(codes) - 1) // 2 for codes in levels)
            self.multipliers = [0.0] * (2 * pairs)
            self.sums = [0.0] * pairs

    def step(self, scores: Any, groups: Any, targets: Any = None) -> np.ndarray:
        """Adjusted scores of one batch, float64 [b]; moves the multipliers.

        Raises:
            DataError: for scores, groups or targets that do not fit; the state stays as it was.
        """
        z = np.asarray(scores, dtype=np.float64).reshape(-1)
        check_scores(z)
        codes = as_groups(groups, len(z))
        return self._paper(z, codes, targets) if self.mode == "paper" else self._pooled(z, codes)

    def _paper(self, z: np.ndarray, codes: np.ndarray, targets: Any) -> np.ndarray:
        rows = self.constraint.rows(codes, targets)
        multiplier = self.multipliers[0]
        if len(rows.matrix):
            y = _soft(z, rows.matrix, rows.centre, multiplier * len(z) / 2, self.low, self.high)
            gap = float(np.abs(rows.matrix @ y - rows.centre).max())
        else:
            y, gap = np.clip(z, self.low, self.high), 0.0
            self.without_rows += 1
        self._count(len(z))
        self.weighted_gap += len(z) * gap
        self.multipliers = [max(0.0, multiplier + self._eta() * len(z) * (gap - self.eps))]
        self.largest = max(self.largest, self.multipliers[0])
        return y

    def _pooled(self, z: np.ndarray, codes: np.ndarray) -> np.ndarray:
        levels = self.constraint.levels or ()
        hits = [
            np.array(
                [codes[:, attribute] == code for code in self.constraint.codes(codes, attribute)], dtype=float
            )
            for attribute in range(codes.shape[1])
        ]
        if len(hits) != len(levels):
            raise DataError(f"groups with {len(hits)} attributes: levels name {len(levels)}")
        rows = []
        for hit, counts in zip(hits, self.counts, strict=True):
            weighted = hit * (sum(counts) / np.array(counts))[:, None]
            rows += [weighted[b] - weighted[a] for a in range(len(hit)) for b in range(a + 1, len(hit))]
        matrix = np.array(rows)
        pairs = len(matrix)
        held = np.array(self.multipliers)
        y = np.clip(z - matrix.T @ (held[:pairs] - held[pairs:]) / 2, self.low, self.high)
        # Rows of running shares do not sum to zero over a stream, so the scores' level would count as a gap.
        level = self.total / self.samples if self.samples else float(y.mean())
        value = matrix @ (y - level)
        self._count(len(z))
        self.total += float(y.sum())
        drift = np.concatenate((value, -value)) - len(z) * self.eps
        held = np.maximum(0.0, held + self._eta() * drift)
        self.multipliers = held.tolist()
        self.largest = max(self.largest, float(held.max()))
        self.sums = (np.array(self.sums) + value).tolist()
        self.counts = [
            (np.array(counts) + hit.sum(axis=1)).tolist()
            for counts, hit in zip(self.counts, hits, strict=True)
        ]
        return y

    def _count(self, size: int) -> None:
        self.batches += 1
        self.samples += size

    def _eta(self) -> float:
        return self.eta0 / math.sqrt(self.batches)

    def aggregate_gap(self) -> float:
        """What the bound bounds: the weighted mean of the batches' gaps, or the largest pooled weighted row."""
        if not self.samples:
            return 0.0
        if self.mode == "paper":
            return self.weighted_gap / self.samples
        return float(np.abs(self.sums).max()) / self.samples

    def bound(self) -> float:
        """eps + largest multiplier * sqrt(T) / (eta0 S): never below `aggregate_gap`, by telescoping."""
        if not self.samples:
            return self.eps
        return self.eps + self.largest * math.sqrt(self.batches) / (self.eta0 * self.samples)

    def report(self) -> dict[str, float]:
        """Counts, multiplier, aggregate gap and bound of the stream so far."""
        return {
            "batches": self.batches,
            "samples": self.samples,
            "batches_without_rows": self.without_rows,
            "largest_multiplier": self.largest,
            "aggregate_gap": self.aggregate_gap(),
            "bound": self.bound(),
        }

    def state_dict(self) -> dict[str, Any]:
        """The stream's state in plain numbers and lists."""
        return {name: getattr(self, name) for name in STATE} | {"mode": self.mode}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken. Raises DataError for a state of another mode or with parts missing."""
        absent = [name for name in (*STATE, "mode") if name not in state]
        if absent:
            raise DataError(f"state lacks {absent[0]!r}: give what state_dict() returned")
        if state["mode"] != self.mode or len(state["multipliers"]) != len(self.multipliers):
            raise DataError(
                f"state of mode {state['mode']!r}: this projector has mode {self.mode!r} or other groups"
            )
        for name in STATE:
            setattr(self, name, state[name])

    def save(self, path: str | Path) -> None:
        """Writes the state as JSON."""
        Path(path).write_text(json.dumps(self.state_dict()))

    def load(self, path: str | Path) -> None:
        """Reads a state that `save` wrote."""
        self.load_state_dict(json.loads(Path(path).read_text()))


STATE = (
    "batches",
    "samples",
    "without_rows",
    "weighted_gap",
    "total",
    "largest",
    "multipliers",
    "sums",
    "counts",
)


def _soft(
    z: np.ndarray, matrix: np.ndarray, centre: np.ndarray, weight: float, low: float, high: float
) -> np.ndarray:
    """argmin over the box of 0.5 ||y - z||^2 + weight max_rows |A y - c|.

    Its multipliers are those of the projection onto gap <= t at the t where their absolute values sum to `weight`.
    """
    clipped = np.clip(z, low, high)
    value = matrix @ clipped - centre
    if weight == 0:
        return clipped
    if len(matrix) == 1:
        side = float(np.sign(value[0]))
        nu = (
            min(shift_of_row(z, side * matrix[0], side * float(centre[0]), low, high), weight)
            if side
            else 0.0
        )
        return np.clip(z - side * nu * matrix[0], low, high)
    light = _within(z, matrix, centre, 0.0, weight, low, high)
    if light is not None:
        return light
    below, above, y = 0.0, float(np.abs(value).max()), clipped
    for _ in range(HALVINGS):
        middle = 0.5 * (below + above)
        light = _within(z, matrix, centre, middle, weight, low, high)
        if light is None:
            below = middle
        else:
            above, y = middle, light
    return y


def _within(
    z: np.ndarray, matrix: np.ndarray, centre: np.ndarray, gap: float, weight: float, low: float, high: float
) -> np.ndarray | None:
    """The projection onto `gap` when its multipliers sum to at most `weight`, else None."""
    try:
        found = project(z, matrix, centre, gap, low, high)
    except InfeasibleParityError:
        return None
    return found.scores if np.abs(found.nu).sum() <= weight else None
