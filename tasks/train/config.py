"""Settings of the finetune step. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.config import Config

Stopping = Literal["merge_aware", "own_optimum", "fixed"]


class FinetuneSettings(Config):
    """How an expert is trained, and when it stops."""

    stoppings: tuple[Stopping, ...] = Field(
        default=("merge_aware",),
        min_length=1,
        description="One expert a task for each rule. merge_aware: stop at the first plateaus of the stop part, as "
        "the paper does; own_optimum: train max_steps and keep the best checkpoint, the usual habit; fixed: train "
        "max_steps and keep the last weights",
    )
    adapter: Literal["lora", "full"] = Field(
        default="lora", description="Train a LoRA adapter on all linear layers, or all weights"
    )
    rank: int = Field(default=16, ge=1, le=1_024, description="LoRA rank")
    alpha: float = Field(default=32.0, gt=0, description="LoRA alpha; the adapter is scaled by alpha / rank")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="LoRA dropout")
    learning_rate: float = Field(
        default=1e-3,
        gt=0,
        le=1,
        description="Peak learning rate of AdamW; about 1e-3 for LoRA, 2e-5 for full",
    )
    weight_decay: float = Field(default=0.0, ge=0, le=1, description="Weight decay of AdamW")
    batch_size: int = Field(
        default=8, ge=1, le=4_096, description="Examples an optimiser step, over all devices together"
    )
    max_steps: int = Field(default=40, ge=1, le=1_000_000, description="Most optimiser steps")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant",
        description="Learning rate after warm-up for own_optimum and fixed; merge_aware is constant until plateaus",
    )
    warmup: int = Field(
        default=4,
        ge=0,
        le=100_000,
        description="Optimiser steps of linear warm-up; the stop part is not asked before",
    )
    stop_metric: Literal["loss", "accuracy"] = Field(
        default="loss",
        description="What the stop part measures: bits per byte of the right answers, or accuracy per byte (coarse "
        "on fewer than some hundred examples)",
    )
    stop_every: int = Field(
        default=5, ge=1, le=10_000, description="Optimiser steps between looks at the stop part"
    )
    stop_patience: int = Field(
        default=2, ge=1, le=1_000, description="Looks without improvement that make a plateau"
    )
    stop_factor: float = Field(
        default=0.5, gt=0, lt=1, description="Factor of the learning rate at each plateau"
    )
    stop_reductions: int = Field(
        default=0,
        ge=0,
        le=100,
        description="Plateaus that reduce the rate; the next one stops. 0 stops at the first",
    )
    stop_examples: int = Field(
        default=32, ge=1, le=512, description="Examples of the stop part in use; each look at them costs time"
    )
    max_length: int = Field(
        default=384, ge=8, le=131_072, description="Tokens of an example; longer prompts lose their beginning"
    )
    learn_end: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="Train the end-of-text token after the answer; auto: for free text only, where there is no choice",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Number format of the frozen weights and of the computation; auto: bfloat16 where the device is "
        "fast in it. What is trained stays float32",
    )
    checkpoint_every: int = Field(
        default=12,
        ge=1,
        le=100_000,
        description="Optimiser steps between checkpoints that a killed run resumes from",
    )
    seed: int = Field(
        default=0, ge=0, le=2**31 - 1, description="Seed of the adapter, the order and the dropout"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.warmup >= self.max_steps:
            raise ValueError(f"warmup {self.warmup} is not below max_steps {self.max_steps}; lower warmup")
        if len(set(self.stoppings)) < len(self.stoppings):
            raise ValueError(f"stoppings {list(self.stoppings)} names a rule twice; leave one out")
        return self
