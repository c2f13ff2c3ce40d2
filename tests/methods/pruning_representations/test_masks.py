"""Masks: exact counts, order of ties, patterns; against brute force and torch.nn.utils.prune."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn
from torch.nn.utils import prune

from methods.common.errors import ConfigError, NumericalError
from methods.pruning_representations import keep_mask, parse_pattern

# Few distinct values, so that most draws are full of ties.
scores_with_ties = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 6).map(lambda n: 8 * n)),
    elements=st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]),
)


def brute_force(values: np.ndarray, count: int) -> np.ndarray:
    """Keep all but the `count` lowest of a flat list, lower index first among equals."""
    order = sorted(range(len(values)), key=lambda index: (values[index], index))
    keep = np.ones(len(values), dtype=bool)
    keep[order[:count]] = False
    return keep


@settings(max_examples=60, deadline=None)
@given(values=scores_with_ties, sparsity=st.floats(0, 0.99))
def test_unstructured_equals_brute_force(values: np.ndarray, sparsity: float) -> None:
    tensor = torch.from_numpy(values)
    by_row = keep_mask(tensor, sparsity=sparsity, compare="row").numpy()
    count = round(sparsity * values.shape[1])
    np.testing.assert_array_equal(by_row, np.stack([brute_force(row, count) for row in values]))
    whole = keep_mask(tensor, sparsity=sparsity, compare="layer").numpy()
    expected = brute_force(values.ravel(), round(sparsity * values.size))
    np.testing.assert_array_equal(whole.ravel(), expected)


@settings(max_examples=60, deadline=None)
@given(values=scores_with_ties, pattern=st.sampled_from([(2, 4), (4, 8), (1, 4), (3, 4), (1, 2)]))
def test_n_of_m_equals_brute_force_and_is_exact(values: np.ndarray, pattern: tuple[int, int]) -> None:
    n, m = pattern
    keep = keep_mask(torch.from_numpy(values), sparsity=1 - n / m, pattern=pattern).numpy().reshape(-1, m)
    assert (keep.sum(axis=1) == n).all()
    np.testing.assert_array_equal(
        keep, np.stack([brute_force(group, m - n) for group in values.reshape(-1, m)])
    )


@pytest.mark.parametrize("sparsity", [0.1, 0.29, 0.5, 0.77])
def test_magnitude_of_a_layer_equals_torch(sparsity: float) -> None:
    layer = nn.Linear(48, 33, bias=False)
    mine = keep_mask(layer.weight.abs(), sparsity=sparsity, compare="layer")
    prune.l1_unstructured(layer, "weight", amount=sparsity)
    assert torch.equal(mine, layer.weight_mask.bool())


@pytest.mark.parametrize("pattern", [None, (2, 4)])
def test_sparsity_zero_keeps_everything(pattern: tuple[int, int] | None) -> None:
    assert keep_mask(torch.zeros(3, 8), sparsity=0, pattern=pattern).all()


def test_half_precision_scores_and_an_empty_layer() -> None:
    scores = torch.arange(16, dtype=torch.bfloat16).reshape(2, 8)
    assert keep_mask(scores, sparsity=0.5).tolist() == [[False] * 4 + [True] * 4] * 2
    assert keep_mask(torch.empty(0, 8), sparsity=0.5).shape == (0, 8)


def test_nan_scores_are_refused() -> None:
    scores = torch.ones(2, 8)
    scores[1, 3] = float("nan")
    with pytest.raises(NumericalError, match="NaN"):
        keep_mask(scores, sparsity=0.5)


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 1.5, float("nan"), "half"])
def test_sparsity_out_of_bounds(sparsity: Any) -> None:
    with pytest.raises(ConfigError, match=r"sparsity .*\[0, 1\)"):
        keep_mask(torch.ones(2, 8), sparsity=sparsity)


def test_contradiction_of_pattern_and_sparsity() -> None:
    with pytest.raises(ConfigError, match=r"sparsity 0\.6: the pattern 2:4 removes exactly 0\.5"):
        keep_mask(torch.ones(2, 8), sparsity=0.6, pattern=(2, 4))


def test_width_that_the_group_does_not_divide() -> None:
    with pytest.raises(ConfigError, match="10 inputs are no multiple of 4"):
        keep_mask(torch.ones(2, 10), sparsity=0.5, pattern=(2, 4))


def test_patterns_in_words() -> None:
    assert parse_pattern("2:4") == parse_pattern((2, 4)) == (2, 4)
    assert parse_pattern("unstructured") is None
    assert parse_pattern(None) is None


@pytest.mark.parametrize("pattern", ["4:2", "2:2", "0:4", "two", (0, 4), (4, 4), "2:4:8", (1, 2, 3)])
def test_patterns_that_are_none(pattern: str | tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="pattern"):
        parse_pattern(pattern)
