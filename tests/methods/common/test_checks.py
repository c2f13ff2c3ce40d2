"""Checks of settings: what is right passes, what is wrong is one line with field, value and remedy."""

import math
from typing import Any, Literal

import pytest

from methods.common.checks import check_choice, check_flag, check_number, check_whole
from methods.common.errors import ConfigError

Kind = Literal["a", "b"]


@pytest.mark.parametrize("value", ["c", None, 1, ["a"], "A"])
def test_choices(value: Any) -> None:
    check_choice("kind", "b", Kind)
    with pytest.raises(ConfigError) as error:
        check_choice("kind", value, Kind)
    assert str(error.value) == f"kind {value!r}: choose one of a, b"


@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_flags(value: Any) -> None:
    check_flag("on", True)
    with pytest.raises(ConfigError) as error:
        check_flag("on", value)
    assert str(error.value) == f"on {value!r}: give True or False"


@pytest.mark.parametrize("value", [0, 2.0, "2", None, True])
def test_whole_numbers(value: Any) -> None:
    check_whole("count", 1, 1)
    check_whole("count", -5)
    with pytest.raises(ConfigError) as error:
        check_whole("count", value, 1)
    assert str(error.value) == f"count {value!r}: give a whole number of at least 1"


@pytest.mark.parametrize("value", [0, 1, -0.5, math.nan, math.inf, "0.5", None, True])
def test_numbers(value: Any) -> None:
    check_number("share", 0.5, above=0, below=1)
    check_number("share", 0, least=0)
    check_number("share", -7.5)
    with pytest.raises(ConfigError) as error:
        check_number("share", value, above=0, below=1)
    assert str(error.value) == f"share {value!r}: give a number above 0 and below 1"
