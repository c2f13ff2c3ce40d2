"""The study's text: what both sides know, what a codec is fitted on, and what is compressed, from separate places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from methods.common.errors import DataError

TEST_BYTES = 65_536
PLACES = (0.95, 0.65, 0.35, 0.8, 0.5, 0.2)  # where the compressed part ends, by seed
SMALLEST_TEXT = 200_000


@dataclass(frozen=True)
class Split:
    """Three parts of one text that do not overlap.

    Attributes:
        train: known to both sides: the model learns from it.
        calibration: what design and mismatch are fitted on.
        test: what is compressed.
    """

    train: bytes
    calibration: bytes
    test: bytes

    @property
    def known(self) -> bytes:
        """All that both sides know before they see the test part: what peers get as their prefix."""
        return self.train + self.calibration


def split(text: bytes, seed: int) -> Split:
    """A contiguous test part, calibration text of twice its size before it, and the rest as training text.

    Raises:
        DataError: the text is too short.
    """
    if len(text) < SMALLEST_TEXT:
        raise DataError(f"the text has {len(text)} bytes; the study needs at least {SMALLEST_TEXT}")
    size = min(TEST_BYTES, len(text) // 16)
    end = round(len(text) * PLACES[seed % len(PLACES)]) + size
    end = min(end, len(text))
    start, before = end - size, end - 3 * size
    return Split(text[:before] + text[end:], text[before:start], text[start:end])


def byte_ids(data: bytes) -> np.ndarray:
    """Bytes as token ids."""
    return np.frombuffer(data, dtype=np.uint8).astype(np.int64)
