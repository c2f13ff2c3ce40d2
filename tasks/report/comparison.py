"""Candidates side by side: scores with confidence intervals, paired differences, the table that people read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

Z95 = 1.959963984540054


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % confidence interval (normal approximation), e.g. of accuracy in [0, 1]."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    def points(self) -> str:
        """As percentage points with the interval."""
        return f"{100 * self.mean:+.1f} points, 95% CI {100 * self.low:+.1f} to {100 * self.high:+.1f}"


def stratified_mean(values: Sequence[np.ndarray]) -> Interval:
    """Mean over tasks of the mean over items, each task with equal weight.

    Args:
        values: one array of per-item values a task.
    """
    means = [float(np.mean(v)) for v in values]
    variances = [float(np.var(v, ddof=1)) / len(v) if len(v) > 1 else 0.0 for v in values]
    mean = float(np.mean(means))
    half = Z95 * float(np.sqrt(sum(variances))) / len(values)
    return Interval(mean, mean - half, mean + half)


def score(items: pd.DataFrame, column: str, tasks: Sequence[str] | None = None) -> Interval:
    """Mean of a per-item column over tasks.

    Args:
        items: rows with `task`, `id` and the column.
        column: the per-item value.
        tasks: restrict to these; default all.
    """
    chosen = items if tasks is None else items[items.task.isin(list(tasks))]
    return stratified_mean([group[column].to_numpy(float) for _, group in chosen.groupby("task")])


def paired_difference(
    items: pd.DataFrame, other: pd.DataFrame, column: str, tasks: Sequence[str] | None = None
) -> Interval:
    """Mean over tasks of the per-item difference `items - other` on the same items.

    Raises:
        ValueError: when the two were not scored on the same items.
    """
    joined = items.merge(other, on=["task", "id"], suffixes=("", "_other"), validate="one_to_one")
    if len(joined) != len(items) or len(joined) != len(other):
        raise ValueError("paired difference: the two candidates were scored on different items")
    joined["difference"] = joined[column].astype(float) - joined[f"{column}_other"].astype(float)
    return score(joined, "difference", tasks)


def shown_table(rows: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """Cells as text; a value that a candidate does not have is a dash."""
    return pd.DataFrame(list(rows)).fillna("-")
