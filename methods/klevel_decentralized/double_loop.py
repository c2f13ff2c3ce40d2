"""The baseline that solves each level before it turns to the next: many rounds of talk for one step of x_1."""

from __future__ import annotations

from typing import Any

import torch

from methods.common.checks import check_whole
from methods.klevel_decentralized.dkvr import DKVR


class DoubleLoop(DKVR):
    """Stochastic gradients with tracking in nested loops.

    One iteration: `inner` rounds on x_2, then on x_3 ... x_K, then on z_K ... z_2, then one step of x_1.

    Args:
        inner: rounds a block.
        settings: of `DKVR`; the estimator is sgd.

    Raises:
        ConfigError: a setting out of its bounds.
    """

    def __init__(self, *given: Any, inner: int = 10, **settings: Any) -> None:
        check_whole("inner", inner, 1)
        self.inner = inner
        super().__init__(*given, estimator="sgd", **settings)

    def step(self) -> None:
        """All blocks, one after another."""
        depth = self.problem.depth
        order = [*range(1, depth), *reversed(range(depth, 2 * depth - 1))]
        draw = 0
        for block in order:
            draw = self._phase(block, self.inner, draw)
        self._phase(0, 1, draw)
        self.iteration += 1

    def _phase(self, block: int, rounds: int, draw: int) -> int:
        """Rounds that move one block only; its tracker starts anew. Returns the next draw."""
        start = sum(self.problem.blocks[:block])
        chosen = slice(start, start + self.problem.blocks[block])
        factor, _ = self.step_sizes()
        estimate = tracker = None
        for _ in range(rounds):
            fresh = self._evaluate(self._batches(self.iteration + 1, draw), self.state)[0][:, chosen]
            self.estimate[:, chosen] = fresh
            self._check_finite(self.estimate)
            change = fresh if tracker is None or estimate is None else tracker + fresh - estimate
            mixed = self._exchange(torch.cat([self.state[:, chosen], change], 1))
            place, tracker = mixed.split(mixed.shape[1] // 2, 1)
            self.state = self.state.clone()
            self.state[:, chosen] = place - factor * self._rates[chosen] * tracker
            estimate, draw = fresh, draw + 1
        self.state = self._project(self.state)
        self.mixed_state = self.state
        return draw
