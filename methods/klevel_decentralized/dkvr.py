"""D-KVR: decentralised stochastic K-level variance-reduced gradient descent (single loop).

Each agent keeps x_1 .. x_K and adjoints z_2 .. z_K, in one state w, with an estimator d and a tracker T of its
directions D (`KLevelProblem.directions`). One iteration (W: mixing matrix):

    w+ = W w - eta T
    d+ = D(w+; xi) + (1 - alpha) (d - D(w; xi))        STORM: the same samples xi at both places
    T+ = W (T + d+ - d)                                gradient tracking

W w+ and T+ come from one message to each neighbour, whatever K is. No matrix is ever formed: K gradients, K - 1
Hessian-vector and K - 1 cross products, each twice.

Source: the abstract of ICML 2026's "decentralised stochastic K-level variance-reduced gradient descent"; the recursion
follows its predecessors (H. Gao, arXiv 2306.03322; Cutkosky and Orabona, STORM, 2019), the adjoints are derived.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from methods.common.checks import check_choice, check_flag, check_number, check_whole
from methods.common.errors import ConfigError, DataError, NumericalError
from methods.klevel_decentralized.graph import Graph
from methods.klevel_decentralized.mixing import Mixer, Simulation
from methods.klevel_decentralized.problem import Batch, KLevelProblem
from methods.klevel_decentralized.tracing import StackedDirections

Estimator = Literal["storm", "momentum", "sgd"]
Schedule = Literal["constant", "cube_root", "inverse_root"]
# An agent's batches of one iteration, the upper level's first.
Sample = Callable[[int, torch.Generator], Sequence[Batch]]
BYTES = 8


@dataclass
class History:
    """What a run came to, a row an evaluation.

    Attributes:
        rows: iteration, rounds, messages, bytes (of all agents), oracle_calls (an agent's), seconds, consensus error of
            each kind of block, and what `evaluate` returned.
        stopped: the iteration at which the tolerance was met, or None.
    """

    rows: list[dict[str, float]] = field(default_factory=list)
    stopped: int | None = None

    def column(self, name: str) -> np.ndarray:
        """One number over the evaluations."""
        return np.array([row[name] for row in self.rows])


class DKVR:
    """Agents on a graph that solve a K-level problem without a server.

    Args:
        problem: what is solved.
        graph: who talks to whom.
        sample: (agent, generator) -> one batch a level, upper first; equal generators give equal batches.
        lr: step size of x_1.
        lower_lr: of x_2 .. x_K and of the adjoints; None for 5 times lr.
        alpha: STORM's parameter, or momentum's share of the newest direction; 1 is plain stochastic gradients.
        schedule: constant; cube_root: eta / (1 + t / t0)^(1/3) and alpha in proportion to its square, the theory's;
            inverse_root: eta / (1 + t / t0)^(1/2), for estimators without variance reduction.
        t0: where the schedule begins to fall.
        estimator: storm, or an ablation: momentum (moving average), sgd.
        tracking: gradient tracking; without it agents with different data stop apart.
        projection: largest norm of an adjoint z_k, or None.
        initial_batch: draws that the first estimate averages.
        seed: of all samples; agent n's at iteration t depend on seed, n and t alone.
        start: `[entries of x_1 .. x_K]` the same for all agents, or None for zeros.
        mixer: where agents live; None for all of them in this process.

    Raises:
        ConfigError: a setting out of its bounds.
    """

    def __init__(
        self,
        problem: KLevelProblem,
        graph: Graph,
        sample: Sample,
        *,
        lr: float = 0.02,
        lower_lr: float | None = None,
        alpha: float = 0.02,
        schedule: Schedule = "cube_root",
        t0: float = 200.0,
        estimator: Estimator = "storm",
        tracking: bool = True,
        projection: float | None = None,
        initial_batch: int = 64,
        seed: int = 0,
        start: Tensor | None = None,
        mixer: Mixer | None = None,
    ) -> None:
        check_number("lr", lr, above=0)
        check_number("lower_lr", 5 * lr if lower_lr is None else lower_lr, above=0)
        check_number("alpha", alpha, above=0)
        if alpha > 1:
            raise ConfigError(f"alpha {alpha!r}: give a number above 0 and of at most 1")
        check_choice("schedule", schedule, Schedule)
        check_number("t0", t0, above=0)
        check_choice("estimator", estimator, Estimator)
        check_flag("tracking", tracking)
        if projection is not None:
            check_number("projection", projection, above=0)
        check_whole("initial_batch", initial_batch, 1)
        check_whole("seed", seed, 0)
        self.problem, self.graph, self.sample = problem, graph, sample
        self.lr, self.alpha, self.schedule, self.t0 = lr, alpha, schedule, t0
        self.estimator, self.tracking, self.projection = estimator, tracking, projection
        self.initial_batch, self.seed = initial_batch, seed
        self.mixer: Mixer = Simulation(graph) if mixer is None else mixer
        self._rates = torch.full(
            (problem.total,), 5 * lr if lower_lr is None else lower_lr, dtype=torch.float64
        )
        self._rates[: problem.sizes[0]] = lr
        self._directions = StackedDirections(problem)
        self._begin(start)

    def _begin(self, start: Tensor | None) -> None:
        levels = sum(self.problem.sizes)
        state = torch.zeros(self.problem.total, dtype=torch.float64)
        if start is not None:
            if start.shape != (levels,):
                raise ConfigError(
                    f"start of shape {tuple(start.shape)}: give ({levels},), x_1 .. x_K one after another"
                )
            state[:levels] = start.double()
        self.iteration = 0
        self.rounds = self.sent_entries = self.oracle_calls = 0
        self.state = state.repeat(len(self.mixer.agents), 1)
        self.estimate = torch.zeros_like(self.state)
        for draw in range(self.initial_batch):
            self.estimate += self._evaluate(self._batches(0, draw), self.state)[0] / self.initial_batch
        self._check_finite(self.estimate)
        # Everybody starts at the same place, which mixing keeps.
        self.mixed_state = self.state.clone()
        self.tracker = self._exchange(self.estimate) if self.tracking else self.estimate.clone()

    def _batches(self, iteration: int, draw: int = 0) -> list[Batch]:
        """The batches of the agents that live here, stacked over agents."""
        found = []
        for agent in self.mixer.agents:
            entropy = np.random.SeedSequence((self.seed, agent, iteration, draw)).generate_state(
                1, np.uint64
            )[0]
            generator = torch.Generator().manual_seed(int(entropy >> np.uint64(1)))
            batches = list(self.sample(agent, generator))
            if len(batches) != self.problem.depth:
                raise DataError(
                    f"sample: {len(batches)} batches of agent {agent} for {self.problem.depth} levels; return one for "
                    "each level, upper first"
                )
            found.append(batches)
        stacked: list[Batch] = default_collate(found)
        return stacked

    def _evaluate(self, batches: Sequence[Batch], *states: Tensor) -> Tensor:
        """Directions at each of the states: `[states, agents here, total]`."""
        self.oracle_calls += len(states)
        return self._directions(torch.stack(states), batches)

    def _exchange(self, rows: Tensor) -> Tensor:
        """One message to each neighbour."""
        self.rounds += 1
        self.sent_entries += rows.shape[1]
        return self.mixer.mix(rows)

    def step_sizes(self) -> tuple[float, float]:
        """(factor of the step sizes, alpha) of this iteration."""
        if self.schedule == "constant":
            return 1.0, self.alpha
        factor = (1 + self.iteration / self.t0) ** (-1 / 3 if self.schedule == "cube_root" else -1 / 2)
        return factor, min(1.0, self.alpha * factor**2) if self.schedule == "cube_root" else self.alpha

    def step(self) -> None:
        """One iteration of every agent that lives here.

        Raises:
            NumericalError: a direction is not finite; the message names the level and the iteration.
        """
        factor, alpha = self.step_sizes()
        before = self.state
        state = self._project(self.mixed_state - factor * self._rates * self.tracker)
        batches = self._batches(self.iteration + 1)
        if self.estimator == "storm":
            fresh, stale = self._evaluate(batches, state, before)
            estimate = fresh + (1 - alpha) * (self.estimate - stale)
        elif self.estimator == "momentum":
            estimate = (1 - alpha) * self.estimate + alpha * self._evaluate(batches, state)[0]
        else:
            estimate = self._evaluate(batches, state)[0]
        self._check_finite(estimate)
        if self.tracking:
            mixed = self._exchange(torch.cat([state, self.tracker + estimate - self.estimate], 1))
            self.mixed_state, self.tracker = mixed.split(self.problem.total, 1)
        else:
            self.mixed_state, self.tracker = self._exchange(state), estimate
        self.state, self.estimate = state, estimate
        self.iteration += 1

    def _project(self, state: Tensor) -> Tensor:
        if self.projection is None:
            return state
        parts = list(state.split(self.problem.blocks, 1))
        for place in range(self.problem.depth, len(parts)):
            norm = parts[place].norm(dim=1, keepdim=True)
            parts[place] = parts[place] * (self.projection / norm.clamp_min(self.projection))
        return torch.cat(parts, 1)

    def _check_finite(self, estimate: Tensor) -> None:
        if torch.isfinite(estimate).all():
            return
        names = [f"x_{k}" for k in range(1, self.problem.depth + 1)]
        names += [f"z_{k}" for k in range(2, self.problem.depth + 1)]
        bad = [
            name
            for name, part in zip(names, estimate.split(self.problem.blocks, 1), strict=True)
            if not torch.isfinite(part).all()
        ]
        raise NumericalError(
            f"iteration {self.iteration}: the directions of {', '.join(bad)} are not finite; lower lr and lower_lr, "
            "set projection, or scale the levels"
        )

    @property
    def mean_x1(self) -> Tensor:
        """(size of x_1) mean over the agents that live here."""
        return self.state[:, : self.problem.sizes[0]].mean(0)

    def consensus(self) -> dict[str, float]:
        """Mean squared distance of the agents that live here to their mean, for x_1, the lower x and the adjoints."""
        away = (self.state - self.state.mean(0)).square().mean(0)
        lower = sum(self.problem.sizes[1:])
        parts = away.split([self.problem.sizes[0], lower, lower])
        return {
            f"consensus/{name}": float(part.sum())
            for name, part in zip(("x1", "lower", "adjoints"), parts, strict=True)
        }

    def run(
        self,
        iterations: int,
        evaluate: Callable[[Tensor], dict[str, float]] | None = None,
        eval_every: int = 100,
        tolerance: float = 0.0,
        patience: int = 50,
    ) -> History:
        """Iterate, from where the last run ended.

        Args:
            iterations: further ones.
            evaluate: mean x_1 -> numbers, from an exact oracle and not from the algorithm's own estimates.
            eval_every: iterations between evaluations; the first and the last are always evaluated.
            tolerance: stops when the mean estimate of grad F has a norm below it ...
            patience: ... in so many iterations one after another.
        """
        check_whole("iterations", iterations, 0)
        check_whole("eval_every", eval_every, 1)
        history, started, calm = History(), time.perf_counter(), 0
        for turn in range(iterations + 1):
            if turn % eval_every == 0 or turn == iterations or calm >= patience:
                paused = time.perf_counter()
                history.rows.append(
                    self._row(paused - started) | ({} if evaluate is None else evaluate(self.mean_x1))
                )
                started += time.perf_counter() - paused
            if calm >= patience:
                history.stopped = self.iteration
                break
            if turn < iterations:
                self.step()
                slope = self.estimate[:, : self.problem.sizes[0]].mean(0).norm()
                calm = calm + 1 if float(slope) < tolerance else 0
        return history

    def _row(self, seconds: float) -> dict[str, float]:
        messages = self.graph.messages
        return {
            "iteration": self.iteration,
            "rounds": self.rounds,
            "messages": self.rounds * messages,
            "bytes": self.sent_entries * messages * BYTES,
            "oracle_calls": self.oracle_calls,
            "seconds": seconds,
            **self.consensus(),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that a run needs to go on to the last bit; only tensors."""
        counters = [self.iteration, self.rounds, self.sent_entries, self.oracle_calls]
        tensors = {name: getattr(self, name).clone() for name in _TENSORS}
        return {"counters": torch.tensor(counters), **tensors}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            DataError: of another problem or graph.
        """
        missing = [name for name in ("counters", *_TENSORS) if name not in state]
        if missing:
            raise DataError(f"state: {', '.join(missing)} missing; give what state_dict() returned")
        for name in _TENSORS:
            if state[name].shape != self.state.shape:
                raise DataError(
                    f"state: {name} has shape {tuple(state[name].shape)}, here it is {tuple(self.state.shape)}: "
                    "another problem or another number of agents"
                )
            setattr(self, name, state[name].clone())
        self.iteration, self.rounds, self.sent_entries, self.oracle_calls = (
            int(n) for n in state["counters"]
        )


_TENSORS = ("state", "mixed_state", "estimate", "tracker")
