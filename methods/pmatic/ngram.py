"""An n-gram model: interpolated Kneser-Ney over counts, ready in seconds and without any training.

Contexts and tokens are packed into 64-bit keys and kept sorted, so that a whole text is looked up with a few binary
searches an order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from methods.common.errors import ConfigError, DataError
from methods.pmatic.predictor import Predictor, digest16

BLOCK = 1024  # positions at a time: their distributions are the memory that scoring takes


@dataclass(frozen=True)
class _Order:
    """Counts of one context length: `grams` are packed (context, token), sorted."""

    grams: np.ndarray
    counts: np.ndarray
    contexts: np.ndarray
    starts: np.ndarray
    totals: np.ndarray
    discount: float


class NGram(Predictor):
    """Interpolated Kneser-Ney.

    Args:
        vocabulary: number of tokens V; (order + 1) tokens must fit 63 bits, so bytes go up to order 6.
        tables: (grams, counts) a context length, from 0.

    Raises:
        ConfigError: an order too long for the vocabulary. DataError: tables that are none.
    """

    def __init__(
        self, vocabulary: int, tables: list[tuple[np.ndarray, np.ndarray]], name: str = "ngram"
    ) -> None:
        self.vocabulary, self.name = vocabulary, name
        self.bits = max(1, (vocabulary - 1).bit_length())
        self.order = len(tables) - 1
        if not tables or self.bits * len(tables) > 63:
            raise ConfigError(
                f"order = {self.order}: {len(tables)} tokens of {self.bits} bits do not fit 63; give a lower order"
            )
        self._orders = [self._index(grams, counts) for grams, counts in tables]

    def _index(self, grams: np.ndarray, counts: np.ndarray) -> _Order:
        grams, counts = np.asarray(grams, dtype=np.int64), np.asarray(counts, dtype=np.int64)
        if len(grams) != len(counts) or not len(grams) or (np.diff(grams) <= 0).any() or counts.min() < 1:
            raise DataError("the n-gram tables are damaged; fit the model again")
        if int((grams & ((1 << self.bits) - 1)).max()) >= self.vocabulary or int(grams[0]) < 0:
            raise DataError("the n-gram tables are of another vocabulary; fit the model again")
        contexts, starts = np.unique(grams >> self.bits, return_index=True)
        once, twice = int((counts == 1).sum()), int((counts == 2).sum())
        discount = once / (once + 2 * twice) if once else 0.5
        return _Order(
            grams,
            counts,
            contexts,
            np.append(starts, len(grams)),
            np.add.reduceat(counts, starts),
            min(max(discount, 0.1), 0.95),
        )

    @classmethod
    def fit(cls, tokens: np.ndarray, vocabulary: int = 256, order: int = 6, name: str = "ngram") -> NGram:
        """Count a training text.

        Args:
            tokens: (N,) ids below `vocabulary`.
            order: tokens of context at most.

        Raises:
            ConfigError, DataError: no text, an id out of range, an order too long.
        """
        tokens = np.asarray(tokens, dtype=np.int64)
        if len(tokens) <= order or order < 0:
            raise DataError(f"order = {order}: needs a training text of more than {max(order, 0)} tokens")
        if tokens.min() < 0 or tokens.max() >= vocabulary:
            raise DataError(f"a training token is outside 0 to {vocabulary - 1}")
        bits = max(1, (vocabulary - 1).bit_length())
        if bits * (order + 1) > 63:
            raise ConfigError(
                f"order = {order}: {order + 1} tokens of {bits} bits do not fit 63; give a lower order"
            )
        packed = np.zeros(len(tokens) - order, dtype=np.int64)
        for back in range(order + 1):
            packed = (packed << bits) | tokens[back : len(tokens) - order + back]
        grams, counts = np.unique(packed, return_counts=True)
        tables = [(grams, counts)]
        for shorter in range(order, 0, -1):
            # Kneser-Ney: a shorter context counts the different tokens that stood before it.
            grams, counts = np.unique(grams & ((1 << bits * shorter) - 1), return_counts=True)
            tables.append((grams, counts))
        return cls(vocabulary, tables[::-1], name)

    @classmethod
    def fit_bytes(cls, text: bytes, order: int = 6, name: str = "ngram") -> NGram:
        return cls.fit(np.frombuffer(text, dtype=np.uint8), 256, order, name)

    # -- distributions ----------------------------------------------------------------------------------------------

    def _probabilities(self, contexts: np.ndarray, known: np.ndarray) -> np.ndarray:
        """(N, V) distributions.

        Args:
            contexts: (N,) the last `order` tokens, packed. known: (N,) how many of them there are.
        """
        p = np.full((len(contexts), self.vocabulary), 1 / self.vocabulary)
        for length, table in enumerate(self._orders):
            keys = contexts & ((1 << self.bits * length) - 1) if length else np.zeros_like(contexts)
            place = np.searchsorted(table.contexts, keys)
            place[place == len(table.contexts)] = 0
            rows = np.flatnonzero((table.contexts[place] == keys) & (known >= length))
            at = place[rows]
            begin, size = table.starts[at], table.starts[at + 1] - table.starts[at]
            totals = table.totals[at].astype(np.float64)
            p[rows] *= (table.discount * size / totals)[:, None]
            entry = np.repeat(begin - np.concatenate([[0], np.cumsum(size)[:-1]]), size) + np.arange(
                size.sum()
            )
            tokens = table.grams[entry] & ((1 << self.bits) - 1)
            share = (table.counts[entry] - table.discount) / np.repeat(totals, size)
            p[np.repeat(rows, size), tokens] += share
        return p

    def start(self, rows: int = 1) -> list[np.ndarray]:
        return [np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)]

    def logits(self, state: list[np.ndarray]) -> np.ndarray:
        return np.log(self._probabilities(state[0], state[1]))

    def push(self, state: list[np.ndarray], tokens: np.ndarray) -> None:
        mask = (1 << self.bits * self.order) - 1
        state[0] = ((state[0] << self.bits) | np.asarray(tokens, dtype=np.int64)) & mask
        state[1] = np.minimum(state[1] + 1, self.order)

    def score(self, tokens: np.ndarray) -> Iterator[np.ndarray]:
        tokens = np.asarray(tokens, dtype=np.int64)
        padded = np.concatenate([np.zeros(self.order, dtype=np.int64), tokens])
        contexts = np.zeros(len(tokens), dtype=np.int64)
        for back in range(self.order):
            contexts = (contexts << self.bits) | padded[back : back + len(tokens)]
        known = np.minimum(np.arange(len(tokens)), self.order)
        for begin in range(0, len(tokens), BLOCK):
            part = slice(begin, begin + BLOCK)
            yield np.log(self._probabilities(contexts[part], known[part]))

    # -- on disk ----------------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> bytes:
        parts = [array.tobytes() for table in self._orders for array in (table.grams, table.counts)]
        return digest16(b"ngram", self.vocabulary.to_bytes(4, "little"), *parts)

    def save(self, path: Path) -> None:
        """One safetensors file."""
        from safetensors.numpy import save_file

        tensors = {"vocabulary": np.asarray([self.vocabulary], dtype=np.int64)}
        for length, table in enumerate(self._orders):
            tensors |= {f"grams.{length}": table.grams, f"counts.{length}": table.counts}
        save_file(tensors, str(path), metadata={"format": "seedloom-ngram"})

    @classmethod
    def load(cls, path: Path, name: str = "ngram") -> NGram:
        """What `save` wrote. Raises DataError."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            tensors = load_file(str(path))
            size = int(tensors["vocabulary"][0])
            count = sum(key.startswith("grams.") for key in tensors)
            tables = [(tensors[f"grams.{i}"], tensors[f"counts.{i}"]) for i in range(count)]
        except (OSError, SafetensorError, KeyError, IndexError) as error:
            raise DataError(f"{path}: is no n-gram model; write one with NGram.save") from error
        return cls(size, tables, name)
