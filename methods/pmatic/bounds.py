"""How far two machines' bits can be apart: the bounds that the interval design rests on.

On the same context the encoder has logits u, the decoder v, and d = u - v. For a split of any set of tokens into S0
and S1 the bit's log-odds is L(u) = logsumexp(u over S1) - logsumexp(u over S0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from methods.common.errors import ConfigError


def logit_range(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Delta = max d - min d over the last axis: the largest move of any bit's log-odds, for every tree and node.

    logsumexp over a set moves by something in [min d, max d], so |L(u) - L(v)| <= max d - min d <= 2 max |d|. A
    constant added to all logits changes nothing, as it changes no probability.

    Args:
        u, v: (..., V) logits of the same contexts.

    Returns:
        (...) ranges in nats.
    """
    difference = np.asarray(u, dtype=np.float64) - np.asarray(v, dtype=np.float64)
    return np.asarray(difference.max(-1) - difference.min(-1))


def log_odds(logits: np.ndarray, ones: Sequence[int], zeros: Sequence[int]) -> float:
    """L of one split, computed the plain way (the coder walks a tree instead)."""
    u = np.asarray(logits, dtype=np.float64)
    return float(np.logaddexp.reduce(u[list(ones)]) - np.logaddexp.reduce(u[list(zeros)]))


def extremal_noise(size: int, ones: Sequence[int], Delta: float) -> np.ndarray:
    """The noise of range Delta that moves the split's log-odds by exactly Delta: the bound is attained.

    Returns:
        (size,) what to add to the logits.
    """
    noise = np.zeros(size)
    noise[list(ones)] = Delta
    return noise


def probability_move(Delta: float) -> float:
    """The largest move of a bit's probability when its log-odds moves by Delta: tanh(Delta / 4), around p = 1/2."""
    return math.tanh(Delta / 4)


def total_variation(epsilon: float) -> float:
    """Base PMATIC's proposition 1: |u - v| <= epsilon in every logit gives d_CTV <= tanh(epsilon / 2)."""
    return math.tanh(epsilon / 2)


def Delta_of(delta: float) -> float:
    """The log-odds bound that stands beside base PMATIC's delta.

    Logits within epsilon = 2 delta of each other have d of range at most 2 epsilon.
    """
    if not (delta > 0 and math.isfinite(delta)):
        raise ConfigError(f"delta = {delta}: give a number above 0")
    return 4 * delta
