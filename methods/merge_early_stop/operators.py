"""The merging operators of section 2.1, streaming: average, task arithmetic, TIES, DARE.

Notation: theta_0 base, tau_t = theta_t - theta_0 the task vector of expert t of T, merged = theta_0 + delta.

    average          delta = (1/T) sum_t tau_t
    task_arithmetic  delta = lambda sum_t tau_t                           (Ilharco et al. 2023)
    ties             trim, elect sign, disjoint mean, times lambda         (Yadav et al. 2023)
    dare             keep each entry with probability 1-p, divide survivors by 1-p, then one of the above
                                                                           (Yu et al. 2024)

Everything is elementwise but two numbers of TIES: each expert's trimming threshold and the majority sign.
Both come from passes over the stream, so memory stays at T pieces of `PIECE` elements however large the model
is. All computation is in float32 (float64 when asked), whatever the type on disk.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from methods.common.errors import ConfigError, NumericalError

StateDict = Mapping[str, Tensor]
Method = str | Callable[[Tensor], Tensor]
METHODS = ("average", "task_arithmetic", "ties", "dare")
PIECE = 1 << 17  # elements of one expert in memory at a time; T pieces stay in a core's cache


@dataclass(frozen=True)
class Operator:
    """What to do with the task vectors.

    Args:
        method: one of `METHODS`, or a function `[T, n] -> [n]` applied to pieces of the flattened task
            vectors.
        lambda_: factor of the merged vector. None: 1/T for average, 1 otherwise.
        density: TIES: fraction k in (0, 1] of largest-magnitude entries that survive the trim.
        trim: TIES: threshold over the whole vector ("global", the original) or for each tensor ("per_tensor",
            what mergekit does, which also breaks zero-sum ties to plus).
        drop: DARE: p in [0, 1), the probability to drop an entry.
        then: DARE: what follows: average, task_arithmetic, or ties (sign election and disjoint mean, no
            second trim).
        seed: DARE: masks are drawn per expert name and tensor name from it, so that streaming order does not
            matter.
    """

    method: Method = "task_arithmetic"
    lambda_: float | None = None
    density: float = 0.2
    trim: Literal["global", "per_tensor"] = "global"
    drop: float = 0.9
    then: Literal["average", "task_arithmetic", "ties"] = "task_arithmetic"
    seed: int = 0
    dtype: torch.dtype = field(default=torch.float32)

    def __post_init__(self) -> None:
        if not callable(self.method) and self.method not in METHODS:
            raise ConfigError(
                f"method={self.method!r} is unknown; choose one of {', '.join(METHODS)} or a function"
            )
        if self.lambda_ is not None and not math.isfinite(self.lambda_):
            raise ConfigError(f"lambda={self.lambda_} is not a finite number")
        if not 0 < self.density <= 1:
            raise ConfigError(f"density={self.density} must be in (0, 1]")
        if not 0 <= self.drop < 1:
            raise ConfigError(f"drop={self.drop} must be in [0, 1)")
        if self.trim not in ("global", "per_tensor"):
            raise ConfigError(f"trim={self.trim!r} must be 'global' or 'per_tensor'")
        if self.then not in ("average", "task_arithmetic", "ties"):
            raise ConfigError(f"then={self.then!r} must be 'average', 'task_arithmetic' or 'ties'")
        if self.dtype not in (torch.float32, torch.float64):
            raise ConfigError(f"dtype={self.dtype} must be float32 or float64")

    @property
    def combine(self) -> Method:
        return self.then if self.method == "dare" else self.method

    def scale(self, experts: int) -> float:
        """lambda as it is applied to the sum (average, task arithmetic) or to the disjoint mean (TIES)."""
        if self.combine == "average":
            return (1.0 if self.lambda_ is None else self.lambda_) / experts
        return 1.0 if self.lambda_ is None else self.lambda_


class TaskVectors(Protocol):
    """A stream of task vectors: what the operators read."""

    @property
    def experts(self) -> Sequence[str]:
        """Names of the T experts."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the tensors, each tied weight once."""

    def numel(self, name: str) -> int: ...

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The flattened tensor of all experts in consecutive pieces `[T, n]`, the same at each call."""


class InMemory:
    """Task vectors given as state dicts. `ConfigError` when their names or shapes differ."""

    def __init__(
        self,
        taus: Sequence[StateDict],
        names: Sequence[str] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not taus:
            raise ConfigError("the list of experts is empty; give at least one")
        self.experts = list(names) if names is not None else [str(i) for i in range(len(taus))]
        if len(self.experts) != len(taus) or len(set(self.experts)) != len(taus):
            raise ConfigError(f"names={self.experts} must be {len(taus)} different names")
        for tau in taus[1:]:
            wrong = sorted(set(taus[0]) ^ set(tau)) or [n for n in tau if tau[n].shape != taus[0][n].shape]
            if wrong:
                raise ConfigError(f"the task vectors differ in names or shapes: {', '.join(wrong[:5])}")
        self.taus, self.dtype = taus, dtype
        self.names = list(taus[0])

    def numel(self, name: str) -> int:
        return self.taus[0][name].numel()

    def pieces(self, name: str) -> Iterator[Tensor]:
        flat = [tau[name].detach().reshape(-1) for tau in self.taus]
        for start in range(0, flat[0].numel(), PIECE):
            yield torch.stack([f[start : start + PIECE].to(self.dtype) for f in flat])


class Merger:
    """`Operator` applied to a stream: global quantities first, then `delta(name)` for each tensor.

    The tensors may come in any order.
    """

    def __init__(self, operator: Operator, stream: TaskVectors) -> None:
        self.operator, self.stream = operator, stream
        self._thresholds: Tensor | None = None
        self._majority = 0  # sign of the majority over the whole vector, needed only for zero-sum ties
        self._votes, self._tied = 0, False
        if self._trims and operator.trim == "global":
            size = sum(stream.numel(n) for n in stream.names)
            self._thresholds = self._select(stream.names, max(1, int(operator.density * size)))

    @property
    def _trims(self) -> bool:
        return self.operator.method == "ties" and self.operator.density < 1

    def _select(self, names: Sequence[str], keep: int) -> Tensor:
        return kth_largest_magnitude(lambda: (p for n in names for p in self.stream.pieces(n)), keep)

    def delta(self, name: str) -> Iterator[Tensor]:
        """The merged vector of one tensor, flattened, in the stream's pieces `[n]` (float64).

        lambda is included.
        """
        op, scale = self.operator, self.operator.scale(len(self.stream.experts))
        thresholds = self._thresholds
        if self._trims and thresholds is None and self.stream.numel(name):
            thresholds = self._select([name], max(1, int(op.density * self.stream.numel(name))))
        generators = self._generators(name) if op.method == "dare" and op.drop > 0 else None
        for piece in self.stream.pieces(name):
            if generators is not None:
                piece = dare_mask(piece, op.drop, generators)
            if callable(op.combine):
                merged = op.combine(piece)
                if merged.shape != piece.shape[1:]:
                    raise ConfigError(
                        f"the merge function returned shape {tuple(merged.shape)} for {tuple(piece.shape)}"
                    )
                yield merged.double() * scale
            elif op.combine == "ties":
                if thresholds is not None:
                    piece = torch.where(piece.abs() >= thresholds, piece, 0.0)
                yield self._elect_and_mean(piece).mul_(scale)
            else:
                yield exact_sum(piece).mul_(scale)

    def _elect_and_mean(self, trimmed: Tensor) -> Tensor:
        sign = torch.sign(exact_sum(trimmed))
        tied = (sign == 0) & (trimmed != 0).any(dim=0) if bool((sign == 0).any()) else None
        self._votes += int(sign.sum())
        if tied is not None and bool(tied.any()):
            self._tied = True
            # the original code sends a majority of zero to the negative side, mergekit to the positive one
            fill = 1 if self.operator.trim == "per_tensor" else (self._majority or -1)
            sign = torch.where(tied, float(fill), sign)
        sign = sign.to(trimmed.dtype)
        agree = trimmed * sign > 0
        return exact_sum(trimmed * agree).div_(agree.sum(dim=0).clamp_(min=1))

    def run(self, consume: Callable[[Merger], None]) -> None:
        """Let `consume` take all deltas; once more if zero-sum ties turned up whose majority sign was not
        known yet.

        Ties are rare (never, with floats that differ), so the second pass is too.
        """
        consume(self)
        if self._tied and self.operator.trim == "global" and self.operator.combine == "ties":
            majority = (self._votes > 0) - (self._votes < 0)
            if (majority or -1) != (self._majority or -1):
                self._majority, self._votes, self._tied = majority, 0, False
                consume(self)

    def _generators(self, name: str) -> list[torch.Generator]:
        result = []
        for expert in self.stream.experts:
            key = f"{self.operator.seed}|{expert}|{name}".encode()
            seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1
            result.append(torch.Generator().manual_seed(seed))
        return result


def exact_sum(piece: Tensor) -> Tensor:
    """Sum over experts in float64: their order does not matter, not even for elected signs."""
    total = piece[0].double()
    for row in piece[1:]:
        total += row
    return total


def dare_mask(piece: Tensor, drop: float, generators: Sequence[torch.Generator]) -> Tensor:
    """Drop and rescale `[T, n]`: each entry survives with probability 1 - p and is divided by 1 - p
    (unbiased).

    mergekit rescales the survivors by the realised L1 norm of each tensor instead, which is not unbiased per
    entry.
    """
    kept = torch.empty_like(piece)
    for row, generator in enumerate(generators):
        draw = torch.rand(piece.shape[1], generator=generator)
        kept[row] = torch.where(draw >= drop, piece[row], 0.0)
    return kept.div_(1.0 - drop)


def kth_largest_magnitude(pieces: Callable[[], Iterator[Tensor]], keep: int) -> Tensor:
    """Exact `keep`-th largest |x| of each row of a stream of `[T, n]`, as `[T, 1]`.

    Radix selection: the bits of a non-negative float, read as an integer, sort like the float. Each pass
    counts 16 of them, from the top, among the entries whose higher bits are already fixed: two passes for
    float32. Memory does not grow with n.
    """
    digits, pass_number = 2, 0
    prefix: list[int] = []
    rank: list[int] = []
    dtype = torch.float32
    while pass_number < digits:
        counts: np.ndarray | None = None
        for piece in pieces():
            dtype = piece.dtype
            digits = piece.element_size() // 2
            values = piece.contiguous().numpy()
            if counts is None:
                counts = np.zeros((len(values), 1 << 16), dtype=np.int64)
                prefix, rank = prefix or [0] * len(values), rank or [keep] * len(values)
            for row, x in enumerate(values):
                halves = x.view(np.uint16)
                digit = halves[digits - 1 - pass_number :: digits]
                if pass_number:
                    whole = x.view(np.uint32 if digits == 2 else np.uint64)
                    shift = 16 * (digits - pass_number)
                    high = (whole >> shift) & ((1 << (16 * pass_number - 1)) - 1)
                    digit = digit[high == prefix[row]]
                counts[row] += np.bincount(digit, minlength=1 << 16)
        if counts is None:
            raise ConfigError("the task vectors have no entries")
        if not pass_number:  # the sign bit is not part of the magnitude
            counts = counts[:, : 1 << 15] + counts[:, 1 << 15 :]
        for row, count in enumerate(counts):
            above = np.cumsum(count[::-1])
            place = int(np.searchsorted(above, rank[row]))
            chosen = len(count) - 1 - place
            rank[row] -= int(above[place - 1]) if place else 0
            prefix[row] = (prefix[row] << 16) | chosen
        pass_number += 1
    bits = np.array(prefix, dtype=np.uint32 if digits == 2 else np.uint64)
    return torch.from_numpy(bits.view(np.float32 if digits == 2 else np.float64)).to(dtype)[:, None]


def merge_vectors(
    taus: Sequence[StateDict], operator: Operator, names: Sequence[str] | None = None
) -> dict[str, Tensor]:
    """The merged vector `delta` of task vectors held in memory, with the shapes of the first.

    Errors: `ConfigError` for an empty list or differing names or shapes; `NumericalError` for NaN or
    infinity.
    """
    stream = InMemory(taus, names, operator.dtype)
    check_finite(taus, stream.experts)
    result: dict[str, Tensor] = {}

    def consume(merger: Merger) -> None:
        for name in stream.names:
            pieces = list(merger.delta(name))
            flat = torch.cat(pieces) if pieces else torch.empty(0)
            result[name] = flat.to(operator.dtype).reshape(taus[0][name].shape)

    Merger(operator, stream).run(consume)
    return result


def check_finite(taus: Sequence[StateDict], names: Sequence[str]) -> None:
    for expert, tau in zip(names, taus, strict=True):
        for name, value in tau.items():
            if not bool(torch.isfinite(value).all()):
                raise NumericalError(
                    f"expert {expert}: the task vector of {name} has NaN or infinite entries"
                )


def average(taus: Sequence[StateDict], *, lambda_: float = 1.0) -> dict[str, Tensor]:
    """delta = (lambda/T) sum_t tau_t; lambda = 1 is the plain average."""
    return merge_vectors(taus, Operator("average", lambda_))


def task_arithmetic(taus: Sequence[StateDict], *, lambda_: float = 1.0) -> dict[str, Tensor]:
    """delta = lambda sum_t tau_t."""
    return merge_vectors(taus, Operator("task_arithmetic", lambda_))


def ties(
    taus: Sequence[StateDict],
    *,
    density: float = 0.2,
    lambda_: float = 1.0,
    trim: Literal["global", "per_tensor"] = "global",
) -> dict[str, Tensor]:
    """Trim to the `density` largest magnitudes, elect the sign of the sum, mean of the agreeing non-zero
    entries.

    Exactly floor(density * n) entries survive (at least one; more when magnitudes at the threshold are
    equal).
    The original code and fusion-bench keep one more (`kthvalue(n - k)` is inclusive).
    """
    return merge_vectors(taus, Operator("ties", lambda_, density=density, trim=trim))


def dare(
    taus: Sequence[StateDict],
    *,
    drop: float = 0.9,
    lambda_: float | None = None,
    then: Literal["average", "task_arithmetic", "ties"] = "task_arithmetic",
    seed: int = 0,
    names: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """Drop and rescale, then merge. Random: report the spread over at least three seeds."""
    return merge_vectors(taus, Operator("dare", lambda_, drop=drop, then=then, seed=seed), names)
