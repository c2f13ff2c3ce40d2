"""Tokens as paths through a binary tree, and the log-odds of every bit from the logits.

Any complete prefix code that both sides know is valid, since the bound of `bounds.py` holds for every split. Codes
are
canonical: sorted by length, then by token id, so that the lengths alone say the tree. At each depth the leaves stand
first and the inner nodes after them; the children of inner node k are the nodes 2k and 2k + 1 one level below.
"""

from __future__ import annotations

import heapq
import zlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from methods.common.errors import ConfigError, NumericalError
from methods.pmatic.errors import FormatError

FLOOR = -700.0  # of a logit below the largest one: a monotone clamp keeps the bound
CLAMP = 40.0  # of log-odds: far outside the last boundary
DEEPEST = 48
LARGEST = 1 << 19
KINDS = ("flat", "huffman", "rank")


def huffman_lengths(counts: np.ndarray) -> np.ndarray:
    """Code lengths for integer counts; ties fall to the smaller id, so that every machine finds the same.

    Args:
        counts: (V,) non-negative integers; each is raised by one, so that every token has a code.

    Returns:
        (V,) lengths, uint8.
    """
    size = len(counts)
    if size == 1:
        return np.zeros(1, dtype=np.uint8)
    heap = [(int(count) + 1, node) for node, count in enumerate(counts)]
    heapq.heapify(heap)
    parent = np.zeros(2 * size - 1, dtype=np.int64)
    for node in range(size, 2 * size - 1):
        first, one = heapq.heappop(heap)
        second, two = heapq.heappop(heap)
        parent[one] = parent[two] = node
        heapq.heappush(heap, (first + second, node))
    depth = np.zeros(2 * size - 1, dtype=np.int64)
    for node in range(2 * size - 3, -1, -1):
        depth[node] = depth[parent[node]] + 1
    lengths = depth[:size]
    if lengths.max() > DEEPEST:
        # Only counts beyond 2**32 reach this: halved, they are as good.
        return huffman_lengths(np.asarray(counts) // 2)
    return lengths.astype(np.uint8)


def flat_lengths(size: int) -> np.ndarray:
    """The longform of base PMATIC: ceil(log2 V) bits; codes that stand for no token are pruned, they carry no bit."""
    longest = max(0, (size - 1).bit_length())
    short = (1 << longest) - size
    return np.where(np.arange(size) < short, longest - 1, longest).astype(np.uint8)


def rank_lengths(size: int) -> np.ndarray:
    """Huffman lengths for counts that fall as 1 / (id + 64): vocabularies sorted by frequency need no stored tree."""
    return huffman_lengths((1 << 32) // (np.arange(size, dtype=np.int64) + 64))


@dataclass(frozen=True)
class CodeTree:
    """A complete prefix code over V tokens.

    Attributes:
        kind: "flat" and "rank" follow from V; the lengths of "huffman" travel with the codec.
        lengths: (V,) code lengths.
    """

    kind: str
    lengths: np.ndarray
    order: np.ndarray = field(init=False, repr=False)
    leaves: np.ndarray = field(init=False, repr=False)
    first: np.ndarray = field(init=False, repr=False)
    place: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lengths = np.ascontiguousarray(self.lengths, dtype=np.uint8)
        if self.kind not in KINDS:
            raise ConfigError(f"tree = {self.kind!r}: choose one of {', '.join(KINDS)}")
        if not 1 <= len(lengths) <= LARGEST:
            raise ConfigError(f"a tree over {len(lengths)} tokens: give 1 to {LARGEST}")
        longest = int(lengths.max())
        if longest > DEEPEST or sum(1 << (longest - int(n)) for n in lengths) != 1 << longest:
            raise FormatError("the tree's code lengths are those of no complete prefix code")
        leaves = np.bincount(lengths, minlength=longest + 1)
        first = np.concatenate([[0], np.cumsum(leaves)])
        order = np.argsort(lengths, kind="stable").astype(np.int64)
        place = np.empty(len(lengths), dtype=np.int64)
        place[order] = np.arange(len(lengths)) - first[lengths[order]]
        for name, value in (
            ("lengths", lengths),
            ("order", order),
            ("leaves", leaves),
            ("first", first),
            ("place", place),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def flat(cls, size: int) -> CodeTree:
        return cls("flat", flat_lengths(size))

    @classmethod
    def rank(cls, size: int) -> CodeTree:
        return cls("rank", rank_lengths(size))

    @classmethod
    def huffman(cls, counts: np.ndarray) -> CodeTree:
        return cls("huffman", huffman_lengths(counts))

    @property
    def size(self) -> int:
        return len(self.lengths)

    @property
    def depth(self) -> int:
        """The longest path."""
        return int(self.lengths.max())

    def pack(self) -> bytes:
        """What of the tree must travel: nothing where the kind says it all."""
        return zlib.compress(self.lengths.tobytes(), 9) if self.kind == "huffman" else b""

    @classmethod
    def unpack(cls, kind: str, size: int, data: bytes) -> CodeTree:
        """The inverse of `pack`, at a bounded cost whatever the bytes are.

        Raises:
            FormatError: the bytes are no lengths of a complete code.
        """
        if not 1 <= size <= LARGEST:
            raise FormatError(f"the codec names {size} tokens; at most {LARGEST} can be")
        if kind == "flat":
            return cls.flat(size)
        if kind == "rank":
            return cls.rank(size)
        unpacker = zlib.decompressobj()
        try:
            lengths = unpacker.decompress(data, size + 1)
        except zlib.error as error:
            raise FormatError("the tree is damaged") from error
        if len(lengths) != size:
            raise FormatError("the tree is damaged")
        return cls(kind, np.frombuffer(lengths, dtype=np.uint8))

    # -- from logits to log-odds ------------------------------------------------------------------------------------

    def node_sums(self, logits: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Probability mass below both children of every inner node, by depth.

        One pass from the leaves up; only positive terms are added. Differences of running sums would lose all
        digits in an improbable subtree, and with them the bound.

        Args:
            logits: (N, V) finite.

        Returns:
            for each depth from 0, the masses of the children 0 and 1: (N, inner nodes) each, in units
                of the row's largest.

        Raises:
            ConfigError: of the wrong shape. NumericalError: not finite.
        """
        logits = np.asarray(logits)
        if logits.ndim != 2 or logits.shape[1] != self.size:
            raise ConfigError(f"logits of shape {logits.shape}: the codec needs (rows, {self.size})")
        values = logits.astype(np.float64)
        top = values.max(1, keepdims=True) if values.size else values[:, :1]
        if not (np.isfinite(top).all() and np.isfinite(values.min(initial=0.0))):
            raise NumericalError("the model's logits are not finite; load it in another number format")
        np.subtract(values, top, out=values)
        np.maximum(values, FLOOR, out=values)
        masses = np.exp(values, out=values)
        if self.kind != "flat" or self.leaves[-1] != self.size:
            masses = masses[:, self.order]
        found: list[tuple[np.ndarray, np.ndarray]] = []
        inner = masses[:, :0]
        for depth in range(self.depth, 0, -1):
            nodes = masses[:, self.first[depth] : self.first[depth + 1]]
            if inner.shape[1]:
                nodes = np.concatenate([nodes, inner], axis=1) if nodes.shape[1] else inner
            zeros, ones = nodes[:, 0::2], nodes[:, 1::2]
            found.append((zeros, ones))
            inner = zeros + ones
        return found[::-1]

    def all_log_odds(self, logits: np.ndarray) -> list[np.ndarray]:
        """Log-odds of bit 1 at every inner node: by depth, (N, inner nodes)."""
        return [_log_odds(zeros, ones) for zeros, ones in self.node_sums(logits)]

    def paths(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The inner nodes that tokens pass, and the bits they take there.

        Args:
            tokens: (N,) ids.

        Returns:
            nodes, bits, used: (N, depth); `used` says which depths belong to the token's path.
        """
        tokens = np.asarray(tokens, dtype=np.int64)
        nodes = np.zeros((len(tokens), self.depth), dtype=np.int64)
        bits = np.zeros((len(tokens), self.depth), dtype=np.uint8)
        lengths = self.lengths[tokens].astype(np.int64)
        at = self.place[tokens].copy()
        for depth in range(self.depth - 1, -1, -1):
            on = lengths > depth
            nodes[on, depth] = at[on] >> 1
            bits[on, depth] = at[on] & 1
            at[on] = (at[on] >> 1) + self.leaves[depth]
        return nodes, bits, np.arange(self.depth) < lengths[:, None]

    def events(self, logits: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The binary events that code `tokens` one after the other.

        Args:
            logits: (N, V), row i those of token i.
            tokens: (N,).

        Returns:
            x, bits, depths: (events,) log-odds of bit 1 clamped to +-40, the bit taken, its depth.
        """
        nodes, bits, used = self.paths(tokens)
        x = np.zeros(nodes.shape)
        for depth, (zeros, ones) in enumerate(self.node_sums(logits)):
            on = np.flatnonzero(used[:, depth])
            at = nodes[on, depth]
            x[on, depth] = _log_odds(zeros[on, at], ones[on, at])
        depths = np.broadcast_to(np.arange(self.depth), nodes.shape)
        return x[used], bits[used], depths[used]

    @cached_property
    def walk(self) -> tuple[list[int], list[int], list[int]]:
        """leaves at each depth, first leaf of each depth, tokens in the order of their codes: lists for one walk."""
        return self.leaves.tolist(), self.first.tolist(), self.order.tolist()


def _log_odds(zeros: np.ndarray, ones: np.ndarray) -> np.ndarray:
    return np.clip(np.log(ones) - np.log(zeros), -CLAMP, CLAMP)
