"""Checks of settings: each refuses with one line that names the field, its value and the remedy."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
from scipy import sparse

from methods.common.errors import ConfigError, DataError


def check_choice(field: str, value: Any, literal: Any) -> None:
    """Raises ConfigError unless `value` is one of a `Literal`'s."""
    allowed = get_args(literal)
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(f"{field} {value!r}: choose one of {', '.join(allowed)}")


def check_flag(field: str, value: Any) -> None:
    """Raises ConfigError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{field} {value!r}: give True or False")


def check_whole(field: str, value: Any, least: int | None = None) -> None:
    """Raises ConfigError unless `value` is an int (no bool) of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise ConfigError(f"{field} {value!r}: give a whole number{bound}")


def check_number(
    field: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
) -> None:
    """Raises ConfigError unless `value` is a finite number within the bounds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not (
        is_number
        and (above is None or value > above)
        and (least is None or value >= least)
        and (below is None or value < below)
    ):
        bounds = [
            f"{word} {bound:g}"
            for word, bound in (("above", above), ("of at least", least), ("below", below))
            if bound is not None
        ]
        raise ConfigError(f"{field} {value!r}: give a number {' and '.join(bounds)}".rstrip())


def check_powers(field: str, rows: Any, power: float = 2.0, dtype: Any = None) -> None:
    """Raises DataError when distances between the rows `[n, d]`, to a power, leave the finite numbers.

    Args:
        field: named in the message.
        rows: dense or sparse.
        power: 2 for squared distances.
        dtype: in which they are computed; None for that of the rows. Integers never leave float64.
    """
    values = rows.data if sparse.issparse(rows) else rows
    computed = np.dtype(values.dtype if dtype is None else dtype)
    if values.size == 0 or not np.issubdtype(values.dtype, np.floating):
        return
    largest = float(max(values.max(), -values.min()))
    # Every difference is at most twice the largest value, and a sum of n powers is still to come.
    room = math.log(float(np.finfo(computed).max)) - math.log(max(rows.shape[0], 2))
    limit = math.exp(room / power) / (2 * math.sqrt(rows.shape[1]))
    if largest > limit:
        raise DataError(
            f"{field} holds values up to {largest:.3g}: powers of distances overflow in {computed}; divide columns by "
            "their scale"
        )
