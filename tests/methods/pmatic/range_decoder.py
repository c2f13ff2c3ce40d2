"""The format's range coder, written from its specification with whole numbers alone: an oracle for constriction's.

64-bit state, 32-bit words, probabilities out of 2^24; bit 0 of an event with P(1) = P / 65536 gets
(65536 - P) * (2^24 - 2) // 65536 + 1 of them.
"""

from collections.abc import Sequence

FULL = (1 << 64) - 1


class IntegerDecoder:
    """Reads what `methods.pmatic.coder` wrote."""

    def __init__(self, payload: bytes) -> None:
        self.words = [int.from_bytes(payload[i : i + 4], "little") for i in range(0, len(payload), 4)]
        self.at = 0
        self.range = FULL
        self.offset = 0  # of the point above the interval's lower end
        for _ in range(2):
            self.offset = self.offset << 32 | self._word()

    def _word(self) -> int:
        word = self.words[self.at] if self.at < len(self.words) else 0
        self.at += 1
        return word

    def bit(self, p: int) -> int:
        zero = (65536 - p) * ((1 << 24) - 2) // 65536 + 1
        scale = self.range >> 24
        if self.offset // scale >= 1 << 24:
            raise ValueError("no encoder leaves this state")
        border = scale * zero
        if self.offset < border:
            self.range, found = border, 0
        else:
            self.offset -= border
            self.range, found = scale * ((1 << 24) - zero), 1
        while self.range < 1 << 32:
            self.range <<= 32
            self.offset = (self.offset << 32 | self._word()) & FULL
        return found


def decode_bits(payload: bytes, probabilities: Sequence[int]) -> list[int]:
    decoder = IntegerDecoder(payload)
    return [decoder.bit(int(p)) for p in probabilities]
