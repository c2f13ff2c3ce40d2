"""Settings that every training on packed rows of text has. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.config import Config


class PackedTrainingSettings(Config):
    """Rates, sizes and looks of a training on packed rows; the rate rises, stays, and falls to nothing."""

    learning_rate: float = Field(default=1e-3, gt=0, le=1, description="Peak rate of AdamW")
    weight_decay: float = Field(default=0.1, ge=0, le=1, description="Weight decay of AdamW")
    clip: float = Field(
        default=1.0, gt=0, description="Largest norm of the gradient; a larger one is scaled down"
    )
    batch_size: int = Field(
        default=8, ge=1, le=65_536, description="Rows an optimiser step, over all devices together"
    )
    max_steps: int = Field(default=200, ge=1, le=10_000_000, description="Optimiser steps")
    warmup_share: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the steps in which the rate rises from 0"
    )
    decay_share: float = Field(
        default=0.4,
        ge=0,
        le=1,
        description="Share of the steps, the last ones, in which the rate falls to 0; the middle is flat",
    )
    evaluate_every: int = Field(
        default=50, ge=1, le=1_000_000, description="Optimiser steps between losses on the held-out text"
    )
    checkpoint_every: int = Field(
        default=50,
        ge=1,
        le=1_000_000,
        description="Optimiser steps between checkpoints that a killed run resumes from",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Compute activations again instead of keeping them: less memory, more time"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Number format of the computation; auto: bfloat16 on a GPU that has it. Weights stay float32",
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Seed of the rows' order",
        json_schema_extra={"position": 80},
    )

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.warmup_share + self.decay_share > 1:
            raise ValueError(
                f"warmup_share {self.warmup_share} and decay_share {self.decay_share} are above 1 together; lower one"
            )
        return self
