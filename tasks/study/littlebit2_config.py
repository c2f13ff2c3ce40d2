"""Settings of the study of `littlebit2`. Imports nothing heavy."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from tasks.config import Config, Seeds
from tasks.prepare.config import ModelSettings, TextSettings


class WeightsStudy(Config):
    """Reconstruction errors of every linear layer of a model."""

    every_block: int = Field(
        default=10,
        ge=1,
        le=1_000,
        description="Further bit budgets, ADMM and the other peers on blocks whose number this divides; at 0.55 "
        "bits all layers are measured. The full profile takes at least every fifth block",
    )
    two_bits: bool = Field(
        default=False,
        description="Also the factorisations at 2.5 bits, which the 2-bit peer stores; slow, in the full profile",
    )
    processes: int = Field(
        default=2, ge=1, le=256, description="Layers or students at the same time, each on one core"
    )


class SmallStudy(Config):
    """Small models trained here, compressed by every initialisation, distilled alike."""

    seeds: Seeds = Field(
        default=(0, 1, 2),
        min_length=3,
        description="Independent teachers and distillations; the full profile has at least five",
    )
    base_steps: int = Field(default=200, ge=1, le=1_000_000, description="Optimiser steps of a teacher")
    distill_steps: int = Field(
        default=60, ge=1, le=1_000_000, description="Optimiser steps of a distillation"
    )
    distill_rate: float = Field(
        default=3e-3, gt=0, le=1, description="Peak learning rate of the distillation"
    )
    processes: int = Field(
        default=2, ge=1, le=256, description="Layers or students at the same time, each on one core"
    )


class ModelStudy(Config):
    """The model itself compressed, distilled and scored beside its peers; the packed model folders are kept."""

    methods: tuple[Literal["joint_itq", "random_rotation", "svd", "admm"], ...] = Field(
        default=("joint_itq", "svd"),
        min_length=1,
        description="Initialisations that the model is distilled from",
    )
    bpp: float = Field(default=0.55, gt=0, le=4, description="Bits per weight of the compressed model")
    tokens: int = Field(
        default=20_480, ge=1, description="Tokens of distillation text that each student reads"
    )
    rates: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        default=(1e-3, 2e-3, 4e-3),
        min_length=1,
        description="Peak learning rates; of several, each start takes the one that does best in a short run, judged "
        "on held-out text that is not reported",
    )
    short_tokens: int = Field(
        default=8_192,
        ge=1,
        description="Tokens of the short runs that choose the learning rate and of the repeats",
    )
    repeats: tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...] = Field(
        default=(),
        description="Further seeds of rotation and order of the text, in short runs: the spread. None leaves them out",
    )
    length: int = Field(default=128, ge=8, le=32_768, description="Tokens of a sequence")
    batch: int = Field(default=4, ge=1, le=4_096, description="Sequences of a step")
    hidden_weight: float = Field(
        default=0.0,
        ge=0,
        description="Weight of the hidden states' error; models with a few huge activations need a small one",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Number format of the matrix products in distillation; 'auto' takes bfloat16 where it is fast",
    )
    scored_tokens: int = Field(
        default=2_048,
        ge=128,
        description="Held-out tokens that are scored; as many others choose the learning rate",
    )

    @field_validator("methods", "rates", "repeats")
    @classmethod
    def _differ(cls, values: tuple[object, ...]) -> tuple[object, ...]:
        if len(set(values)) < len(values):
            raise ValueError(f"{', '.join(map(str, values))}: give each only once")
        return values


class LittleBit2ModelStudy(Config):
    """A model compressed, distilled and scored beside its peers; the packed model folders are kept."""

    model: ModelSettings = Field(default=ModelSettings(), description="The model whose layers are compressed")
    text: TextSettings = Field(
        default=TextSettings(heldout_bytes=100_000, calibration_bytes=3_000_000, document_bytes=20_000),
        description="Text to train and distil on (the calibration part) and to judge on (other documents)",
    )
    distilled: ModelStudy = Field(default=ModelStudy(), description="Compression and distillation")


class LittleBit2Study(LittleBit2ModelStudy):
    """The paper's claims on a real model's weights and on small models trained here."""

    profile: Literal["default", "full"] = Field(
        default="default",
        description="default: within minutes; full: more layers and seeds, and the model itself distilled and scored",
        json_schema_extra={"position": 0},
    )
    weights: WeightsStudy = Field(default=WeightsStudy(), description="Reconstruction of the model's layers")
    small: SmallStudy = Field(default=SmallStudy(), description="Small models trained here")
    distilled: ModelStudy = Field(
        default=ModelStudy(),
        description="The model itself, in the full profile",
        json_schema_extra={"position": 80},
    )

    def resolved(self) -> "LittleBit2Study":
        """The settings with what the profile adds to them."""
        if self.profile == "default":
            return self
        every = min(self.weights.every_block, 5)
        seeds = self.small.seeds + tuple(n for n in range(5) if n not in self.small.seeds)
        return self.model_copy(
            update={
                "weights": self.weights.model_copy(update={"every_block": every, "two_bits": True}),
                "small": self.small.model_copy(update={"seeds": seeds[: max(5, len(self.small.seeds))]}),
            }
        )
