"""Anchors and the graph: shares, weights and similarity against their definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.spatial.distance import cdist

from methods.common.errors import ConfigError, DataError
from methods.sc_fagc import anchor_graph, anchor_similarity, balanced_anchors
from methods.sc_fagc import anchors as anchors_module


def weights_by_definition(x: np.ndarray, anchors: np.ndarray, s: int) -> np.ndarray:
    d = cdist(x, anchors, "sqeuclidean")
    found = np.zeros_like(d)
    for i, row in enumerate(d):
        near = np.argsort(row, kind="stable")[: s + 1]
        last = row[near[-1]]
        bottom = s * last - row[near[:-1]].sum()
        found[i, near[:-1]] = (last - row[near[:-1]]) / bottom if bottom > 1e-12 else 1 / s
    return found


@given(seed=st.integers(0, 999), n=st.integers(3, 60), m=st.integers(3, 20), s=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_weights_are_the_definition_and_rows_sum_to_one(seed: int, n: int, m: int, s: int) -> None:
    s = min(s, m - 1)
    rng = np.random.default_rng(seed)
    x, anchors = rng.normal(size=(n, 4)), rng.normal(size=(m, 4))
    graph = anchor_graph(x, anchors, s)
    assert np.abs(graph.toarray() - weights_by_definition(x, anchors, s)).max() <= 1e-9
    assert np.abs(graph.sum(axis=1) - 1).max() <= 1e-12
    assert graph.nnz == n * s
    far = anchor_graph(1000 * x + 1000, 1000 * anchors + 1000, s)
    assert np.abs((far - graph).toarray()).max() <= 1e-6
    assert np.abs((anchor_graph(sparse.csr_array(x), anchors, s) - graph).toarray()).max() <= 1e-9


def test_ties_share_evenly() -> None:
    corners = np.array([[0.0, 1], [1, 0], [0, -1], [-1, 0]])
    graph = anchor_graph(np.zeros((2, 2)), corners, 3).toarray()
    assert ((graph == 0) | (graph == 1 / 3)).all()
    assert (graph.sum(axis=1) == 1).all()


def test_the_similarity_is_normalised_and_positive() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 5))
    graph = anchor_graph(x, balanced_anchors(x, 32, np.random.RandomState(0)), 5)
    similarity, degrees = anchor_similarity(graph)
    dense = graph.toarray()
    wanted = dense.T @ dense / np.sqrt(np.outer(dense.sum(axis=0), dense.sum(axis=0)))
    assert np.abs(similarity - wanted).max() <= 1e-12
    values = np.linalg.eigvalsh(similarity)
    assert values[0] >= -1e-12
    assert values[-1] == pytest.approx(1.0, abs=1e-12)
    assert similarity.min() >= 0
    assert degrees.sum() == pytest.approx(400)


@pytest.mark.parametrize("n", [64, 100, 1000])
def test_every_anchor_stands_for_an_equal_share(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(size=(n - n // 4, 3)), rng.normal(size=(n // 4, 3)) + 6])
    groups = []
    mean = anchors_module._mean
    monkeypatch.setattr(anchors_module, "_mean", lambda x, group: (groups.append(group), mean(x, group))[1])
    anchors = balanced_anchors(x, 16, np.random.RandomState(0))
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    assert sorted(np.concatenate(groups)) == list(range(n))
    assert np.abs(anchors - np.stack([x[group].mean(axis=0) for group in groups])).max() <= 1e-12


def test_large_groups_are_split_by_a_sample_into_equal_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(2).normal(size=(2_001, 4)).astype(np.float32)
    monkeypatch.setattr(anchors_module, "SAMPLE", 200)
    monkeypatch.setattr(anchors_module, "CHUNK", 300)
    first, second = anchors_module._halves(x, np.arange(2_001), np.random.RandomState(0))
    assert (len(first), len(second)) == (1_000, 1_001)
    direction = x[second].mean(axis=0) - x[first].mean(axis=0)
    assert np.median(x[second] @ direction) > np.median(x[first] @ direction)


def test_sparse_and_dense_samples_have_the_same_anchors() -> None:
    x = np.random.default_rng(3).poisson(0.5, size=(300, 20)).astype(float)
    dense = balanced_anchors(x, 16, np.random.RandomState(0))
    assert np.abs(balanced_anchors(sparse.csr_array(x), 16, np.random.RandomState(0)) - dense).max() <= 1e-12


def test_mistakes() -> None:
    with pytest.raises(ConfigError, match="n_neighbors=4: give 1 to 3, below the 4 anchors"):
        anchor_graph(np.zeros((5, 2)), np.zeros((4, 2)), 4)
    with pytest.raises(DataError, match="X has 2 features, but the anchors have 3"):
        anchor_graph(np.zeros((5, 2)), np.zeros((4, 3)), 1)


def test_refined_anchors_are_a_few_steps_of_k_means() -> None:
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(size=(150, 3)), rng.normal(size=(50, 3)) + 6])
    start = balanced_anchors(x, 8, np.random.RandomState(0))
    moved = start.copy()
    for _ in range(3):
        nearest = cdist(x, moved).argmin(axis=1)
        moved = np.stack([x[nearest == j].mean(axis=0) for j in range(8)])
    found = anchors_module.choose_anchors(x, 8, "bkhk", np.random.RandomState(0), 3)
    assert np.abs(found - moved).max() <= 1e-9
    kept = anchors_module.choose_anchors(x, 8, "bkhk", np.random.RandomState(0), 0)
    assert (kept == start).all()
