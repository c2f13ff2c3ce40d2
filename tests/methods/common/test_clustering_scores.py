"""Scores of labels against a truth, by hand on small cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.common.clustering_scores import clustering_scores, size_facts


def test_by_hand() -> None:
    truth = [0, 0, 0, 1, 1, 2]
    labels = [1, 1, 0, 0, 0, 2]
    found = clustering_scores(truth, labels)
    assert found["acc"] == pytest.approx(5 / 6)
    assert found["purity"] == pytest.approx(5 / 6)
    # Pairs together in both: (0, 1), (3, 4); in the labels 4 pairs, in the truth 4.
    assert found["precision"] == pytest.approx(2 / 4)
    assert found["recall"] == pytest.approx(2 / 4)
    assert found["f_score"] == pytest.approx(2 / 4)


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=30), st.permutations(range(5)))
def test_names_of_clusters_do_not_matter(truth: list[int], names: list[int]) -> None:
    found = clustering_scores(truth, [names[t] for t in truth])
    assert all(value == pytest.approx(1.0) for value in found.values())


def test_sizes() -> None:
    labels = np.repeat([0, 1, 2], [10, 20, 30])
    facts = size_facts(labels, 4, 5, 25)
    assert facts == {"smallest": 0, "largest": 30, "size_ratio": 30.0, "overshoot": 1.0}
    assert size_facts(labels, 3, [10, 20, 20], [10, 20, 40])["overshoot"] == 0


def test_no_bound_is_never_missed() -> None:
    assert size_facts([0, 0, 1], 2, 0, np.inf)["overshoot"] == 0
