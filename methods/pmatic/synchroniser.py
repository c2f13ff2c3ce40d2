"""Intervals and colours: how both sides find the same integer probability from numbers that differ a little.

The encoder has x, the log-odds of the next bit, the decoder y with |x - y| <= Delta. Half-open intervals
J_i = [a_i, b_i) tile the real line; each has a colour and an integer probability P_i / 2^16.

    (C)  same colour and i < j  =>  a_j - b_i >= 2 Delta

The encoder codes the colour of the interval that holds x, then the bit with that interval's probability; the decoder
takes, of the intervals of that colour, the one with a_i - Delta <= y < b_i + Delta.

Theorem A. Within the bound that is the encoder's interval: x in J_i gives a_i - Delta <= y < b_i + Delta, and if
J_j with j > i and the same colour qualified too, y >= a_j - Delta >= b_i + Delta. Theorem B. If (C) fails
somewhere, some y is within Delta of points of both intervals and no decoder that knows the colour and y can tell
them apart.

Edges are whole multiples of 2^-32: what the decoder compares with is the same on every machine.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from methods.common.errors import ConfigError
from methods.pmatic.errors import MismatchError

UNIT = 2.0**-32
# Absorbs what the two sides round in computing x and y from their logits in float64.
SLACK = 1e-9
ONE = 1 << 16  # probabilities are integers out of this
CELL, WINDOW = 0, 1  # the two colours of the usual design
MOST_EDGES = 1 << 16
WIDEST = 1 << 46  # 16,384 in units of 2^-32: beyond every clamp, and exact in float64


def bound_units(Delta: float) -> int:
    """A bound with its slack, rounded up to whole units.

    Raises:
        ConfigError: not a number above 0, or too large to leave room for a boundary.
    """
    if not (isinstance(Delta, int | float) and math.isfinite(Delta) and Delta > 0):
        raise ConfigError(f"Delta = {Delta}: give a number above 0")
    if Delta > 1_000:
        raise ConfigError(f"Delta = {Delta}: above 1000 nats nothing of the model is left; measure it anew")
    return math.ceil((Delta + SLACK) / UNIT)


@dataclass(frozen=True)
class Synchroniser:
    """Coloured intervals over the real line.

    Attributes:
        edges: n - 1 ascending inner edges, in units of 2^-32.
        colours: (n,) small integers.
        probabilities: (n,) of bit 1, integers out of 65536, 1 to 65535.
        bound: Delta with its slack, in the same units.
        kind: "logit": x is log-odds; "tv": x is a probability, and the bound one of total variation.
    """

    edges: tuple[int, ...]
    colours: tuple[int, ...]
    probabilities: tuple[int, ...]
    bound: int
    kind: str = "logit"
    table: tuple[tuple[list[float], list[float], list[int]], ...] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        count = len(self.colours)
        if not 1 <= count <= MOST_EDGES or len(self.edges) != count - 1 or len(self.probabilities) != count:
            raise ConfigError(f"{count} intervals need {count - 1} inner edges and {count} probabilities")
        if any(b <= a for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise ConfigError("the edges of intervals must ascend")
        if self.edges and max(-self.edges[0], self.edges[-1]) > WIDEST:
            raise ConfigError("an edge lies beyond every log-odds")
        if not 0 < self.bound <= WIDEST or self.kind not in ("logit", "tv"):
            raise ConfigError("the bound must be above 0, and its kind logit or tv")
        if not all(0 < p < ONE for p in self.probabilities) or not all(0 <= c <= 1 for c in self.colours):
            raise ConfigError("probabilities are 1 to 65535, colours 0 or 1")
        if (gap := self.smallest_gap()) is not None and gap < 2 * self.bound:
            raise ConfigError(
                f"two intervals of one colour are {gap * UNIT:.3g} apart, less than "
                f"2 Delta = {2 * self.bound * UNIT:.3g}; such a design does not always decode"
            )
        object.__setattr__(self, "table", tuple(self._of_colour(colour) for colour in (CELL, WINDOW)))

    def _of_colour(self, colour: int) -> tuple[list[float], list[float], list[int]]:
        """Lower ends less Delta, upper ends plus Delta, and numbers of the intervals of one colour."""
        starts = [-math.inf, *((edge - self.bound) * UNIT for edge in self.edges)]
        ends = [*((edge + self.bound) * UNIT for edge in self.edges), math.inf]
        chosen = [i for i, c in enumerate(self.colours) if c == colour]
        return [starts[i] for i in chosen], [ends[i] for i in chosen], chosen

    def smallest_gap(self) -> int | None:
        """The smallest distance between two intervals of one colour, in units; None when no colour comes twice."""
        last: dict[int, int] = {}
        gaps = []
        for i, colour in enumerate(self.colours):
            if colour in last:
                gaps.append(self.edges[i - 1] - self.edges[last[colour]])
            last[colour] = i
        return min(gaps, default=None)

    @classmethod
    def windows(
        cls,
        boundaries: Sequence[int],
        bound: int,
        probabilities: Sequence[int] | None = None,
        kind: str = "logit",
    ) -> Synchroniser:
        """The two-colour design: a window of +-Delta around each boundary, cells between.

        Args:
            boundaries: ascending, in units, at least 4 bounds apart.
            bound: in units.
            probabilities: one an interval, cell first; None takes the middle of each.
        """
        edges = [edge for t in boundaries for edge in (t - bound, t + bound)]
        colours = [i % 2 for i in range(len(edges) + 1)]
        chosen = midpoints(edges, kind) if probabilities is None else list(probabilities)
        return cls(tuple(edges), tuple(colours), tuple(chosen), bound, kind)

    # -- the two sides ----------------------------------------------------------------------------------------------

    @property
    def Delta(self) -> float:
        """The bound with its slack."""
        return self.bound * UNIT

    @property
    def boundaries(self) -> np.ndarray:
        """Middles of the windows."""
        edges = np.asarray(self.edges, dtype=np.float64) * UNIT
        return (edges[0::2] + edges[1::2]) / 2

    def coordinate(self, log_odds: np.ndarray) -> np.ndarray:
        """What the intervals lie on: log-odds, or probabilities when the bound is one of total variation."""
        return log_odds if self.kind == "logit" else 1 / (1 + np.exp(-log_odds))

    def locate(self, x: np.ndarray) -> np.ndarray:
        """The encoder's side: the interval that holds each coordinate."""
        return np.searchsorted(np.asarray(self.edges, dtype=np.float64) * UNIT, x, side="right")

    def recover(self, colour: int, y: float) -> int:
        """The decoder's side: the interval, from the colour and one's own coordinate.

        Raises:
            MismatchError: no interval of that colour is within Delta of y; the bound was violated.
        """
        starts, ends, numbers = self.table[colour]
        found = bisect_right(starts, y) - 1
        if found < 0 or not y < ends[found]:
            raise MismatchError("the models are farther apart than the bound")
        return numbers[found]

    # -- what it costs ----------------------------------------------------------------------------------------------

    def redundancy(self, log_odds: np.ndarray, helper: float | None = None) -> dict[str, float]:
        """Expected cost over the model's own, in bits an event.

        Args:
            log_odds: of the events.
            helper: fixed probability of colour 1; None takes the share of the events themselves, which an adaptive
                counter reaches.

        Returns:
            helper: bits for colours; quantisation: expected bits lost by P_i instead of the model's own probability;
            total; helper_rate: share of events with colour 1; ideal: the model's own expected bits.
        """
        x = np.asarray(log_odds, dtype=np.float64)
        number = self.locate(self.coordinate(x))
        rate = float(np.mean(np.asarray(self.colours)[number])) if len(x) else 0.0
        coded = rate if helper is None else helper
        cost = _cross(rate, coded)
        p = np.asarray(self.probabilities)[number] / ONE
        loss = float(np.mean(divergence(x, p))) if len(x) else 0.0
        return {
            "helper": cost,
            "quantisation": loss,
            "total": cost + loss,
            "helper_rate": rate,
            "ideal": float(np.mean(binary_entropy(x))) if len(x) else 0.0,
        }


