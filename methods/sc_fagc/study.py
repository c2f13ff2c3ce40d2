"""One run of the study: a method on a data set with a seed, scored."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from methods.common.clustering_scores import clustering_scores, size_facts
from methods.sc_fagc.peers import ABLATIONS, PEERS, ablation, constrained
from methods.sc_fagc.study_data import Samples, bundled_digits, handwriting, shapes

SHAPES = ("moons", "blobs")
SETS = ("digits", "mnist10k", "mnist60k", *SHAPES)
# k-means-constrained on 10,000 rows of 784 numbers takes most of a minute a start.
SLOW_STARTS = 1
# Of SC-FAGC, shown on handwriting too: bounds held for the samples, and other anchors.
VARIANTS = ("bounded_samples", "anchors_balanced", "anchors_kmeans", "kmeans_bounded")


@dataclass(frozen=True)
class Run:
    """A method on a data set with a seed; `data` is one of SETS, `method` a peer or an ablation."""

    data: str
    method: str
    seed: int


def runs_of(part: str, seeds: int) -> list[Run]:
    """The runs of one part, seed by seed, so that a part that was cut off holds whole comparisons.

    Args:
        part: `digits`, `ablations`, `mnist10k`, `mnist60k` or `unequal`.
        seeds: at least 3; ten of the digits and shapes, three of the slow peers.
    """
    if part == "unequal":
        methods: tuple[str, ...] = ("k_means", "equal_bounds", "sc_fagc")
        return [Run(data, name, seed) for seed in range(seeds) for data in SHAPES for name in methods]
    if part == "ablations":
        return [Run("digits", name, seed) for seed in range(seeds) for name in ABLATIONS]
    peers = ("k_means", "spectral", "k_means_constrained", "fagc_r", "rival", "sc_fagc")
    methods = {
        "digits": peers,
        "mnist10k": (*peers, *VARIANTS),
        "mnist60k": ("k_means", "fagc_r", "rival", "sc_fagc", *VARIANTS),
    }[part]
    slow = {"k_means_constrained", "spectral"} if part == "mnist10k" else set()
    return [
        Run(part, name, seed)
        for seed in range(seeds if part != "mnist60k" else min(seeds, 3))
        for name in methods
        if seed < 3 or name not in slow
    ]


@lru_cache(maxsize=2)
def samples_of(data: str, folder: Path) -> Samples:
    """The samples of a data set without a seed of its own."""
    return bundled_digits() if data == "digits" else handwriting(folder, data)


def score_run(run: Run, folder: Path) -> dict[str, Any]:
    """Do one run.

    Args:
        run: what to do.
        folder: holds the handwritten digits.

    Returns:
        the run, its scores and sizes, and `seconds` of processor time.
    """
    samples = shapes(run.data, run.seed) if run.data in SHAPES else samples_of(run.data, folder)
    started = time.process_time()
    if run.method in ABLATIONS:
        labels, facts = ablation(samples, run.seed, run.method)
    elif run.method == "k_means_constrained" and run.data != "digits":
        labels, facts = constrained(samples, run.seed, SLOW_STARTS)
    else:
        labels, facts = PEERS[run.method](samples, run.seed)
    seconds = time.process_time() - started
    return {
        "data": run.data,
        "method": run.method,
        "seed": run.seed,
        **clustering_scores(samples.truth, labels),
        **size_facts(labels, samples.clusters, samples.size_min.min(), samples.size_max.max()),
        **facts,
        "seconds": seconds,
    }
