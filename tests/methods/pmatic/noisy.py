"""Predictors for tests whose two sides never share one array of logits."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from methods.pmatic import Predictor


class Noisy(Predictor):
    """Logits that are a fixed function of the last two tokens, plus noise that differs between machines.

    Args:
        vocabulary: V. bound: range of the noise, max - min over the tokens, of each step.
        machine: 0 computes without noise. Others draw theirs anew at each step.
        extreme: every token gets one end of the range.
    """

    def __init__(
        self, vocabulary: int, bound: float = 0.0, machine: int = 0, extreme: bool = True, scale: float = 3.0
    ) -> None:
        self.vocabulary, self.bound, self.machine, self.extreme = vocabulary, bound, machine, extreme
        draw = np.random.default_rng(vocabulary)
        self.rows = draw.normal(size=(16, vocabulary)) * scale
        self.noise = np.random.default_rng((machine, 7))

    def start(self, rows: int = 1) -> Any:
        return [np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)]

    def logits(self, state: Any) -> np.ndarray:
        exact = self.rows[(state[0] * 5 + state[1]) % 16]
        if not self.machine:
            return exact
        if self.extreme:
            noise = self.noise.integers(0, 2, size=exact.shape) * self.bound
        else:
            noise = self.noise.random(size=exact.shape) * self.bound
        return exact + noise + self.noise.normal()  # a constant changes nothing

    def push(self, state: Any, tokens: np.ndarray) -> None:
        state[0], state[1] = state[1], np.asarray(tokens)

    def sample(self, count: int, seed: int = 0) -> np.ndarray:
        """A text of the model's own."""
        draw = np.random.default_rng(seed)
        state, found = self.start(1), []
        exact = Noisy(self.vocabulary)
        for _ in range(count):
            logits = exact.logits(state)[0]
            p = np.exp(logits - logits.max())
            found.append(draw.choice(self.vocabulary, p=p / p.sum()))
            self.push(state, np.asarray([found[-1]]))
        return np.asarray(found)


class Blocks(Noisy):
    """The same, scored in uneven blocks."""

    def score(self, tokens: np.ndarray) -> Iterator[np.ndarray]:
        rows = list(super().score(tokens))
        at, size = 0, 1
        while at < len(rows):
            yield np.concatenate(rows[at : at + size])
            at, size = at + size, size % 5 + 1
