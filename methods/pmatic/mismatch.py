"""How far two computations of one model are apart, measured on text other than what will be compressed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from methods.common.errors import ConfigError, DataError
from methods.pmatic.bounds import logit_range
from methods.pmatic.predictor import Predictor
from methods.pmatic.tree import CodeTree

SMALLEST = (
    1e-6  # machines that agree to the last bit here may not agree elsewhere; this costs next to nothing
)
SAFETY = 4.0


@dataclass(frozen=True)
class MismatchReport:
    """Distances between two predictors on the same contexts, in nats.

    Attributes:
        tokens, events: how many were compared.
        largest, q999, median: of |x - y| over path events.
        step_range: the largest max d - min d over all tokens of the vocabulary: bounds every event of every tree.
    """

    tokens: int
    events: int
    largest: float
    q999: float
    median: float
    step_range: float

    @property
    def violation_rate(self) -> float:
        """Upper 95 % limit of the share of events beyond `largest`, by the rule of three."""
        return min(1.0, 3 / self.events) if self.events else 1.0

    def Delta(self, safety: float = SAFETY, conservative: bool = False) -> float:
        """The bound to declare: the largest event, or the largest step range, times a safety factor."""
        if not safety >= 1:
            raise ConfigError(f"safety = {safety}: give a factor of at least 1")
        return max(SMALLEST, safety * (self.step_range if conservative else self.largest))

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "violation_rate": self.violation_rate}


def in_blocks(rows: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """The same rows in blocks of `size`."""
    waiting: list[np.ndarray] = []
    count = 0
    for block in rows:
        waiting.append(block)
        count += len(block)
        while count >= size:
            joined = np.concatenate(waiting)
            yield joined[:size]
            waiting, count = [joined[size:]], count - size
    if count:
        yield np.concatenate(waiting)


def as_texts(tokens: Any, vocabulary: int) -> list[np.ndarray]:
    """One row of tokens, or several, as arrays of valid ids.

    Raises:
        DataError: an id out of range, or what is no row of integers.
    """
    several = isinstance(tokens, list | tuple) and len(tokens) and np.ndim(tokens[0]) == 1
    found = []
    for text in tokens if several else [tokens]:
        row = np.asarray(text)
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            raise DataError("tokens must be one row of integers")
        row = row.astype(np.int64)
        if row.size and (row.min() < 0 or row.max() >= vocabulary):
            bad = row[(row < 0) | (row >= vocabulary)][0]
            raise DataError(f"token {bad} is outside 0 to {vocabulary - 1}, the model's vocabulary")
        found.append(row)
    return found


def estimate_mismatch(
    first: Predictor, second: Predictor, tokens: Any, tree: CodeTree | None = None
) -> MismatchReport:
    """Compare two predictors token by token on the same texts.

    Args:
        first, second: the two computations, e.g. a parallel pass and cached single steps (`Steps`), or two number
            formats.
        tokens: one text or several, none of them the one to be compressed.
        tree: whose path events are compared; None takes the flat one.

    Raises:
        DataError: no tokens, or ids out of range. ConfigError: different vocabularies.
    """
    if first.vocabulary != second.vocabulary:
        raise ConfigError(
            f"the predictors have {first.vocabulary} and {second.vocabulary} tokens; they must agree"
        )
    chosen = tree or CodeTree.flat(first.vocabulary)
    distances: list[np.ndarray] = []
    steps, largest = 0, 0.0
    for text in as_texts(tokens, first.vocabulary):
        at = 0
        for u, v in zip(in_blocks(first.score(text), 64), in_blocks(second.score(text), 64), strict=True):
            part = text[at : at + len(u)]
            x, _, _ = chosen.events(u, part)
            y, _, _ = chosen.events(v, part)
            distances.append(np.abs(x - y))
            largest = max(largest, float(logit_range(u, v).max()))
            at += len(u)
        steps += len(text)
    if not steps:
        raise DataError("the mismatch cannot be measured without tokens; give calibration text")
    found = np.concatenate(distances)
    if not found.size:
        found = np.zeros(1)
    q999, median = (float(q) for q in np.quantile(found, [0.999, 0.5]))
    return MismatchReport(steps, int(found.size), float(found.max()), q999, median, largest)
