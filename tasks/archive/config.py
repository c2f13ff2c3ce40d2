"""Settings of the archive step. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tasks.config import Config, Distinct

Computation = Literal["steps", "bfloat16", "float16"]


class CodecSettings(Config):
    """The bound on the mismatch, and the design that keeps to it."""

    bound: float = Field(
        default=0.0,
        ge=0,
        le=100,
        description="Largest move of a bit's log-odds between the machines, in nats; 0 measures it on calibration "
        "text",
    )
    safety: float = Field(
        default=4.0,
        ge=1,
        le=1_000,
        description="Factor on the measured mismatch; of no use with a given bound",
    )
    computations: Annotated[tuple[Computation, ...], Distinct] = Field(
        default=("steps",),
        min_length=1,
        description="Second computations of the model that must be able to read: the bound is measured against each, "
        "and each reads every archive back. steps: single cached steps, as reading does; bfloat16, float16: "
        "the same in that number format",
    )
    design: Literal["companded", "dp", "uniform"] = Field(
        default="companded",
        description="Where the interval boundaries go: companded (the rule), dp (fitted to much calibration text), "
        "uniform",
    )
    tree: Literal["auto", "huffman", "rank", "flat"] = Field(
        default="auto",
        description="Tree of the tokens: huffman (counted on calibration text; kept in the codec), rank (vocabulary "
        "sorted by frequency), flat (base PMATIC's); auto: huffman up to 4,096 tokens, else rank",
    )
    chunk_tokens: int = Field(
        default=4_096,
        ge=16,
        le=65_536,
        description="Tokens of a chunk: what is read alone, and what one violation of the bound costs",
    )
    calibration_tokens: int = Field(
        default=20_000,
        ge=0,
        le=100_000_000,
        description="Tokens of calibration text that the design is fitted on",
    )
    mismatch_tokens: int = Field(
        default=512,
        ge=1,
        le=10_000_000,
        description="Tokens of calibration text that the mismatch is measured on",
    )

    @model_validator(mode="after")
    def _measurable(self) -> Self:
        if not self.bound and self.mismatch_tokens and not self.calibration_tokens:
            raise ValueError("bound is 0 and calibration_tokens is 0: nothing could be measured; raise one")
        return self


class ArchiveSettings(CodecSettings):
    """How files are archived with a language model."""

    window: int = Field(
        default=0,
        ge=0,
        le=1_048_576,
        description="Tokens of context; 0 takes the model's own, at most 1024. Reading must use the same",
    )
    dtype: Literal["float32", "bfloat16", "stored"] = Field(
        default="float32",
        description="Number format in which the model computes; 'stored' keeps the weights' own",
    )
    rows: int = Field(
        default=16,
        ge=1,
        le=4_096,
        description="Chunks that are read side by side; more is faster and takes more memory",
    )
