"""The three ways in which a method refuses to go on.

A user's mistake is one line that names the field, the value and the remedy; the command line turns
`ConfigError` and `DataError` into exit status 2 and prints the line without a traceback.
"""

from __future__ import annotations

from numbers import Integral


class ConfigError(ValueError):
    """A setting is wrong or does not fit the others: known before any work starts."""


class DataError(ValueError):
    """An input (file, data set, model) is missing, damaged, or does not fit the others."""


class NumericalError(RuntimeError):
    """A computation left the finite numbers (NaN, infinity) or did not converge."""


def at_least(field: str, value: int, least: int) -> int:
    """Refuse a number that is no integer or too small. Raises ConfigError."""
    if not isinstance(value, Integral) or value < least:
        raise ConfigError(f"{field} {value!r}: give an integer of at least {least}")
    return int(value)
