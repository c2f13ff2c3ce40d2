"""Settings of the evaluate step. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.config import Config


class EvaluateSettings(Config):
    """How candidates are scored."""

    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Number format of the computation; 'auto' takes bfloat16 where the processor computes with it",
    )
    split: Literal["test", "select", "stop"] = Field(
        default="test", description="Which part of the task sets is scored"
    )
    examples: int = Field(
        default=0, ge=0, le=1_000_000, description="Score only the first examples of each task; 0 scores all"
    )
    batch_tokens: int = Field(
        default=4_096, ge=64, le=1_000_000, description="Tokens in one forward pass; less needs less memory"
    )
    text_window: int = Field(
        default=256, ge=16, le=131_072, description="Window of the held-out text in tokens, without overlap"
    )
    measure_speed: bool = Field(
        default=True, description="Measure tokens per second of reading and of writing"
    )
    extra_tasks: tuple[str, ...] = Field(
        default=(),
        description="Further public tasks of lm-evaluation-harness by name, such as 'lambada_openai'; "
        "they fetch their data from the hub",
    )
    extra_examples: int = Field(
        default=200, ge=0, le=1_000_000, description="Examples of each public task; 0 scores all"
    )
    probe_prompts: int = Field(
        default=0,
        ge=0,
        le=1_000,
        description="Texts that each compressed model and the model it was made from both continue, to say where they "
        "part and which kinds of tasks survive; 0 leaves this out, 8 take about a minute a model",
    )
    probe_steps: int = Field(
        default=32, ge=4, le=4_096, description="Tokens that are written after each of these texts"
    )
