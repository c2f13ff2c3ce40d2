"""Real processes over gloo: the numbers of the simulation, and a clean end when an agent is killed."""

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from methods.common.errors import ConfigError
from methods.klevel_decentralized import DKVR, AgentLost, Graph, run_processes, synthetic_chain


def walk(mixer: Any, graph: Graph, iterations: int) -> np.ndarray:
    chain = synthetic_chain(graph.agents, 3, size=3)
    run = DKVR(chain.problem, graph, chain.sample, initial_batch=2, mixer=mixer)
    run.run(iterations)
    found: np.ndarray = run.state.numpy().copy()
    return found


def die(mixer: Any, died: Path) -> None:
    if mixer.rank == 1:
        died.write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    walk(mixer, mixer.graph, 100_000)


def refuse(mixer: Any) -> None:
    raise ConfigError("lr 0: give a number above 0")


def test_processes_walk_as_the_simulation_does() -> None:
    graph = Graph.ring(4)
    found = np.concatenate(run_processes(walk, graph, graph, 30))
    np.testing.assert_allclose(found, walk(None, graph, 30), atol=1e-10, rtol=0)


def test_a_killed_agent_ends_the_run_with_its_name(tmp_path: Path) -> None:
    died = tmp_path / "died"
    with pytest.raises(AgentLost, match="agent"):
        run_processes(die, Graph.ring(3), died, timeout=5)
    # From the kill on: starting three processes takes what a busy machine lets it take.
    assert time.monotonic() - float(died.read_text()) < 30
    assert not multiprocessing.active_children()


def test_what_an_agent_refuses_is_told() -> None:
    with pytest.raises(AgentLost, match="lr 0: give a number above 0"):
        run_processes(refuse, Graph.ring(1))
    with pytest.raises(ConfigError, match="timeout 0"):
        run_processes(refuse, Graph.ring(1), timeout=0)
