"""Settings of the adapt step. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.config import Config
from tasks.prepare.config import TextSource
from tasks.train.packed_config import PackedTrainingSettings

Method = Literal["psd-skip", "psd-cyclic", "psd-longce", "clm", "longce", "pose", "pose-rows"]
PositionTask = Literal[
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
    "recall",
]


class LongText(TextSource):
    """The text to adapt on, and the length of its rows."""

    hub_split: str = Field(
        default="train", min_length=1, description="Split of a hub data set or of a saved folder"
    )
    context: int = Field(
        default=256,
        ge=8,
        le=4_194_304,
        description="Target length: tokens of a training row, and of the evaluation's prompts",
    )
    validation_share: float = Field(
        default=0.05, gt=0, lt=1, description="Share of the text, its end, that is held out"
    )


class PositionSettings(Config):
    """How answers are measured by the evidence's depth."""

    task: PositionTask = Field(
        default="niah_single_1",
        description="niah_...: RULER's needles in noise, among other needles or in your text; recall: facts in your "
        "text without instructions, for models that follow none",
    )
    depths: int = Field(
        default=5, ge=2, le=101, description="Places of the evidence, from the start to the end of the prompt"
    )
    prompts: int = Field(default=4, ge=1, le=10_000, description="Prompts at each depth and length")
    shorter: bool = Field(default=True, description="Measure at half the target length too")
    beyond: float = Field(
        default=1.0,
        ge=1,
        le=64,
        description="Measure beyond the target length too, this many times longer, with YaRN; 1 leaves it out",
    )
    chat: bool = Field(default=False, description="Put the prompts into the tokenizer's chat template")
    rows: int = Field(default=8, ge=1, le=100_000, description="Held-out rows for losses and view gaps")
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="Seed of the prompts")


class AdaptSettings(PackedTrainingSettings):
    """How a model is trained on longer text."""

    text: LongText = Field(
        default=LongText(), description="The text and the target length", json_schema_extra={"position": 1}
    )
    method: Method = Field(
        default="psd-skip",
        description="psd-skip: self-distillation from the same text under moved positions; psd-cyclic: positions "
        "turned round; psd-longce: psd-skip with long-context re-weighting; baselines: clm (plain), longce, pose, "
        "pose-rows",
        json_schema_extra={"position": 2},
    )
    kl_weight: float = Field(
        default=1.0,
        gt=0,
        le=100,
        description="Weight of the self-distillation beside the usual loss",
        json_schema_extra={"position": 3},
    )
    max_skip: float = Field(
        default=1.0,
        gt=0,
        le=64,
        description="Largest gap between prefix and suffix, in target lengths",
        json_schema_extra={"position": 4},
    )
    rope_theta: float = Field(
        default=0.0,
        ge=0,
        le=1e12,
        description="New base of the rotary frequencies (ABF), such as 8e6 for 64k tokens; 0 keeps the model's",
        json_schema_extra={"position": 5},
    )
    learning_rate: float = Field(default=1e-5, gt=0, le=1, description="Peak rate of AdamW")
    weight_decay: float = Field(default=0.1, ge=0, le=1, description="Weight decay of AdamW")
    batch_size: int = Field(
        default=1, ge=1, le=65_536, description="Rows an optimiser step, over all devices together"
    )
    max_steps: int = Field(
        default=20, ge=1, le=10_000_000, description="Optimiser steps; the paper's is 1,000"
    )
    decay_share: float = Field(
        default=0.9, ge=0, le=1, description="Share of the steps, the last ones, in which the rate falls to 0"
    )
    evaluate_every: int = Field(
        default=10, ge=1, le=1_000_000, description="Optimiser steps between losses on the held-out text"
    )
    checkpoint_every: int = Field(
        default=20,
        ge=1,
        le=1_000_000,
        description="Optimiser steps between checkpoints that a killed run resumes from",
    )
    gradient_checkpointing: bool = Field(
        default=False,
        description="Compute activations again instead of keeping them: less memory; the second view is then "
        "read whole",
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Seed of the rows' order and of the gaps",
        json_schema_extra={"position": 80},
    )
    positions: PositionSettings = Field(
        default=PositionSettings(), description="Answers by the evidence's depth, before and after"
    )
