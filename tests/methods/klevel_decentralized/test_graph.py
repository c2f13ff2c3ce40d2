"""Mixing matrices against networkx's own answers, and every graph that must be refused."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.common.errors import ConfigError
from methods.klevel_decentralized import Graph

GRAPHS = {
    "ring": Graph.ring(7),
    "pair": Graph.ring(2),
    "alone": Graph.ring(1),
    "path": Graph.path(5),
    "star": Graph.star(6),
    "torus": Graph.torus(3, 4),
    "complete": Graph.complete(5),
    "random": Graph.erdos_renyi(9, 0.4, seed=3),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_repeated_mixing_takes_everybody_to_the_mean(name: str) -> None:
    graph = GRAPHS[name]
    rows = np.random.default_rng(0).normal(size=(graph.agents, 3))
    away = np.linalg.norm(rows - rows.mean(0))
    for _ in range(20):
        rows = graph.weights @ rows
    assert np.linalg.norm(rows - rows.mean(0)) <= graph.lambda2**20 * away + 1e-12


def test_the_ring_has_the_eigenvalue_of_the_textbook() -> None:
    assert Graph.ring(16).lambda2 == pytest.approx(1 / 3 + 2 / 3 * np.cos(2 * np.pi / 16))
    assert Graph.complete(6).lambda2 == pytest.approx(0, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(agents=st.integers(2, 10), probability=st.floats(0.3, 1), seed=st.integers(0, 999))
def test_metropolis_weights_follow_the_degrees(agents: int, probability: float, seed: int) -> None:
    drawn = nx.gnp_random_graph(agents, probability, seed=seed)
    if not nx.is_connected(drawn):
        with pytest.raises(ConfigError, match="falls into"):
            Graph.metropolis(drawn)
        return
    graph = Graph.from_edges(agents, drawn.edges)
    for i in range(agents):
        assert graph.neighbours(i) == sorted(drawn.neighbors(i))
        for j in drawn.neighbors(i):
            assert graph.weights[i, j] == pytest.approx(1 / (1 + max(drawn.degree[i], drawn.degree[j])))
    np.testing.assert_allclose(graph.weights.sum(0), 1)
    assert graph.messages == 2 * drawn.number_of_edges()
    assert graph.lambda2 < 1


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (np.ones((2, 3)), "square"),
        ([[0.5, 0.5], [0.4, 0.6]], "not symmetric"),
        ([[0.5, 0.4], [0.4, 0.6]], "agent 0 sum to 0.9"),
        ([[1.5, -0.5], [-0.5, 1.5]], "not negative"),
        ([[np.nan, 1], [1, 0]], "finite"),
        (np.eye(3), "never agree"),
        ([[0, 1], [1, 0]], "never agree"),
    ],
)
def test_what_is_no_mixing_matrix_is_refused(weights: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Graph(np.asarray(weights))


def test_edges_and_sizes_that_make_no_graph_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"edges: \(0, 5\) names an agent outside 0 .. 2"):
        Graph.from_edges(3, [(0, 1), (0, 5)])
    with pytest.raises(ConfigError, match="falls into 2 parts"):
        Graph.from_edges(4, [(0, 1), (2, 3)])
    with pytest.raises(ConfigError, match="agents 0"):
        Graph.ring(0)
    with pytest.raises(ConfigError, match="none of 100 graphs"):
        Graph.erdos_renyi(30, 0.01)
    with pytest.raises(ConfigError, match="undirected"):
        Graph.metropolis(nx.DiGraph([(0, 1)]))
