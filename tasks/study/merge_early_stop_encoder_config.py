"""Settings of the encoder bench of `merge_early_stop`. Imports nothing heavy."""

from typing import Annotated, Literal

from pydantic import Field

from tasks.config import Config, Distinct, Seeds

TextTask = Literal["tweets", "films", "news", "products", "socialiqa", "arc_easy", "csqa"]


class EncoderTexts(Config):
    """Which text tasks the experts learn, and how much of each."""

    names: Annotated[tuple[TextTask, ...], Distinct] = Field(
        default=("tweets", "films", "news", "socialiqa", "arc_easy"),
        description="Tasks: rated sentences of four domains (positive or negative), and questions with choices",
    )
    own: Annotated[tuple[str, ...], Distinct] = Field(
        default=(),
        description="Your own tasks: JSON-lines files, each line {text, answers: [...], gold: index of the right one}",
    )
    train: int = Field(default=600, ge=8, le=1_000_000, description="Training texts of each task")
    stop: int = Field(
        default=100, ge=8, le=100_000, description="Texts of each task that drive early stopping"
    )
    select: int = Field(
        default=80, ge=8, le=100_000, description="Texts of each task that choose lambda and length"
    )
    test: int = Field(default=250, ge=8, le=100_000, description="Texts of each task that are reported")
    max_tokens: int = Field(default=24, ge=4, le=8192, description="Longer texts are cut")


class EncoderBenchStudy(Config):
    """The paper's claims on a sentence encoder with text tasks, by full fine-tuning and by LoRA."""

    model: str = Field(
        "bundled:minilm-l6",
        min_length=1,
        description="Encoder: 'bundled:minilm-l6', a folder written by save_pretrained (safetensors), or a hub id",
    )
    data: str = Field(
        "data/sentiment",
        min_length=1,
        description="Folder with the rated sentences, as `seedloom fetch` makes it",
    )
    tasks: EncoderTexts = Field(EncoderTexts(), description="The text tasks")
    kinds: Annotated[tuple[Literal["full", "lora"], ...], Distinct] = Field(
        ("full", "lora"),
        min_length=1,
        description="full: every layer but the embedding tables; lora: adapters on every linear layer",
    )
    seeds: Seeds = Field(
        (0, 1),
        min_length=1,
        description="Replicates: parts of the tasks, order, dropout, start of the adapters",
    )
    steps: Annotated[tuple[Annotated[int, Field(ge=1, le=10_000_000)], ...], Distinct] = Field(
        (4, 8, 16, 32, 64, 128, 256),
        min_length=2,
        description="Training lengths of the sweep in optimiser steps; the longest is 'trained to the end'",
    )
    learning_rate_full: float = Field(1e-4, gt=0, le=1, description="Constant rate of full fine-tuning")
    learning_rate_lora: float = Field(1e-3, gt=0, le=1, description="Constant rate of LoRA")
    warmup: int = Field(8, ge=0, le=100_000, description="Steps of linear warm-up")
    rank: int = Field(8, ge=1, le=1024, description="Rank of the adapters; their alpha is twice that")
    batch_size: int = Field(32, ge=1, le=4096, description="Texts of an optimiser step")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Number format of the matrix products; 'auto' takes bfloat16 where the processor computes with it",
    )
