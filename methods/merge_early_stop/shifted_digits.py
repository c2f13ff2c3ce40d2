"""Eight tasks from one set of digit images: one label space under eight domain shifts (brief, section 6).

The base is trained on un-shifted digits, its head is shared and frozen, and each expert adapts the rest to
one shift. Because all tasks have the same labels, merging is meaningful; because the shifts conflict, it is
hard. The network has no batch normalisation, whose statistics a merge would falsify.

All splits are disjoint by image: base, train (for each task its own), stop, select, test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.common.errors import ConfigError, DataError
from methods.merge_early_stop.experts import TaskSplits, minibatches

CLASSES = 10
SIDE = 28


@dataclass(frozen=True)
class Sizes:
    """Images of each split. `train` is for one task; tasks share the images of stop, select and test."""

    base: int = 2400
    train: int = 600
    stop: int = 400
    select: int = 400
    test: int = 2000

    def total(self, tasks: int) -> int:
        return self.base + self.train * tasks + self.stop + self.select + self.test


# What fits into the 1,797 digits of scikit-learn with three tasks; for tests.
SMALL = Sizes(base=400, train=150, stop=150, select=150, test=400)


def load_digit_images(path: str | Path) -> tuple[Tensor, Tensor]:
    """Images `[n, 28, 28]` uint8 and labels `[n]` int64 from an `.npz` (arrays `images`, `labels`) or an
    Arrow folder.

    `DataError` for anything else, with what is wrong.
    """
    path = Path(path)
    if path.is_dir():
        import datasets

        table = datasets.load_from_disk(str(path)).with_format("numpy")
        lacking = {"images", "labels"} - set(table.column_names)
        if lacking:
            raise DataError(f"{path} lacks the column {sorted(lacking)[0]}")
        images, labels = np.asarray(table["images"][:]), np.asarray(table["labels"][:])
        if images.dtype.kind == "i" and images.size and images.min() >= 0 and images.max() <= 255:
            images = images.astype(np.uint8)  # datasets' numpy format widens small integers
    else:
        try:
            with np.load(path, allow_pickle=False) as archive:
                images, labels = archive["images"], archive["labels"]
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{path} is no .npz with the arrays images and labels ({error})") from error
    if images.ndim != 3 or images.shape[1:] != (SIDE, SIDE) or images.dtype != np.uint8:
        raise DataError(f"{path}: images are {images.dtype} {images.shape}, not uint8 [n, {SIDE}, {SIDE}]")
    if labels.shape != images.shape[:1] or labels.min() < 0 or labels.max() >= CLASSES:
        raise DataError(f"{path}: labels must be {len(images)} integers from 0 to {CLASSES - 1}")
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64))


# ---- the shifts: [n, 1, 28, 28] in [0, 1] -> the same


def _affine(x: Tensor, degrees: float = 0.0, scale: float = 1.0) -> Tensor:
    c, s = math.cos(math.radians(degrees)) / scale, math.sin(math.radians(degrees)) / scale
    theta = x.new_tensor([[c, -s, 0.0], [s, c, 0.0]]).expand(len(x), 2, 3)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _noise(x: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(len(x))
    return (x + 0.3 * torch.randn(x.shape, generator=draw)).clamp(0, 1)


def _bottom(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, :, : SIDE // 2] = 0
    return x


def _edges(x: Tensor) -> Tensor:
    sobel = x.new_tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]])
    kernel = torch.stack([sobel, sobel.T])[:, None]
    return F.conv2d(x, kernel, padding=1).norm(dim=1, keepdim=True).mul(0.5).clamp(0, 1)


SHIFTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rotate_left": lambda x: _affine(x, 60.0),
    "rotate_right": lambda x: _affine(x, -60.0),
    "invert": lambda x: 1.0 - x,
    "noise": _noise,
    "bottom": _bottom,
    "shrink": lambda x: _affine(x, scale=0.45),
    "mirror": lambda x: x.flip(-1),
    "edges": _edges,
}


@dataclass(frozen=True)
class Bench:
    """The tasks of one seed.

    `base` is the un-shifted split that pre-trains; `flipped[task]` marks injected label noise.
    """

    base: tuple[Tensor, Tensor]
    tasks: dict[str, TaskSplits]
    flipped: dict[str, Tensor]


def make_bench(
    images: Tensor,
    labels: Tensor,
    *,
    seed: int = 0,
    tasks: Sequence[str] = tuple(SHIFTS),
    sizes: Sizes | None = None,
    label_noise: float = 0.0,
) -> Bench:
    """Draw the splits and shift them.

    Args:
        images: `[n, 28, 28]` uint8. labels: `[n]`.
        label_noise: share of the train labels of each task that is replaced by another class; stop, select,
            test and base stay clean.

    Errors: `ConfigError` for an unknown task, a share outside [0, 1), or too few images.
    """
    sizes = sizes or Sizes()
    unknown = [t for t in tasks if t not in SHIFTS]
    if unknown or not tasks:
        raise ConfigError(f"tasks={list(tasks)} must be some of {', '.join(SHIFTS)}")
    if not 0 <= label_noise < 1:
        raise ConfigError(f"label_noise={label_noise} must be in [0, 1)")
    if sizes.total(len(tasks)) > len(images):
        raise ConfigError(
            f"{sizes.total(len(tasks))} images are needed, {len(images)} are there; lower sizes or tasks"
        )
    draw = torch.Generator().manual_seed(seed)
    order = iter(torch.randperm(len(images), generator=draw).split([sizes.base, sizes.stop, sizes.select, sizes.test]
        + [sizes.train] * len(tasks) + [len(images) - sizes.total(len(tasks))]))  # fmt: skip

    def take(index: Tensor) -> tuple[Tensor, Tensor]:
        return images[index, None].float() / 255.0, labels[index]

    base, stop, select, test = (take(next(order)) for _ in range(4))
    made, flipped = {}, {}
    for name in tasks:
        x, y = take(next(order))
        hit = torch.zeros(len(y), dtype=torch.bool)
        hit[torch.randperm(len(y), generator=draw)[: round(label_noise * len(y))]] = True
        wrong = (y + torch.randint(1, CLASSES, y.shape, generator=draw)) % CLASSES
        shift = SHIFTS[name]
        made[name] = TaskSplits(
            train=(shift(x), torch.where(hit, wrong, y)), stop=(shift(stop[0]), stop[1]),
            select=(shift(select[0]), select[1]), test=(shift(test[0]), test[1]),
        )  # fmt: skip
        flipped[name] = hit
    return Bench(base, made, flipped)


class DigitNet(nn.Module):
    """Two strided convolutions, one hidden layer, a linear head: 106,122 parameters, no normalisation."""

    def __init__(self, channels: tuple[int, int] = (16, 32), hidden: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels[0], 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(channels[0], channels[1], 3, stride=2, padding=1)
        self.hidden = nn.Linear(channels[1] * 49, hidden)
        self.head = nn.Linear(hidden, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return F.relu(self.hidden(x.flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        """`[n, 1, 28, 28]` in [0, 1] -> logits `[n, 10]`."""
        return self.head(self.features(x))


def train_base(
    data: tuple[Tensor, Tensor],
    *,
    steps: int = 1000,
    lr: float = 1e-3,
    batch_size: int = 64,
    seed: int = 0,
    channels: tuple[int, int] = (16, 32),
    hidden: int = 64,
) -> DigitNet:
    """theta_0: AdamW on un-shifted digits; the head is frozen afterwards (`requires_grad=False`)."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = DigitNet(channels, hidden)
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.1, fused=True)
    batches = minibatches(len(data[1]), batch_size, seed)
    for _ in range(steps):
        index = next(batches)
        optimizer.zero_grad()
        F.cross_entropy(net(data[0][index]), data[1][index]).backward()
        optimizer.step()
    net.head.requires_grad_(False)
    return net
