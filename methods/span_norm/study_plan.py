"""Which trainings belong to each part of the study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from methods.span_norm.study import Run

SPAN = ("span", "inv_sqrt_depth")
# At the moderate rate: both schemes under both starts, so that no start is compared with another one's scheme.
NAMED = (
    SPAN,
    ("prenorm", "inv_sqrt_depth"),
    ("prenorm", "none"),
    ("postnorm", "inv_sqrt_depth"),
    ("span", "none"),
)
CONTENDERS = (SPAN, ("prenorm", "inv_sqrt_depth"), ("prenorm", "none"))
EVERY = (
    *NAMED,
    ("postnorm", "none"),
    ("deepnorm", "deepnorm"),
    ("sandwich", "none"),
    ("mix_ln", "none"),
    ("lns", "none"),
    ("hybrid", "inv_sqrt_2depth"),
    ("hybrid_star", "inv_sqrt_2depth"),
    ("siamese", "none"),
)
GRID = (1e-3, 1.41e-3, 2e-3, 2.83e-3, 4e-3, 5.66e-3, 8e-3, 1.13e-2)
HIGH = GRID[4:7]  # the rates of the part `range`: SpanNorm as it is fails within them
SMALLER = (("span", "inv_depth"), ("prenorm", "inv_depth"))
LONGER = 5  # times the warm-up, in the part `range`
# About 1.19 million parameters in the blocks, 4 heads each; embedding and head come on top and grow with the width.
DEPTHS = {6: (128, 344), 12: (88, 256), 24: (64, 172), 48: (48, 108)}


@dataclass(frozen=True)
class Plan:
    """Sizes that every run shares."""

    rates: Sequence[float]
    seeds: Sequence[int]
    grid_seeds: Sequence[int]
    base: Run
    every: bool = False  # every candidate in the part `rates`, not the contenders alone
    full: bool = False  # and the dense grid of rates


def runs_of(part: str, plan: Plan) -> list[Run]:
    """The trainings of one part, seed by seed, so that a part that was cut off holds whole comparisons."""
    base, moderate = plan.base, plan.rates[0]
    if part == "moderate":
        return [
            replace(base, scheme=s, init=i, rate=moderate, seed=seed, drop=(s, i) in CONTENDERS[:2])
            for seed in plan.seeds
            for s, i in NAMED
        ]
    if part == "rates":
        candidates = EVERY if plan.every or plan.full else CONTENDERS
        return [
            replace(base, scheme=s, init=i, rate=rate, seed=seed)
            for seed in plan.grid_seeds
            for rate in (GRID if plan.full else plan.rates)
            for s, i in candidates
            if plan.full or rate != moderate or (s, i) not in NAMED  # those stand in `moderate`
        ]
    if part == "range":
        # SpanNorm as it is, with one thing changed at a time, and PreNorm for comparison.
        span = replace(base, scheme="span", init="inv_sqrt_depth")
        variants = [
            span,
            replace(span, warmup=LONGER * base.warmup),
            replace(span, init="inv_depth"),
            replace(base, scheme="prenorm", init="none"),
        ]
        return [
            replace(variant, rate=rate, seed=seed)
            for seed in plan.grid_seeds
            for rate in HIGH
            for variant in variants
        ]
    if part == "smaller":
        return [
            replace(base, scheme=s, init=i, rate=rate, seed=seed)
            for seed in plan.grid_seeds
            for rate in HIGH[:1]
            for s, i in SMALLER
        ]
    if part == "depth":
        return [
            replace(base, scheme=s, init=i, rate=moderate, seed=seed, layers=layers, width=width, ffn=ffn)
            for seed in plan.grid_seeds
            for layers, (width, ffn) in DEPTHS.items()
            for s, i in (SPAN, ("prenorm", "inv_sqrt_depth"))
        ]
    if part == "experts":
        return [
            replace(base, scheme=s, init=i, rate=rate, seed=seed, layers=12, experts=4)
            for seed in plan.grid_seeds
            for rate in (moderate, 2 * moderate)
            for s, i in (SPAN, ("prenorm", "inv_sqrt_depth"))
        ]
    raise ValueError(f"part {part!r} trains nothing")
