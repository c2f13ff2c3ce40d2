"""Settings of the merge step. Imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.config import Config, Distinct
from tasks.merge.methods import method_names

if TYPE_CHECKING:
    MergeMethodName = str
else:
    # What other packages plug in is a choice of the form like the built-in methods.
    MergeMethodName = Literal[tuple(method_names())]


class MergeSettings(Config):
    """How experts are merged; each method makes one merged model, its coefficient chosen on the select parts."""

    methods: tuple[MergeMethodName, ...] = Field(
        default=("average", "task_arithmetic", "ties", "dare"),
        min_length=1,
        description="Merge methods to try, each a merged model of its own",
    )
    baseline_methods: Annotated[tuple[MergeMethodName, ...], Distinct] = Field(
        default=("task_arithmetic",),
        description="Methods that also merge the experts of every further stopping rule, for comparison",
    )
    coefficients: tuple[float, ...] = Field(
        default=(0.3, 0.5, 1.0),
        min_length=1,
        description="Factors of the merged vector to choose from, for every method but average",
    )
    density: float = Field(
        default=0.2, gt=0, le=1, description="TIES: share of each expert's largest changes that is kept"
    )
    granularity: Literal["global", "per_tensor"] = Field(
        default="global",
        description="TIES: the largest changes of the whole expert, or of each tensor by itself",
    )
    drop_rate: float = Field(
        default=0.9,
        ge=0,
        lt=1,
        description="DARE: probability that a change is dropped; the others are scaled up",
    )
    dare_then: Literal["average", "task_arithmetic", "ties"] = Field(
        default="task_arithmetic", description="DARE: what combines the experts after the dropping"
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="DARE: seed of the dropping")
    objective: Literal["loss", "accuracy"] = Field(
        default="loss",
        description="What the select parts measure, as the mean over tasks. loss: bits per byte of the right answers "
        "saved against the base, in parts of the base's; accuracy: accuracy per byte above guessing",
    )
    select_examples: int = Field(
        default=32, ge=1, le=100_000, description="Examples of each task's select part in use"
    )
    max_length: int = Field(
        default=1_024,
        ge=8,
        le=131_072,
        description="Tokens of an example; longer prompts lose their beginning",
    )
    batch_tokens: int = Field(
        default=2_048,
        ge=64,
        le=1_048_576,
        description="Tokens in one pass through the model on the select parts",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Number format in which coefficients are tried; auto: bfloat16 where the device is fast in it",
    )
    save_dtype: Literal["base", "float32", "bfloat16", "float16"] = Field(
        default="base", description="Number format of the merged model; base: that of the base model's file"
    )

    @field_validator("coefficients")
    @classmethod
    def _within_bounds(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        for value in values:
            if not 0 < value <= 100:
                raise ValueError(f"coefficient {value} must be a number above 0 and at most 100")
        if len(set(values)) < len(values):
            raise ValueError("a coefficient is given twice; leave one out")
        return values

    @model_validator(mode="after")
    def _methods_differ(self) -> Self:
        if len(set(self.methods)) < len(self.methods):
            raise ValueError(f"methods {list(self.methods)} names a method twice; leave one out")
        return self
