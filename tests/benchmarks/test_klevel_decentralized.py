"""D-KVR's cost: linear in the levels and in the entries, and never a matrix.

The lower bound in the same run is an iteration without variance reduction: half of the directions.
"""

import time
from typing import Any

import numpy as np
import pytest
import torch

from methods.klevel_decentralized import DKVR, Graph, KLevelProblem, Level, synthetic_chain


def seconds(run: DKVR, iterations: int = 40, rounds: int = 3) -> float:
    """Processor seconds an iteration, the least of some rounds; traced beforehand."""
    run.run(60, eval_every=60)
    found = []
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(iterations):
            run.step()
        found.append((time.process_time() - started) / iterations)
    return min(found)


def solver(levels: int, estimator: str = "storm") -> DKVR:
    chain = synthetic_chain(8, levels)
    return DKVR(chain.problem, Graph.ring(8), chain.sample, estimator=estimator, initial_batch=1)


def test_time_is_linear_in_the_levels(benchmark: Any) -> None:
    sizes = (2, 3, 4, 6)
    times = {levels: seconds(solver(levels)) for levels in sizes}
    exponent = float(np.polyfit(np.log(sizes), np.log([times[k] for k in sizes]), 1)[0])
    benchmark.extra_info |= {"seconds": times, "exponent": exponent, "ratio_6_3": times[6] / times[3]}
    benchmark.pedantic(solver(3).step, rounds=20, warmup_rounds=5)
    assert times[6] / times[3] <= 2.5
    assert exponent < 1.3


def test_variance_reduction_costs_at_most_twice_plain_gradients(benchmark: Any) -> None:
    ratio = seconds(solver(3)) / seconds(solver(3, "sgd"))
    benchmark.extra_info["ratio"] = ratio
    benchmark.pedantic(solver(3, "sgd").step, rounds=20, warmup_rounds=5)
    assert ratio < 2.2


@pytest.mark.parametrize("entries", [2_000, 8_000, 32_000, 128_000])
def test_no_matrix_is_formed(entries: int, benchmark: Any) -> None:
    """A level's Hessian of 128,000 entries a side would take 131 GB."""

    def lower(before: torch.Tensor, now: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return 0.5 * (now * now).sum() - batch * (now * before.tanh()).sum() + 0.1 * now.sin().sum()

    problem = KLevelProblem(
        entries,
        lambda x1, xs, batch: (xs[-1] - batch).square().mean() + x1.square().mean(),
        [Level(entries, lower)] * 2,
    )
    one = torch.ones((), dtype=torch.float64)
    run = DKVR(problem, Graph.ring(2), lambda agent, generator: [one] * 3, initial_batch=1)
    run.run(3)
    benchmark.pedantic(run.step, rounds=5)
    assert torch.isfinite(run.state).all()
