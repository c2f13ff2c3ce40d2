"""An agent a process: rows travel between neighbours only, over torch.distributed's gloo.

The numbers are those of the simulation: each process sums its own row and its neighbours' in the order of the agents.
A process that ends takes the others out of their waits with an error; nobody hangs.
"""

from __future__ import annotations

import multiprocessing
import queue
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from methods.common.checks import check_number
from methods.common.errors import NumericalError
from methods.klevel_decentralized.graph import Graph

LOOPBACK = "127.0.0.1"


class AgentLost(NumericalError):
    """A process of a run over several ended, or did not answer in time."""


class GlooMixer:
    """This process's agent and its neighbours; use inside of `run_processes`.

    Args:
        graph: as many agents as there are processes.

    Raises:
        AgentLost: (from `mix`) a neighbour ended or did not answer within the time-out of the process group.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rank = dist.get_rank()
        self.agents = range(self.rank, self.rank + 1)
        self._neighbours = graph.neighbours(self.rank)

    def mix(self, rows: Tensor) -> Tensor:
        """One message to each neighbour and one from each."""
        rows = rows.contiguous()
        received = {n: torch.empty_like(rows) for n in self._neighbours}
        try:
            pending = [dist.isend(rows, n) for n in self._neighbours]
            pending += [dist.irecv(received[n], n) for n in self._neighbours]
            for one in pending:
                assert one is not None
                one.wait()
        except RuntimeError as error:
            raise AgentLost(f"agent {self.rank}: a neighbour ended or did not answer: {error}") from error
        received[self.rank] = rows
        weights = self.graph.weights[self.rank]
        mixed = torch.zeros_like(rows)
        for agent in sorted(received):
            mixed += float(weights[agent]) * received[agent]
        return mixed


def run_processes(
    work: Callable[..., Any],
    graph: Graph,
    *arguments: Any,
    timeout: float = 60.0,
    start_timeout: float = 300.0,
) -> list[Any]:
    """`work(GlooMixer, *arguments)` of each agent in a process of its own.

    Args:
        work: a function of a module (it is pickled by name) that returns what can be pickled, such as numpy arrays.
        graph: an agent a process.
        arguments: further arguments of `work`, the same for all.
        timeout: seconds that a process waits for a neighbour.
        start_timeout: seconds until all processes must have met.

    Returns:
        What `work` returned, by agent.

    Raises:
        AgentLost: a process failed, was killed, or waited longer than the time-out; all others are ended.
    """
    check_number("timeout", timeout, above=0)
    check_number("start_timeout", start_timeout, above=0)
    context = multiprocessing.get_context("spawn")  # fork after torch's threads exist can lock up
    results = context.Queue()
    port = _free_port()
    processes = [
        context.Process(
            target=_agent,
            args=(rank, graph, port, timeout, start_timeout, results, work, arguments),
            daemon=True,
        )
        for rank in range(graph.agents)
    ]
    try:
        for process in processes:
            process.start()
        return _gather(processes, results)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
        results.close()


def _gather(processes: list[Any], results: Any) -> list[Any]:
    found: dict[int, Any] = {}
    while len(found) < len(processes):
        try:
            rank, value, failure = results.get(timeout=0.2)
        except queue.Empty:
            _refuse_the_dead(processes, found)
            continue
        if failure is not None:
            _refuse_the_dead(processes, found)  # who was killed is the cause, not who missed him
            raise AgentLost(f"agent {rank}: {failure}")
        found[rank] = value
    return [found[rank] for rank in range(len(processes))]


def _refuse_the_dead(processes: list[Any], found: dict[int, Any]) -> None:
    time.sleep(0.05)
    for rank, process in enumerate(processes):
        if rank not in found and process.exitcode not in (None, 0):
            raise AgentLost(
                f"agent {rank}: its process ended with status {process.exitcode}; start the run again from the last "
                "state_dict"
            )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _agent(
    rank: int,
    graph: Graph,
    port: int,
    timeout: float,
    start_timeout: float,
    results: Any,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    """The life of one process: meet, work, report. Failures are told to the parent, whose decision it is to stop."""
    torch.set_num_threads(1)
    try:
        store = dist.TCPStore(
            LOOPBACK, port, graph.agents, is_master=rank == 0, timeout=timedelta(seconds=start_timeout)
        )
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=graph.agents, timeout=timedelta(seconds=timeout)
        )
        results.put((rank, work(GlooMixer(graph), *arguments), None))
        dist.barrier()  # the store lives in agent 0: nobody leaves before all are done
        dist.destroy_process_group()
    except Exception as error:
        results.put((rank, None, f"{type(error).__name__}: {error}"))
