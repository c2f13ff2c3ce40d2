"""Colours and bits through constriction's range coder, driven by integers alone.

Every probability is P / 65536 with a whole P: exact in binary floating point, so that constriction's fixed-point
table of it (24 bits: bit 0 gets (65536 - P) (2^24 - 2) // 65536 + 1 of 2^24) is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import constriction
import numpy as np

from methods.common.errors import ConfigError
from methods.pmatic.errors import FormatError, MismatchError
from methods.pmatic.synchroniser import ONE, Synchroniser
from methods.pmatic.tree import CLAMP, CodeTree

_FAMILY = constriction.stream.model.Bernoulli(perfect=False)
STEP = 2  # what an event adds to its helper counter
TOTAL = 40  # what the counters of a context start with together


@lru_cache(maxsize=1 << 16)
def _bernoulli(p: int) -> Any:
    return constriction.stream.model.Bernoulli(p / ONE, perfect=False)


@dataclass(frozen=True)
class Helper:
    """The helper event's probability: fixed, or counted by bit depth within a chunk.

    Attributes:
        fixed: probability of colour 1 out of 65536; 0 counts.
        zeros, ones: what the counters start with.
    """

    fixed: int = 0
    zeros: int = TOTAL - 2
    ones: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.fixed < ONE or not (0 < self.zeros <= ONE and 0 < self.ones <= ONE):
            raise ConfigError("the helper's probability or its counters are out of range")

    @classmethod
    def starting_at(cls, share: float) -> Helper:
        """Counters that start at the share of colour 1 that calibration found."""
        total = 20 * TOTAL
        ones = min(max(round(total * share), 1), total // 2)
        return cls(0, total - ones, ones)

    def probabilities(self, colours: np.ndarray, depths: np.ndarray) -> np.ndarray:
        """P(colour 1) out of 65536 before each event, all of a chunk at once."""
        if self.fixed:
            return np.full(len(colours), self.fixed, dtype=np.int64)
        found = np.empty(len(colours), dtype=np.int64)
        for depth in range(int(depths.max(initial=-1)) + 1):
            at = np.flatnonzero(depths == depth)
            seen = colours[at].astype(np.int64)
            before = np.cumsum(seen) - seen
            ones = self.ones + STEP * before
            zeros = self.zeros + STEP * (np.arange(len(at)) - before)
            found[at] = ONE * ones // (zeros + ones)
        return np.clip(found, 1, ONE - 1)


def encode_events(
    synchroniser: Synchroniser, helper: Helper, x: np.ndarray, bits: np.ndarray, depths: np.ndarray
) -> tuple[bytes, np.ndarray]:
    """One chunk's events as bytes.

    Args:
        x, bits, depths: of `CodeTree.events`.

    Returns:
        the payload, and the colour of each event.
    """
    number = synchroniser.locate(synchroniser.coordinate(x))
    colours = np.asarray(synchroniser.colours, dtype=np.int64)[number]
    chosen = np.asarray(synchroniser.probabilities, dtype=np.int64)[number]
    if len(synchroniser.colours) == 1:
        return _coded(bits, chosen), colours
    symbols = np.stack([colours, bits.astype(np.int64)], axis=1).ravel()
    integers = np.stack([helper.probabilities(colours, depths), chosen], axis=1).ravel()
    return _coded(symbols, integers), colours


def encode_plain(x: np.ndarray, bits: np.ndarray) -> bytes:
    """Ordinary arithmetic coding with 16-bit probabilities: the same coder without a bound."""
    return _coded(bits, plain_probabilities(x))


def plain_probabilities(x: np.ndarray) -> np.ndarray:
    return np.clip(np.round(ONE / (1 + np.exp(-x))), 1, ONE - 1).astype(np.int64)


def _coded(symbols: np.ndarray, integers: np.ndarray) -> bytes:
    if not len(symbols):
        return b""
    encoder = constriction.stream.queue.RangeEncoder()
    encoder.encode(symbols.astype(np.int32), _FAMILY, integers / ONE)
    return bytes(encoder.get_compressed().astype("<u4").tobytes())


class ChunkDecoder:
    """Decodes one chunk token by token; every step is integers but the comparison of y with the edges.

    Args:
        synchroniser: None decodes what `encode_plain` wrote.
        chunk: its number, for messages.

    Raises:
        FormatError: the payload is no whole number of words.
    """

    def __init__(
        self,
        tree: CodeTree,
        synchroniser: Synchroniser | None,
        helper: Helper,
        payload: bytes,
        chunk: int = 0,
    ) -> None:
        if len(payload) % 4:
            raise FormatError(f"chunk {chunk}: its size is no whole number of words")
        words = np.frombuffer(payload, dtype="<u4").astype(np.uint32)
        self._decode = constriction.stream.queue.RangeDecoder(words).decode
        self._tree, self._synchroniser, self._helper, self._chunk = tree, synchroniser, helper, chunk
        self._zeros = [helper.zeros] * max(1, tree.depth)
        self._ones = [helper.ones] * max(1, tree.depth)
        self._count = 0

    def next(self, sums: Sequence[tuple[np.ndarray, np.ndarray]], row: int) -> int:
        """The next token.

        Args:
            sums: of `CodeTree.node_sums` for the logits of the decoder's own model.
            row: which of their rows.

        Raises:
            MismatchError: no interval fits, or no encoder writes such bytes under these probabilities.
        """
        try:
            token = self._walk(sums, row)
        except MismatchError as error:
            raise MismatchError(
                f"chunk {self._chunk}, token {self._count}: {error}", self._chunk, self._count
            ) from None
        except AssertionError:  # constriction's word for a state that no encoder leaves
            raise MismatchError(
                f"chunk {self._chunk}, token {self._count}: the coded data does not fit the model's probabilities",
                self._chunk,
                self._count,
            ) from None
        self._count += 1
        return token

    def _walk(self, sums: Sequence[tuple[np.ndarray, np.ndarray]], row: int) -> int:
        leaves, first, order = self._tree.walk
        if not sums:
            return order[0]
        decode, synchroniser, node = self._decode, self._synchroniser, 0
        log = math.log
        for depth, (zeros, ones) in enumerate(sums):
            y = log(ones.item(row, node)) - log(zeros.item(row, node))
            y = CLAMP if y > CLAMP else -CLAMP if y < -CLAMP else y
            if synchroniser is None:
                p = min(max(round(ONE / (1 + math.exp(-y))), 1), ONE - 1)
            else:
                if synchroniser.kind == "tv":
                    y = 1 / (1 + math.exp(-y))
                colour = self._colour(depth) if len(synchroniser.colours) > 1 else 0
                p = synchroniser.probabilities[synchroniser.recover(colour, y)]
            node = 2 * node + decode(_bernoulli(p))
            at_leaf = leaves[depth + 1]
            if node < at_leaf:
                return order[first[depth + 1] + node]
            node -= at_leaf
        raise AssertionError("a path ends at a leaf")

    def _colour(self, depth: int) -> int:
        if self._helper.fixed:
            return int(self._decode(_bernoulli(self._helper.fixed)))
        zeros, ones = self._zeros[depth], self._ones[depth]
        p = ONE * ones // (zeros + ones)
        colour = int(self._decode(_bernoulli(min(max(p, 1), ONE - 1))))
        if colour:
            self._ones[depth] = ones + STEP
        else:
            self._zeros[depth] = zeros + STEP
        return colour