def midpoints(edges: Sequence[int], kind: str) -> list[int]:
    """The probability in the middle of each interval; the outer ones are taken as wide as their neighbours."""
    if not edges:
        return [ONE // 2]
    at = np.asarray(edges, dtype=np.float64) * UNIT
    low, high = (0.0, 1.0) if kind == "tv" else (at[0] - 1.0, at[-1] + 1.0)
    ends = np.concatenate([[low], at, [high]])
    middle = (ends[:-1] + ends[1:]) / 2
    p = middle if kind == "tv" else 1 / (1 + np.exp(-middle))
    return [clip_probability(value) for value in p]


def clip_probability(p: float) -> int:
    """A probability as an integer out of 65536, never 0 or 1."""
    return min(max(round(ONE * float(p)), 1), ONE - 1)


def binary_entropy(log_odds: np.ndarray) -> np.ndarray:
    """Entropy in bits of bits with these log-odds."""
    p = 1 / (1 + np.exp(-log_odds))
    return np.asarray((np.logaddexp(0, log_odds) - p * log_odds) / math.log(2))


def divergence(log_odds: np.ndarray, p: np.ndarray) -> np.ndarray:
    """KL(Bern(sigma(x)) || Bern(p)) in bits: A(z) - A(x) - A'(x) (z - x) with A(x) = log(1 + e^x), z = logit p."""
    z = np.log(p) - np.log1p(-p)
    mean = 1 / (1 + np.exp(-log_odds))
    found = np.logaddexp(0, z) - np.logaddexp(0, log_odds) - mean * (z - log_odds)
    return np.asarray(np.maximum(found, 0) / math.log(2))


def _cross(rate: float, coded: float) -> float:
    """Bits an event when events of share `rate` are coded with probability `coded`."""
    coded = min(max(coded, 1 / ONE), 1 - 1 / ONE)
    return -(rate * math.log2(coded) + (1 - rate) * math.log2(1 - coded))
