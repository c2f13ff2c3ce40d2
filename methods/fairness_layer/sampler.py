"""Batches in which every group has its share (section 2.6), shuffled anew in each epoch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from methods.common.checks import check_flag, check_whole
from methods.common.errors import ConfigError
from methods.fairness_layer.rows import as_groups


class StratifiedGroupBatchSampler(Sampler[list[int]]):
    """Yields lists of indices; cells are the intersections of all attributes, each at least once in every batch.

    Args:
        groups: whole codes [n] or [n, attributes].
        batch_size: samples in a batch, at least one for each cell.
        seed: of the shuffles; each epoch has its own.
        drop_last: drop what does not fill a batch, with a warning, or yield it as a last batch that may lack cells.
    """

    def __init__(self, groups: Any, batch_size: int, seed: int = 0, drop_last: bool = True) -> None:
        check_whole("batch_size", batch_size, 1)
        check_flag("drop_last", drop_last)
        codes = as_groups(groups, len(groups))
        _, cell = np.unique(codes, axis=0, return_inverse=True)
        self.cells = [np.flatnonzero(cell.reshape(-1) == number) for number in range(int(cell.max()) + 1)]
        if batch_size < len(self.cells):
            raise ConfigError(f"batch_size {batch_size}: give at least {len(self.cells)}, one for each group")
        self.quota = _quota(np.array([len(members) for members in self.cells]), batch_size)
        self.batches = min(len(members) // n for members, n in zip(self.cells, self.quota, strict=True))
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0
        left = len(codes) - self.batches * int(self.quota.sum())
        self.has_last = left > 0 and not drop_last
        if left and drop_last:
            warnings.warn(f"{left} of {len(codes)} samples do not fill a batch and are dropped", stacklevel=2)

    def __len__(self) -> int:
        return self.batches + self.has_last

    def __iter__(self) -> Iterator[list[int]]:
        draw = np.random.default_rng([self.seed, self.epoch])
        self.epoch += 1
        shuffled = [draw.permutation(members) for members in self.cells]
        for batch in range(self.batches):
            parts = [m[batch * n : (batch + 1) * n] for m, n in zip(shuffled, self.quota, strict=True)]
            yield draw.permutation(np.concatenate(parts)).tolist()
        if self.has_last:
            rest = [m[self.batches * n :] for m, n in zip(shuffled, self.quota, strict=True)]
            yield draw.permutation(np.concatenate(rest)).tolist()


def _quota(sizes: np.ndarray, batch_size: int) -> np.ndarray:
    """Samples of each cell in a batch: the share rounded by largest remainder, at least one."""
    exact = sizes / sizes.sum() * batch_size
    quota = np.maximum(1, np.floor(exact).astype(int))
    while quota.sum() < batch_size:
        quota[np.argmax(exact - quota)] += 1
    while quota.sum() > batch_size:
        quota[np.argmax(np.where(quota > 1, quota - exact, -np.inf))] -= 1
    return quota
