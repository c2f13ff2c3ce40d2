"""Settings of the study of `pmatic`. Imports nothing heavy."""

from typing import Annotated, Literal

from pydantic import Field

from tasks.config import Config, Distinct, Seeds

Part = Literal["design", "sizes", "violations", "robust", "llm"]
Pair = Literal["steps", "bfloat16", "threads"]


class PmaticStudy(Config):
    """The paper's claims on real text: redundancy by bound, sizes of real archives, and who can read them."""

    data: str = Field(
        "data/kjv/kjv.jsonl",
        min_length=1,
        description="Folder, file or glob of text (.txt, .md, .rst, or .jsonl with a column text), a bundled source, "
        "or a hub data set id; 200 kB at least",
    )
    model: str = Field(
        "bundled:smollm2-135m",
        min_length=1,
        description="Language model of the part llm: 'bundled:smollm2-135m', a model folder, or a hub id",
    )
    profile: Literal["default", "full"] = Field(
        "default", description="default: the parts below; full: every part, more files and longer trainings"
    )
    parts: Annotated[tuple[Part, ...], Distinct] = Field(
        ("design", "sizes", "violations", "robust"),
        min_length=1,
        description="design: expected redundancy; sizes: archives beside other compressors; violations: noise of known "
        "size; robust: a byte model's computations against each other; llm: the same with a language model",
    )
    seeds: Seeds = Field(
        (0, 1, 2),
        min_length=1,
        description="Places of the text that are compressed; seeds of the byte models",
    )
    deltas: Annotated[tuple[float, ...], Distinct] = Field(
        (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 5e-2),
        min_length=2,
        description="Bounds of base PMATIC in total variation; ours are 4 times as large, in log-odds",
    )
    streams: int = Field(100, ge=1, le=100_000, description="Texts of 100 bytes for each kind of noise")
    models: int = Field(3, ge=1, le=100, description="Byte models of the part robust, for the first seeds")
    pairs: Annotated[tuple[Pair, ...], Distinct] = Field(
        ("steps", "bfloat16", "threads"),
        min_length=1,
        description="Who reads in the part robust: single cached steps in float32, in bfloat16, on two threads (first "
        "model only: on busy cores two threads wait for each other)",
    )
    files: int = Field(20, ge=1, le=1_000, description="Files of the part robust")
    file_bytes: int = Field(4_096, ge=64, le=65_536, description="Bytes of such a file")
    mismatch_tokens: int = Field(
        1_024,
        ge=16,
        le=1_000_000,
        description="Bytes of other text that a byte model's mismatch is measured on",
    )
    train_steps: int = Field(250, ge=1, le=1_000_000, description="Optimiser steps of a byte model")
    llm_files: int = Field(3, ge=1, le=1_000, description="Files of the part llm, about 1 kB each")
    llm_bytes: int = Field(
        65_536, ge=1_024, le=10_000_000, description="Bytes that the language model archives"
    )
