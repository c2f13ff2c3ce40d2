"""Noise of known size between the two sides: up to the bound everything decodes, beyond it nothing goes wrong silently.

`spread` noise gives each token one end of a range of `times` Delta, at random; `aimed` noise knows text and design
and pushes, at each token, the one bit of its path that it can push out of its interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from methods.pmatic.codec import PMATICCodec
from methods.pmatic.errors import MismatchError
from methods.pmatic.predictor import Predictor
from methods.pmatic.study_data import byte_ids
from methods.pmatic.synchroniser import UNIT
from methods.pmatic.tree import CodeTree


class Disturbed(Predictor):
    """A predictor with noise of range `size` at each step.

    Args:
        text: what will be decoded, for aimed noise; None spreads it.
        codec: whose intervals are aimed at.
    """

    def __init__(
        self, inner: Predictor, size: float, seed: int, codec: PMATICCodec, text: np.ndarray | None = None
    ) -> None:
        self.inner, self.size, self.codec, self.text = inner, size, codec, text
        self.vocabulary, self.name = inner.vocabulary, inner.name
        self.draw = np.random.default_rng(seed)

    def start(self, rows: int = 1) -> Any:
        return [self.inner.start(rows), 0]

    def logits(self, state: Any) -> np.ndarray:
        logits = self.inner.logits(state[0])
        if self.text is None:
            return logits + self.draw.integers(0, 2, size=logits.shape) * self.size
        return logits + self._aimed(logits, int(self.text[state[1]]))

    def push(self, state: Any, tokens: np.ndarray) -> None:
        self.inner.push(state[0], tokens)
        state[1] += 1

    def _aimed(self, logits: np.ndarray, token: int) -> np.ndarray:
        """Noise on the leaves below one bit of the token's path, so that y leaves its interval by as much as it can."""
        tree, design = self.codec.tree, self.codec.synchroniser
        x, _, _ = tree.events(logits, np.asarray([token]))
        edges = np.asarray([-np.inf, *(edge * UNIT for edge in design.edges), np.inf])
        number = design.locate(x)
        up = x + self.size - (edges[number + 1] + design.Delta)
        down = (edges[number] - design.Delta) - (x - self.size)
        reach = np.maximum(up, down)
        depth = int(np.argmax(reach))
        noise = np.zeros_like(logits)
        if reach[depth] >= 0:
            nodes, _, _ = tree.paths(np.asarray([token]))
            ones = leaves_of_ones(tree, depth, int(nodes[0, depth]))
            noise[0, ones] = self.size if up[depth] >= down[depth] else -self.size
        return noise


def leaves_of_ones(tree: CodeTree, depth: int, node: int) -> np.ndarray:
    """Tokens below bit 1 of an inner node."""
    nodes, bits, used = tree.paths(np.arange(tree.size))
    return np.flatnonzero(used[:, depth] & (nodes[:, depth] == node) & (bits[:, depth] == 1))


def violation_rows(
    codec: PMATICCodec,
    predictor: Predictor,
    text: bytes,
    times: Sequence[float],
    streams: int,
    length: int = 100,
) -> list[dict[str, Any]]:
    """How many streams of `length` tokens come back, are told, or go wrong, by kind and size of the noise.

    Args:
        times: sizes of the noise in units of the declared bound.
    """
    ids = byte_ids(text)
    rows = []
    assert codec.Delta is not None
    for kind in ("spread", "aimed"):
        for factor in times:
            counts = {"decoded": 0, "told": 0, "wrong": 0}
            for stream in range(streams):
                part = ids[stream * length : (stream + 1) * length]
                blob = codec.encode(part, predictor)
                other = Disturbed(
                    predictor, factor * codec.Delta, stream, codec, part if kind == "aimed" else None
                )
                try:
                    found = PMATICCodec.decode(blob, other)
                except MismatchError:
                    counts["told"] += 1
                else:
                    counts["decoded" if np.array_equal(found, part) else "wrong"] += 1
            rows.append({"noise": kind, "times": factor, "streams": streams, **counts})
    return rows
