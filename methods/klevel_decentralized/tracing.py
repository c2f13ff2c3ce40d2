"""Directions of all agents at once, traced to plain tensor operations in long runs.

Taking gradients of gradients under `vmap` costs far more in Python than in arithmetic. A trace does the same operations
in the same order (equal to the last bit) without it, but costs as much as dozens of calls itself: it is made once so
many batches of one shape have come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from methods.klevel_decentralized.problem import Batch, KLevelProblem

CALLS_BEFORE_TRACE = 50


class StackedDirections:
    """`KLevelProblem.directions` for several states of each agent, the same batches for all of an agent's states."""

    def __init__(self, problem: KLevelProblem) -> None:
        self._stacked = vmap(vmap(problem.directions), (0, None))
        self._calls: Counter[Any] = Counter()
        self._traces: dict[Any, Any] = {}

    def __call__(self, states: Tensor, batches: Sequence[Batch]) -> Tensor:
        """`[copies, agents, total]` of states and batches with a leading axis of agents -> directions."""
        key = (states.shape, tuple((leaf.shape, leaf.dtype) for leaf in tree_leaves(batches)))
        self._calls[key] += 1
        if self._calls[key] > CALLS_BEFORE_TRACE and key not in self._traces:
            # A function of exactly two arguments: the tracer reads the signature.
            traced = make_fx(lambda given, drawn: self._stacked(given, drawn))(states, batches)
            traced.graph.eliminate_dead_code()
            traced.recompile()
            self._traces[key] = traced
        found: Tensor = self._traces.get(key, self._stacked)(states, batches)
        return found
