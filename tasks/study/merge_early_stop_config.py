"""Settings of the study of `merge_early_stop`. Imports nothing heavy."""

from typing import Annotated, Literal

from pydantic import Field

from tasks.config import Config, Distinct, Seeds


class MergeEarlyStopStudy(Config):
    """The paper's claims on eight shifted views of real digits."""

    data: str = Field(
        "data/mnist",
        min_length=1,
        description="Folder with digits.npz (images uint8 [n, side, side], labels), or such a file of your own",
    )
    profile: Literal["default", "full"] = Field(
        "default",
        description="default: the clean and the noisy run within minutes; full: five seeds and a denser noise grid",
    )
    seeds: Seeds = Field(
        (0, 1, 2), min_length=3, description="Independent replicates: split, base model and order of the data"
    )
    steps: Annotated[tuple[Annotated[int, Field(ge=1, le=10_000_000)], ...], Distinct] = Field(
        (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048),
        min_length=2,
        description="Training lengths of the sweep in optimiser steps; the longest is 'trained to the end'",
    )
    label_noise: Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], ...], Distinct] = Field(
        (0.0, 0.2), min_length=1, description="Shares of flipped training labels, each a run of its own"
    )
    train_per_task: int = Field(
        600, ge=20, le=100_000, description="Training images of each of the eight tasks"
    )
    base_steps: int = Field(1000, ge=1, le=1_000_000, description="Optimiser steps of the base model")
    processes: int = Field(2, ge=1, le=256, description="Replicates at the same time, each on one core")
