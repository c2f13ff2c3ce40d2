"""Settings of the study of `span_norm`. Imports nothing heavy."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tasks.config import Config, Distinct, Seeds

Part = Literal["start", "moderate", "rates", "range", "smaller", "depth", "experts", "deep"]
FurtherCandidate = Literal[
    "prenorm/none",
    "postnorm/inv_sqrt_depth",
    "span/inv_depth",
    "prenorm/inv_depth",
    "span/inv_sqrt_depth/longer",
    "prenorm/inv_sqrt_depth/longer",
]


class DeepSearch(Config):
    """The part `deep`: each placement's rate by a walk on one seed, then a comparison on other seeds."""

    layers: int = Field(default=48, ge=2, le=1_000, description="Blocks of the trained models")
    steps: int = Field(default=1_500, ge=1, le=1_000_000, description="Optimiser steps of a training")
    warmup: int = Field(
        default=75, ge=0, le=1_000_000, description="Steps in which the rate rises, fewer than all"
    )
    search_seed: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Seed on which the rates are chosen; none of those that are compared",
    )
    further: Annotated[tuple[FurtherCandidate, ...], Distinct] = Field(
        default=(),
        description="Placements and starts that are searched as well, and not compared: prenorm/none is unscaled, "
        "inv_depth starts at 1/L, longer warms up five times as long",
    )
    seeds: Seeds = Field(default=(1, 2, 3, 4), min_length=2, description="Seeds that are compared, in pairs")

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.search_seed in self.seeds:
            raise ValueError(
                f"search_seed={self.search_seed} is one of the seeds that are compared; a rate that was chosen on a "
                "seed looks too good there, so give another"
            )
        if self.warmup >= self.steps:
            raise ValueError(f"warmup={self.warmup}: give fewer than steps={self.steps}")
        if 5 * self.warmup >= self.steps and any(name.endswith("longer") for name in self.further):
            raise ValueError(
                f"warmup={self.warmup}: the further placements warm up five times as long, which is not below "
                f"steps={self.steps}; give more steps or fewer of warm-up"
            )
        return self


class SpanNormStudy(Config):
    """The paper's claims on bytes of real text: laws at the start, and short trainings of every scheme."""

    data: str = Field(
        "data/kjv/kjv.jsonl",
        min_length=1,
        description="Folder, file or glob of text (.txt, .md, .rst, or .jsonl with a column text), a bundled source "
        "such as 'bundled:squad-passages', or a hub data set id",
    )
    profile: Literal["default", "full"] = Field(
        "default",
        description="default: the parts below within minutes; full: every part, every scheme, a dense grid of rates",
    )
    parts: Annotated[tuple[Part, ...], Distinct] = Field(
        ("start", "moderate", "rates"),
        min_length=1,
        description="start: gradients and sizes before training; moderate: five candidates at the first rate; rates: "
        "the higher rates; range: longer warm-up and smaller starts at high rates; smaller: the start 1/L of SpanNorm "
        "and PreNorm; depth: blocks at a fixed number of parameters; experts: mixtures of experts; deep: SpanNorm "
        "and PreNorm deeper and longer, hours",
    )
    rates: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Distinct] = Field(
        (2e-3, 2.83e-3, 4e-3, 5.66e-3, 8e-3),
        min_length=1,
        description="Peak learning rates in steps of 1.41, the moderate one first; full takes a wider grid",
    )
    candidates: Literal["contenders", "all"] = Field(
        "contenders",
        description="Who is trained at the other rates: SpanNorm and PreNorm (scaled and not), or every placement",
    )
    seeds: Seeds = Field(
        (0, 1, 2, 3, 4), min_length=3, description="Seeds of weights and order at the moderate rate"
    )
    grid_seeds: Seeds = Field((0, 1, 2), min_length=1, description="Seeds everywhere else")
    layers: int = Field(24, ge=2, le=1_000, description="Blocks of the trained models")
    steps: int = Field(160, ge=1, le=1_000_000, description="Optimiser steps of a training")
    warmup: int = Field(20, ge=0, le=1_000_000, description="Steps in which the rate rises")
    batch: int = Field(8, ge=1, le=4_096, description="Rows a step")
    context: int = Field(64, ge=2, le=65_536, description="Bytes of a row")
    validation_rows: int = Field(
        256, ge=8, le=100_000, description="Held-out rows, spread over the held-out end of the text"
    )
    start_depths: Annotated[tuple[Annotated[int, Field(ge=2, le=2_000)], ...], Distinct] = Field(
        (6, 24, 96, 192), min_length=3, description="Depths at which the start is measured"
    )
    deep: DeepSearch = Field(DeepSearch(), description="Sizes of the part `deep`")
    processes: int = Field(2, ge=1, le=256, description="Trainings at the same time, each on one core")
