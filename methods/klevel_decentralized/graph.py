"""Who talks to whom: communication graphs and their mixing matrices.

A mixing matrix W is symmetric and doubly stochastic, and its second largest eigenvalue modulus (lambda2) is below 1:
repeated mixing then takes every agent to the mean, each round by a factor of lambda2 at least.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import networkx as nx
import numpy as np

from methods.common.checks import check_number, check_whole
from methods.common.errors import ConfigError

TOLERANCE = 1e-12


@dataclass(frozen=True, eq=False)
class Graph:
    """A communication graph with its mixing matrix.

    Attributes:
        weights: (agents, agents) W, float64; W[i, j] is what agent i takes of agent j.

    Raises:
        ConfigError: W is not square, symmetric, doubly stochastic and non-negative, or the graph is not connected.
    """

    weights: np.ndarray
    lambda2: float = field(init=False)

    def __post_init__(self) -> None:
        weights = np.array(self.weights, dtype=np.float64)
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)
        self._check()
        moduli = np.sort(np.abs(np.linalg.eigvalsh(weights)))
        object.__setattr__(self, "lambda2", float(moduli[-2]) if self.agents > 1 else 0.0)
        if self.lambda2 >= 1 - TOLERANCE:
            raise ConfigError(
                f"graph: the second eigenvalue has modulus {self.lambda2:.6g}, so agents never agree; connect every "
                "agent with every other by some path and keep a weight above 0 for each agent itself"
            )

    def _check(self) -> None:
        weights = self.weights
        if weights.ndim != 2 or weights.shape[0] != weights.shape[1] or weights.size == 0:
            raise ConfigError(
                f"graph: weights of shape {weights.shape}; give a square matrix, a row an agent"
            )
        if not np.isfinite(weights).all() or weights.min() < 0:
            raise ConfigError("graph: weights must be finite and not negative")
        if np.abs(weights - weights.T).max() > TOLERANCE:
            raise ConfigError(
                "graph: weights are not symmetric; each edge has one weight for both of its ends"
            )
        sums = weights.sum(1)
        if np.abs(sums - 1).max() > 1e-9:
            worst = int(np.abs(sums - 1).argmax())
            raise ConfigError(f"graph: weights of agent {worst} sum to {sums[worst]:.6g}; they must sum to 1")

    @property
    def agents(self) -> int:
        """Number of agents."""
        return int(self.weights.shape[0])

    def neighbours(self, agent: int) -> list[int]:
        """Agents that `agent` talks to, itself not among them, in order."""
        return [int(j) for j in np.flatnonzero(self.weights[agent]) if j != agent]

    @property
    def messages(self) -> int:
        """Messages of one round over the whole graph: two for each edge."""
        return int(np.count_nonzero(self.weights) - np.count_nonzero(np.diag(self.weights)))

    @classmethod
    def metropolis(cls, graph: nx.Graph) -> Graph:
        """Metropolis weights of a graph of networkx: 1 / (1 + the larger degree of both ends).

        Raises:
            ConfigError: the graph is directed, empty, or not connected.
        """
        if graph.is_directed() or graph.number_of_nodes() == 0:
            raise ConfigError("graph: give an undirected graph with at least one agent")
        graph = nx.convert_node_labels_to_integers(graph, ordering="sorted")
        if not nx.is_connected(graph):
            parts = nx.number_connected_components(graph)
            raise ConfigError(f"graph: falls into {parts} parts; every agent must reach every other")
        weights = np.zeros((graph.number_of_nodes(),) * 2)
        for i, j in graph.edges:
            if i != j:
                weights[i, j] = weights[j, i] = 1 / (1 + max(graph.degree[i], graph.degree[j]))
        np.fill_diagonal(weights, 1 - weights.sum(1))
        return cls(weights)

    @classmethod
    def from_edges(cls, agents: int, edges: Iterable[tuple[int, int]]) -> Graph:
        """Agents 0 .. agents - 1 and pairs that talk to each other, Metropolis weights.

        Raises:
            ConfigError: an edge names an agent that is not there, or the graph is not connected.
        """
        check_whole("agents", agents, 1)
        graph = nx.empty_graph(agents)
        for i, j in edges:
            if not (0 <= i < agents and 0 <= j < agents):
                raise ConfigError(f"edges: ({i}, {j}) names an agent outside 0 .. {agents - 1}")
            graph.add_edge(int(i), int(j))
        return cls.metropolis(graph)

    @classmethod
    def ring(cls, agents: int) -> Graph:
        """Each agent with two neighbours."""
        check_whole("agents", agents, 1)
        return cls.metropolis(nx.cycle_graph(agents) if agents > 2 else nx.path_graph(agents))

    @classmethod
    def path(cls, agents: int) -> Graph:
        """A line of agents: the graph that mixes slowest."""
        check_whole("agents", agents, 1)
        return cls.metropolis(nx.path_graph(agents))

    @classmethod
    def star(cls, agents: int) -> Graph:
        """One agent in the middle of all others."""
        check_whole("agents", agents, 1)
        return cls.metropolis(nx.star_graph(agents - 1))

    @classmethod
    def torus(cls, rows: int, columns: int) -> Graph:
        """A grid whose ends meet."""
        check_whole("rows", rows, 1)
        check_whole("columns", columns, 1)
        return cls.metropolis(nx.grid_2d_graph(rows, columns, periodic=True))

    @classmethod
    def complete(cls, agents: int) -> Graph:
        """Everybody with everybody: one round gives the mean."""
        check_whole("agents", agents, 1)
        return cls(np.full((agents, agents), 1 / agents))

    @classmethod
    def erdos_renyi(cls, agents: int, probability: float, seed: int = 0, tries: int = 100) -> Graph:
        """Each pair talks with a probability; drawn again until the graph is connected.

        Raises:
            ConfigError: no connected graph in `tries` draws.
        """
        check_whole("agents", agents, 1)
        check_number("probability", probability, above=0)
        for attempt in range(tries):
            graph = nx.gnp_random_graph(agents, probability, seed=seed + 7919 * attempt)
            if nx.is_connected(graph):
                return cls.metropolis(graph)
        raise ConfigError(
            f"probability {probability!r}: none of {tries} graphs of {agents} agents was connected; raise it"
        )
