"""A claim of a paper against what a study measured: one number a seed, a bar, and the rule that decides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

Rule = Literal["each", "mean", "two_thirds", "interval", "report"]


@dataclass(frozen=True)
class Claim:
    """Numbers against a bar.

    Attributes:
        name: key of metrics.json.
        text: the claim in words.
        values: one a seed, or the one number of a deterministic measurement.
        bar: what they are held against; None only reports.
        sense: ">=" or "<=".
        rule: what must meet the bar: `each` value, their `mean`, `two_thirds` of them, or the whole 95 % `interval` of
            the mean; `report` only reports.
    """

    name: str
    text: str
    values: tuple[float, ...]
    bar: float | None = None
    sense: str = ">="
    rule: Rule = "each"

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def spread(self) -> float:
        """Standard deviation over seeds (n - 1); 0 with one value."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % t interval of the mean; infinite with one value."""
        if len(self.values) < 2:
            return -math.inf, math.inf
        half = float(stats.t.ppf(0.975, len(self.values) - 1)) * self.spread / math.sqrt(len(self.values))
        return self.mean - half, self.mean + half

    @property
    def held(self) -> bool | None:
        """Whether the claim held; None when nothing decides."""
        bar = self.bar
        if bar is None or self.rule == "report":
            return None
        tested = {"mean": (self.mean,), "interval": self.interval}.get(self.rule, self.values)
        met = [value >= bar if self.sense == ">=" else value <= bar for value in tested]
        return 3 * sum(met) >= 2 * len(met) if self.rule == "two_thirds" else all(met)
