"""Hard labels: exactly the best ones, and never outside the bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from methods.common.errors import ConfigError, DataError
from methods.sc_fagc import round_bounded
from tests.methods.sc_fagc.oracle import best_total, best_total_by_trial, random_problem


def total(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(scores[np.arange(len(labels)), labels].sum())


@given(
    seed=st.integers(0, 10_000),
    m=st.integers(1, 120),
    c=st.integers(1, 12),
    tight=st.booleans(),
    grid=st.booleans(),
    priced=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_strict_and_as_good_as_the_linear_program(
    seed: int, m: int, c: int, tight: bool, grid: bool, priced: bool
) -> None:
    rng = np.random.default_rng(seed)
    scores, low, high = random_problem(rng, m, c, tight)
    if grid:  # many ties
        scores = np.round(scores * 2) / 2
    prices = rng.normal(size=c) if priced else None
    labels = round_bounded(scores, low, high, prices=prices)
    sizes = np.bincount(labels, minlength=c)
    assert (sizes >= low).all()
    assert (sizes <= high).all()
    if m * c <= 400:
        assert total(scores, labels) == pytest.approx(best_total(scores, low, high), abs=1e-7)


def test_brute_force_agrees() -> None:
    rng = np.random.default_rng(0)
    for _ in range(25):
        m, c = int(rng.integers(1, 8)), int(rng.integers(1, 4))
        scores, low, high = random_problem(rng, m, c)
        found = total(scores, round_bounded(scores, low, high))
        assert found == pytest.approx(best_total_by_trial(scores, low, high), abs=1e-9)


def test_exact_sizes_are_an_assignment_of_rows_to_seats() -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(90, 6))
    seats = np.repeat(np.arange(6), 15)
    rows, columns = linear_sum_assignment(-scores[:, seats])
    labels = round_bounded(scores, 15, 15)
    assert total(scores, labels) == pytest.approx(float(scores[rows, seats[columns]].sum()), abs=1e-9)


def test_fractions_are_tightened_and_rounding_noise_is_not_a_fraction() -> None:
    scores = np.random.default_rng(2).normal(size=(10, 3)) + np.array([3, 0, 0])
    sizes = np.bincount(round_bounded(scores, 1.5, 4.7), minlength=3)
    assert sizes.min() >= 2
    assert sizes.max() <= 4
    assert np.bincount(round_bounded(scores[:9], 3 * (1 + 1e-15), 3 * (1 - 1e-15))).tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (4, 9, "the lower ones add up to 12 and the upper ones to 27 whole rows, and 10 must lie between"),
        (0, 3, "lower bounds of 3 and upper ones of 4 can be met"),
        (3.2, 3.8, "cluster 0 needs at least 3.2 and at most 3.8 rows, and no whole number lies between"),
        (-1, 9, "lower=-1"),
        ([1, 2], 9, r"lower: has shape \(2,\); give one number or 3"),
        (0, np.nan, "upper=nan"),
    ],
)
def test_bounds_that_cannot_be_met(low: object, high: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        round_bounded(np.zeros((10, 3)), low, high)


def test_scores_must_be_numbers() -> None:
    with pytest.raises(DataError, match="scores: needs a finite matrix"):
        round_bounded([[np.inf, 1]], 0, 1)
