"""Bounds as a person gives them: one number for all clusters, or one a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np

from methods.common.errors import ConfigError


def bound_values(name: str, given: Any, count: int) -> np.ndarray:
    """The bound of each cluster, `[count]`, a copy.

    Args:
        name: of the field, for the message.
        given: a number, or as many as there are clusters; infinity is one.
        count: number of clusters.

    Raises:
        ConfigError: no numbers, another length, a number below 0, or NaN.
    """
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}={given!r}: give one number or {count}, one a cluster") from None
    if array.ndim > 1 or (array.ndim == 1 and len(array) != count):
        raise ConfigError(f"{name}: has shape {array.shape}; give one number or {count}, one a cluster")
    if np.isnan(array).any() or (array < 0).any():
        raise ConfigError(f"{name}={given}: give numbers of at least 0")
    return np.broadcast_to(array, (count,)).copy()
