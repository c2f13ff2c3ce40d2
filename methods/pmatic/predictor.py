"""What the codec asks of a model: logits for the next token, one step at a time or for a whole text at once.

Rows are independent texts that advance together: a model computes many of them in one batch. Both ways must follow
the same rule of which tokens are context; they may, and will, differ in the last digits.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np


class Predictor(ABC):
    """A model of token sequences.

    Attributes:
        vocabulary: number of tokens V.
        name: for people who inspect an archive.
    """

    vocabulary: int
    name: str = ""

    @abstractmethod
    def start(self, rows: int = 1) -> Any:
        """The state before the first token of `rows` texts."""

    @abstractmethod
    def logits(self, state: Any) -> np.ndarray:
        """(rows, V) logits of the next token of each row, finite."""

    @abstractmethod
    def push(self, state: Any, tokens: np.ndarray) -> None:
        """Append one token to each row. Args: tokens: (rows,)."""

    def score(self, tokens: np.ndarray) -> Iterator[np.ndarray]:
        """Logits for every token of one text given those before it, in consecutive blocks (n, V).

        The default goes step by step; models that see a whole text at once are faster.
        """
        state = self.start(1)
        for token in tokens:
            yield self.logits(state)
            self.push(state, np.asarray([token]))

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that name the model whatever number format it is loaded in; zeros when it cannot be named."""
        return bytes(16)

    @property
    def tokenizer_fingerprint(self) -> bytes:
        """16 bytes that name what the tokens stand for; zeros for bytes and for tokens without text."""
        return bytes(16)


class Steps(Predictor):
    """The same model by its other path: `score` goes step by step, for checks by a second computation."""

    def __init__(self, inner: Predictor) -> None:
        self.inner, self.vocabulary, self.name = inner, inner.vocabulary, inner.name

    def start(self, rows: int = 1) -> Any:
        return self.inner.start(rows)

    def logits(self, state: Any) -> np.ndarray:
        return self.inner.logits(state)

    def push(self, state: Any, tokens: np.ndarray) -> None:
        self.inner.push(state, tokens)

    @property
    def fingerprint(self) -> bytes:
        return self.inner.fingerprint

    @property
    def tokenizer_fingerprint(self) -> bytes:
        return self.inner.tokenizer_fingerprint


def digest16(*parts: bytes) -> bytes:
    """A 16-byte fingerprint of byte strings, each with its length."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.digest()[:16]


def next_window(length: int, window: int, overlap: int) -> int:
    """How many of the last tokens stay as context when `length` tokens are there and one more is asked for.

    Below `window` all of them; at `window` the context starts anew with the last `overlap` ones, so that a cache is
    filled again once every window - overlap tokens. Both paths of a model follow this rule.
    """
    if length < window:
        return length
    return overlap + (length - window) % (window - overlap)
