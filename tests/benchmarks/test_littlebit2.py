"""Time and memory of LittleBit-2: the packed layer against dense float32, Joint-ITQ against its cost model and peers.

Processor seconds, the best of several turns; ratios are of one process.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from methods.littlebit2 import (
    BinaryFactors,
    LittleBitConfig,
    LittleBitLinear,
    factorize,
    joint_itq,
    truncated_svd,
)
from methods.littlebit2.rotation import polar_factor

OUTPUTS, INPUTS = 1536, 576
RANKS, BATCHES = (56, 104, 208, 392, 560), (1, 4, 32, 128)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def best(work: Callable[[], object], turns: int = 5, least: float = 0.02) -> float:
    """Seconds of one call: the fastest of `turns` loops of at least `least` seconds."""
    work()
    begin = time.process_time()
    work()
    count = max(1, int(least / max(time.process_time() - begin, 1e-7)))
    found = []
    for _ in range(turns):
        begin = time.process_time()
        for _ in range(count):
            work()
        found.append((time.process_time() - begin) / count)
    return min(found)


def packed_layer(rank: int, seed: int = 0) -> LittleBitLinear:
    """Random factors: only their shapes matter here."""
    g = torch.Generator().manual_seed(seed)
    u, v = (torch.randint(2, s, generator=g) * 2 - 1 for s in ((1, OUTPUTS, rank), (1, rank, INPUTS)))
    scales = (torch.rand(1, n, generator=g) + 0.5 for n in (OUTPUTS, rank, INPUTS))
    return LittleBitLinear.from_factors(BinaryFactors(u.to(torch.int8), v.to(torch.int8), *scales)).pack()


@torch.inference_mode()
def test_packed_layer_against_dense_over_ranks_and_batches(capsys: pytest.CaptureFixture[str]) -> None:
    """Bar: 1536x576, r <= 104, batch 32 is faster than dense. Where r (o + i) > o i it does more sums than dense."""
    dense = torch.randn(OUTPUTS, INPUTS)
    rows, ratios = [], {}
    for rank in RANKS:
        layer = packed_layer(rank)
        for batch in BATCHES:
            x = torch.randn(batch, INPUTS)
            ratios[rank, batch] = best(lambda l=layer, x=x: l(x)) / best(lambda x=x: F.linear(x, dense))  # noqa: E741
        work = rank * (OUTPUTS + INPUTS) / (OUTPUTS * INPUTS)
        shown = "  ".join(f"{ratios[rank, batch]:6.2f}" for batch in BATCHES)
        rows.append(f"rank {rank:4d} (sums / dense {work:4.2f}): {shown}")
    with capsys.disabled():
        print(f"\npacked / dense float32, weights in the cache, batches {BATCHES}:", *rows, sep="\n  ")
    assert ratios[56, 32] < 1
    assert ratios[104, 32] < 1


@torch.inference_mode()
def test_one_token_through_many_layers(capsys: pytest.CaptureFixture[str]) -> None:
    """Decoding: every weight is read once a token. 48 dense layers are 170 MB, the packed ones 1 / 110 of it."""
    count, rank = 48, 104
    dense = [torch.randn(OUTPUTS, INPUTS) for _ in range(count)]
    packed = [packed_layer(rank, seed) for seed in range(count)]
    held = sum(t.numel() * t.element_size() for layer in packed for t in layer.buffers())
    bits = sum(layer.factors().bits() for layer in packed)
    x = torch.randn(1, INPUTS)

    def through(layers: list[Any], call: Callable[[Any], object]) -> None:
        for layer in layers:
            call(layer)

    ratio = best(lambda: through(packed, lambda layer: layer(x))) / best(
        lambda: through(dense, lambda weight: F.linear(x, weight))
    )
    with capsys.disabled():
        print(
            f"\none token, {count} layers after each other, rank {rank}: packed / dense {ratio:.2f}; ", end=""
        )
        print(f"weights held {held / 1e6:.2f} MB against {count * OUTPUTS * INPUTS * 4 / 1e6:.0f} MB")
    assert held <= 1.1 * bits / 8


def test_cost_of_an_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    """c1 (o + i) r^2 + c2 r^3 explains the seconds of an iteration over four ranks and three heights."""
    points = list(itertools.product((768, 1536, 3072), (48, 96, 160, 256)))
    seconds = []
    for height, rank in points:
        x = torch.randn(height, rank)

        def run(n_iter: int, x: torch.Tensor = x) -> float:
            return best(lambda: joint_itq(x, n_iter=n_iter, generator=torch.Generator().manual_seed(0)), 3, 0)

        seconds.append((run(8) - run(2)) / 6)
    design = np.array([[n * r**2, r**3] for n, r in points], dtype=float)
    fit, *_ = np.linalg.lstsq(design / design.max(0), np.array(seconds), rcond=None)
    explained = design / design.max(0) @ fit
    measured = np.array(seconds)
    score = 1 - ((measured - explained) ** 2).sum() / ((measured - measured.mean()) ** 2).sum()
    slope = np.polyfit(np.log([r for n, r in points if n == 1536]), np.log(measured[4:8]), 1)[0]
    with capsys.disabled():
        print(
            f"\nJoint-ITQ iteration: R^2 {score:.3f} of c1 (o+i) r^2 + c2 r^3; exponent in r at o+i = 1536: {slope:.2f}"
        )
    assert score >= 0.95


def test_polar_solvers(capsys: pytest.CaptureFixture[str]) -> None:
    """The Newton solver against the SVD over sizes."""
    ratios = {}
    for size in (64, 208, 512, 1024):
        x = torch.randn(3 * size, size)
        matrix = x.T @ torch.where(x >= 0, 1.0, -1.0)
        turns = 3 if size < 1000 else 1
        ratios[size] = best(lambda m=matrix: polar_factor(m, "newton"), turns, 0) / best(
            lambda m=matrix: polar_factor(m, "svd"), turns, 0
        )
    with capsys.disabled():
        print("\npolar factor, Newton / SVD:", ", ".join(f"r = {k}: {v:.2f}" for k, v in ratios.items()))
    assert ratios[1024] < 2


def test_a_layer_by_each_start(capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds of a 1536x576 layer at 0.55 bits, as multiples of its singular value decomposition."""
    weight = torch.randn(OUTPUTS, INPUTS)
    whole = best(lambda: truncated_svd(weight, 208), 2, 0)
    ratios = {
        init: best(lambda i=init: factorize(weight, config=LittleBitConfig(init=i)), 1, 0) / whole
        for init in ("svd", "random_rotation", "joint_itq", "admm")
    }
    with capsys.disabled():
        print("\nwhole layer / its SVD:", ", ".join(f"{k} {v:.1f}" for k, v in ratios.items()))
    assert ratios["joint_itq"] < ratios["admm"]
