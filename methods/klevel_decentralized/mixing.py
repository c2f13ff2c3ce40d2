"""How an agent's rows meet its neighbours': all in one process, or an agent a process.

A mixer is the only way by which one agent's numbers reach another.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from methods.klevel_decentralized.graph import Graph


class Mixer(Protocol):
    """Rows of the agents that live here, and one round of talk."""

    graph: Graph
    agents: range

    def mix(self, rows: Tensor) -> Tensor:
        """W times the rows of all agents, for those that live here: `[agents here, entries]` each."""


class Simulation:
    """All agents in this process."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.agents = range(graph.agents)
        self._weights = torch.from_numpy(graph.weights.copy())

    def mix(self, rows: Tensor) -> Tensor:
        """One round of talk."""
        return self._weights @ rows
