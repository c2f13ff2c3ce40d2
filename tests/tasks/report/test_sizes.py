"""Sizes in the report's table and figure."""

import pytest

from tasks.report.lifecycle import megabytes
from tasks.report.summaries import size_in_words


@pytest.mark.parametrize(
    ("size", "shown"),
    [(269_060_000, "269"), (9_960_000, "10.0"), (1_240_000, "1.2"), (123_000, "0.1"), (43_000, "0.04")],
)
def test_a_small_model_is_not_nothing(size: int, shown: str) -> None:
    assert megabytes(size) == shown


@pytest.mark.parametrize(
    ("size", "shown"), [(300 * 2**20, "300.0 MiB"), (2**20 // 5, "0.2 MiB"), (6_000, "5.9 KiB")]
)
def test_a_small_text_is_not_nothing(size: int, shown: str) -> None:
    assert size_in_words(size) == shown
