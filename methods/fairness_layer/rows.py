"""Parity notions as affine rows of a batch: |A y - c| <= eps, row by row (section 2.1 of the method).

Every notion answers `rows(groups, targets)` with the rows of the batch that it saw. A group that is absent from the
batch has no mean: its rows are left out and its name stands in `ParityRows.missing`, never silently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from methods.common.errors import ConfigError, DataError

Levels = Sequence[Sequence[int]]


@dataclass(frozen=True)
class ParityRows:
    """Rows of one batch: `matrix` [m, b], `centre` [m], a label for each row, and what the batch could not give."""

    matrix: np.ndarray
    centre: np.ndarray
    labels: tuple[str, ...]
    missing: tuple[str, ...] = ()


def as_groups(groups: Any, size: int) -> np.ndarray:
    """Group codes as int64 [b, attributes]; raises DataError for another length or for values that are not whole."""
    codes = np.asarray(groups)
    codes = codes[:, None] if codes.ndim == 1 else codes
    if codes.ndim != 2 or len(codes) != size:
        raise DataError(f"groups of shape {codes.shape}: give one row of codes for each of the {size} scores")
    if codes.dtype.kind not in "iub" and not (
        codes.dtype.kind == "f" and np.isfinite(codes).all() and (codes == np.round(codes)).all()
    ):
        raise DataError(f"groups of dtype {codes.dtype}: give whole numbers, one column an attribute")
    return codes.astype(np.int64)


def as_targets(targets: Any, size: int, notion: str) -> np.ndarray:
    """Targets as float64 [b]; raises DataError when they are missing, too few or not finite."""
    if targets is None:
        raise DataError(f"targets None: {notion} needs the true target of each score")
    values = np.asarray(targets, dtype=np.float64).reshape(-1)
    if len(values) != size:
        raise DataError(f"targets of length {len(values)}: give one for each of the {size} scores")
    if not np.isfinite(values).all():
        raise DataError("targets hold NaN or infinity: drop or fill those rows")
    return values


@dataclass
class _Collected:
    """Rows while they are gathered."""

    matrix: list[np.ndarray] = field(default_factory=list)
    centre: list[float] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def done(self, size: int) -> ParityRows:
        matrix = np.array(self.matrix) if self.matrix else np.zeros((0, size))
        return ParityRows(matrix, np.array(self.centre), tuple(self.labels), tuple(self.missing))


@dataclass(frozen=True)
class ParityConstraint(ABC):
    """What every notion shares.

    Args:
        levels: the codes that each attribute may have; None for those of the batch. With levels, a code outside
            them is refused and a code that a batch lacks is reported as missing.
    """

    levels: Levels | None = None
    needs_targets = False

    @abstractmethod
    def rows(self, groups: np.ndarray, targets: np.ndarray | None) -> ParityRows:
        """The rows of one batch; `groups` [b, attributes]."""

    def codes(self, groups: np.ndarray, attribute: int) -> list[int]:
        """Codes of one attribute, after the check that none is unknown."""
        present = [int(code) for code in np.unique(groups[:, attribute])]
        if self.levels is None:
            return present
        if len(self.levels) != groups.shape[1]:
            raise ConfigError(
                f"levels for {len(self.levels)} attributes, groups with {groups.shape[1]}: give one list a column"
            )
        known = [int(code) for code in self.levels[attribute]]
        unseen = sorted(set(present) - set(known))
        if unseen:
            raise DataError(
                f"groups hold the unseen code {unseen[0]} in attribute {attribute}: known are {known}"
            )
        return known


def _pairs(
    into: _Collected, codes: list[int], column: np.ndarray, rows: np.ndarray, name: str, all_codes: list[int]
) -> None:
    """Adds mean(one) - mean(other) over `rows` for every pair of codes that has samples."""
    means = {}
    for code in all_codes:
        inside = rows & (column == code)
        if inside.any():
            means[code] = inside / inside.sum()
        else:
            into.missing.append(f"{name}={code}")
    for one, other in combinations([code for code in codes if code in means], 2):
        into.matrix.append(means[other] - means[one])
        into.centre.append(0.0)
        into.labels.append(f"{name}: {other} - {one}")


@dataclass(frozen=True)
class MeanParity(ParityConstraint):
    """Mean scores of any two groups of an attribute differ by at most eps (parity of scores, not of decisions)."""

    def rows(self, groups: np.ndarray, targets: np.ndarray | None = None) -> ParityRows:
        """One row for each pair of groups of each attribute."""
        into = _Collected()
        everyone = np.ones(len(groups), dtype=bool)
        for attribute in range(groups.shape[1]):
            codes = self.codes(groups, attribute)
            _pairs(into, codes, groups[:, attribute], everyone, f"attribute {attribute}", codes)
        return into.done(len(groups))


@dataclass(frozen=True)
class MeanResidual(ParityConstraint):
    """The mean of score minus target lies within eps of 0 in every group; groups of several attributes overlap."""

    needs_targets = True

    def rows(self, groups: np.ndarray, targets: np.ndarray | None = None) -> ParityRows:
        """One row for each group of each attribute, centred at the group's mean target."""
        truth = as_targets(targets, len(groups), "MeanResidual")
        into = _Collected()
        for attribute in range(groups.shape[1]):
            for code in self.codes(groups, attribute):
                inside = groups[:, attribute] == code
                if not inside.any():
                    into.missing.append(f"attribute {attribute}={code}")
                    continue
                into.matrix.append(inside / inside.sum())
                into.centre.append(float(truth[inside].mean()))
                into.labels.append(f"attribute {attribute}={code}: residual")
        return into.done(len(groups))


@dataclass(frozen=True)
class EqualizedOddsMean(ParityConstraint):
    """Mean scores of any two groups differ by at most eps among target 0 and, apart, among target 1."""

    needs_targets = True

    def rows(self, groups: np.ndarray, targets: np.ndarray | None = None) -> ParityRows:
        """Rows of `MeanParity` for each of the two classes."""
        truth = as_targets(targets, len(groups), "EqualizedOddsMean")
        if not np.isin(truth, (0.0, 1.0)).all():
            raise DataError(
                "targets of EqualizedOddsMean hold values other than 0 and 1: give the class of each row"
            )
        into = _Collected()
        for attribute in range(groups.shape[1]):
            codes = self.codes(groups, attribute)
            for label in (0, 1):
                name = f"attribute {attribute} | target {label}"
                _pairs(into, codes, groups[:, attribute], truth == label, name, codes)
        return into.done(len(groups))


@dataclass(frozen=True)
class AffineRows(ParityConstraint):
    """Rows of the user's own.

    Args:
        function: from (groups [b, attributes], targets [b] or None) to (A [m, b], c [m]).
    """

    function: Callable[[np.ndarray, np.ndarray | None], tuple[Any, Any]] | None = None

    def rows(self, groups: np.ndarray, targets: np.ndarray | None = None) -> ParityRows:
        """What the function gives, checked for shape and finite numbers."""
        if self.function is None:
            raise ConfigError("function None: give AffineRows a function that returns (A, c)")
        matrix, centre = self.function(groups, targets)
        matrix, centre = np.asarray(matrix, dtype=np.float64), np.asarray(centre, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[1] != len(groups) or centre.shape != (len(matrix),):
            raise DataError(
                f"function gave A {matrix.shape} and c {centre.shape}: give A [m, {len(groups)}] and c [m]"
            )
        if not (np.isfinite(matrix).all() and np.isfinite(centre).all()):
            raise DataError("function gave NaN or infinity: return finite rows")
        return ParityRows(matrix, centre, tuple(f"row {row}" for row in range(len(matrix))))
