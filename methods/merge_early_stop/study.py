"""The paper's study on the shifted digits: length sweep, label noise, stopping, difficulty, interference.

Pure computation: images in, frames out. One job is one (seed, label noise); jobs share nothing, so a caller
may fan them out as it likes; `run_study` does it over processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from methods.common.errors import ConfigError
from methods.merge_early_stop.experts import STEPS, ExpertBank, Key, train_experts
from methods.merge_early_stop.interference import increments, interference
from methods.merge_early_stop.operators import Operator
from methods.merge_early_stop.shifted_digits import SHIFTS, Bench, Sizes, make_bench, train_base
from methods.merge_early_stop.study_difficulty import difficulty_frames
from methods.merge_early_stop.study_stopping import stopping_frame
from methods.merge_early_stop.sweep import LAMBDAS, MergeRule, length_sweep

# TIES and the average divide by the number of agreeing experts, so their lambda may well exceed 1.
WIDE = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.3, 1.6, 2.0, 2.5, 3.0, 4.0)
METHODS: dict[str, MergeRule] = {
    "average": MergeRule(Operator("average"), (1.0,)),
    "task_arithmetic": MergeRule(Operator("task_arithmetic"), LAMBDAS),
    "ties": MergeRule(Operator("ties"), WIDE),
    "ties_lambda_1": MergeRule(Operator("ties"), (1.0,)),
    "dare": MergeRule(Operator("dare"), LAMBDAS),
}
# The brief's constants for this bench (w = 20) with R = 2 and R = 0, and the more aggressive preset.
STOPPERS: dict[str, dict[str, Any]] = {
    "early_stop": {"warmup": 20, "every": 5, "patience": 3, "factor": 0.5, "max_reductions": 2},
    "early_stop_R0": {"warmup": 20, "every": 5, "patience": 3, "factor": 0.5, "max_reductions": 0},
    "early_stop_aggressive": {"warmup": 10, "every": 5, "patience": 1, "factor": 0.5, "max_reductions": 0},
}


@dataclass(frozen=True)
class StudySettings:
    """What a study computes; the defaults are the brief's.

    Args:
        steps: lengths of the sweep, in optimiser steps; the largest is "trained to the end".
        seeds: independent replicates: split, base, order of the data.
        label_noise: shares of flipped train labels.
        methods: of `METHODS`.
        stopping_methods: those in which the stopping rules are compared.
        stoppers: settings of `MergeEarlyStopping` by name; the first is the one judged.
        drop_fractions: shares of hardest examples to leave out in the control that retrains without them.
        drop_steps: length of those runs.
        select_budget: merges of the checkpoint selection; 0 leaves it out.
        el2n_seeds: K; twice as many are trained, for the agreement of two disjoint groups.
    """

    steps: Sequence[int] = STEPS
    seeds: Sequence[int] = (0, 1, 2)
    label_noise: Sequence[float] = (0.0, 0.2)
    tasks: Sequence[str] = tuple(SHIFTS)
    methods: Sequence[str] = ("average", "task_arithmetic", "ties", "ties_lambda_1", "dare")
    stopping_methods: Sequence[str] = ("task_arithmetic", "ties", "ties_lambda_1")
    stoppers: dict[str, dict[str, Any]] = field(default_factory=lambda: dict(STOPPERS))
    sizes: Sizes = field(default_factory=Sizes)
    base_steps: int = 1000
    lr: float = 1e-3
    batch_size: int = 64
    el2n_step: int = 32
    el2n_seeds: int = 5
    bins: int = 10
    drop_fractions: Sequence[float] = (0.05, 0.2)
    drop_steps: int = 256
    select_budget: int = 60

    def __post_init__(self) -> None:
        unknown = [m for m in self.methods if m not in METHODS]
        if unknown or not self.methods:
            raise ConfigError(f"methods={list(self.methods)} must be some of {', '.join(METHODS)}")
        if not self.stopping_rules:
            raise ConfigError(f"stopping_methods={list(self.stopping_methods)} must share one with methods")
        if not self.seeds or not self.steps or not self.label_noise or not self.stoppers:
            raise ConfigError("seeds, steps, label_noise and stoppers must not be empty")

    @property
    def rules(self) -> dict[str, MergeRule]:
        return {name: METHODS[name] for name in self.methods}

    @property
    def stopping_rules(self) -> dict[str, MergeRule]:
        return {name: METHODS[name] for name in self.methods if name in self.stopping_methods}


Frames = dict[str, pd.DataFrame]


def study_job(
    images: Tensor,
    labels: Tensor,
    seed: int,
    noise: float,
    settings: StudySettings,
    bank: str | Path | None = None,
) -> Frames:
    """Everything for one seed and one share of label noise.

    Frames: `sweep`, `per_task`, `increments`, `stopping`, `stop_steps`, `shares`, `forgetting`, `difficulty`,
    `dropped`, `costs`; each has the columns `seed` and `noise`.

    `costs` holds seconds and is not the same in two equal runs; all others are.
    """
    begin = time.perf_counter()
    bench = make_bench(
        images, labels, seed=seed, tasks=settings.tasks, sizes=settings.sizes, label_noise=noise
    )
    base = train_base(bench.base, steps=settings.base_steps, batch_size=settings.batch_size, seed=seed)
    folder = None if bank is None else Path(bank) / f"noise_{noise}"
    experts = ExpertBank(base, folder)
    common = {"lr": settings.lr, "batch_size": settings.batch_size}
    train_experts(base, bench.tasks, steps=settings.steps, seeds=(seed,), bank=experts, **common)  # type: ignore[arg-type]
    trained = time.perf_counter()
    sweep = length_sweep(experts, bench.tasks, steps=settings.steps, methods=settings.rules, seeds=(seed,))
    swept = time.perf_counter()
    stopping, stop_steps, stop_costs = stopping_frame(experts, bench, settings, seed, sweep.to_frame())
    stopped = time.perf_counter()
    frames: Frames = {
        "sweep": sweep.to_frame(), "per_task": sweep.per_task(), "stopping": stopping, "stop_steps": stop_steps,
        "increments": increment_frame(experts, bench, settings.steps, seed),
        **difficulty_frames(experts, bench, settings, seed, sweep.to_frame()),
    }  # fmt: skip
    done = time.perf_counter()
    times = {
        "train": trained - begin,
        "sweep": swept - trained,
        "stopping": stopped - swept,
        "difficulty": done - stopped,
    }
    frames["costs"] = pd.DataFrame([{"part": k, "seconds": v} for k, v in (times | stop_costs).items()])
    return {name: frame.assign(seed=seed, noise=noise) for name, frame in frames.items()}


def increment_frame(bank: ExpertBank, bench: Bench, steps: Sequence[int], seed: int) -> pd.DataFrame:
    """Interference of what the steps between two lengths did: tau(s2) - tau(s1).

    Columns `from_step, to_step`, and those of `Interference.means`.
    """
    rows = []
    order = sorted(steps)
    for early, late in pairwise(order):
        first, second = (
            [bank.tau(Key(task, seed, "constant", s)) for task in bench.tasks] for s in (early, late)
        )
        rows.append({"from_step": early, "to_step": late, **interference(increments(second, first)).means()})
    return pd.DataFrame(rows)


def study_jobs(settings: StudySettings) -> list[tuple[int, float]]:
    """The (seed, noise) pairs of a study."""
    return [(seed, noise) for noise in settings.label_noise for seed in settings.seeds]


def collect(parts: Sequence[Frames]) -> Frames:
    """The frames of all jobs, one below the other, whichever job ended first."""
    names = parts[0]
    whole = {name: pd.concat([part[name] for part in parts], ignore_index=True) for name in names}
    return {n: f.sort_values(["noise", "seed"], kind="stable", ignore_index=True) for n, f in whole.items()}


def _worker(job: tuple[Any, ...]) -> Frames:
    torch.set_num_threads(1)
    return study_job(*job)


def run_study(
    images: Tensor,
    labels: Tensor,
    settings: StudySettings | None = None,
    *,
    workers: int = 1,
    bank: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Frames:
    """All jobs, over `workers` processes of one thread each.

    `progress(done, all)` is called after each job.
    """
    settings = settings or StudySettings()
    jobs = study_jobs(settings)
    made: dict[int, Frames] = {}
    for index, frames in _finished(images, labels, jobs, settings, workers, bank):
        made[index] = frames
        if progress is not None:
            progress(len(made), len(jobs))
    return collect([made[i] for i in range(len(jobs))])


def _finished(
    images: Tensor,
    labels: Tensor,
    jobs: Sequence[tuple[int, float]],
    settings: StudySettings,
    workers: int,
    bank: str | Path | None,
) -> Iterator[tuple[int, Frames]]:
    if workers <= 1:
        for index, (seed, noise) in enumerate(jobs):
            yield index, study_job(images, labels, seed, noise, settings, bank)
        return
    # spawn: forked children inherit torch's thread pool in an undefined state
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting: dict[Future[Frames], int] = {
            pool.submit(_worker, (images, labels, seed, noise, settings, bank)): index
            for index, (seed, noise) in enumerate(jobs)
        }
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(future), future.result()
