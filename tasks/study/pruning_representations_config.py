"""Settings of the study of `pruning_representations`. Imports nothing heavy."""

from __future__ import annotations

from pathlib import PurePath
from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.compress.recipes import DropRecipe, MagnitudeRecipe, Recipe, SparseGPTRecipe, WandaRecipe
from tasks.config import Config, Seeds
from tasks.prepare.config import TextSettings


class PruningRepresentationsStudy(Config):
    """The paper's claims on a real language model and a real sentence encoder, or on your own model and recipes."""

    model: str = Field(
        default="bundled:smollm2-135m",
        min_length=1,
        description="Language model: 'bundled:smollm2-135m', a folder written by save_pretrained (safetensors), or a "
        "hub id such as 'Qwen/Qwen3-0.6B'",
    )
    profile: Literal["default", "full"] = Field(
        default="default",
        description="default: within minutes; full: also other numbers of attentions, MLPs and blocks on all tasks, "
        "2:4, MLP sublayers, four temperatures; more than an hour",
    )
    recipes: tuple[Recipe, ...] = Field(
        default=(
            DropRecipe(layers=4),
            DropRecipe(layers=12),
            DropRecipe(sublayer="mlp", layers=2),
            WandaRecipe(calibration_sequences=32),
        ),
        min_length=1,
        description="Compressions to judge, each on all tasks and by all probes",
    )
    perplexity_recipes: tuple[Recipe, ...] = Field(
        default=(
            MagnitudeRecipe(),
            WandaRecipe(calibration_sequences=32),
            SparseGPTRecipe(calibration_sequences=32),
        ),
        description="Further compressions of which only the perplexity is measured; the full profile adds 2:4",
    )
    compressed: tuple[str, ...] = Field(
        default=(),
        description="Folders of models that were compressed elsewhere (with the same vocabulary), judged like recipes",
    )
    seeds: Seeds = Field(
        default=(0, 1, 2), min_length=3, description="Draws of the text that the layers are probed on"
    )
    items: int = Field(default=200, ge=8, le=2_000, description="Items of each task")
    probe_tokens: int = Field(
        default=256, ge=16, le=100_000, description="Tokens at which each layer is probed, per seed"
    )
    prompts: int = Field(default=8, ge=2, le=1_000, description="Prompts that are continued")
    steps: int = Field(default=64, ge=4, le=4_096, description="Tokens that are written after each prompt")
    temperature: float = Field(
        default=1.0, gt=0, le=100, description="Temperature of the probabilities that are compared"
    )
    text: TextSettings = Field(
        default=TextSettings(heldout_bytes=100_000, calibration_bytes=100_000, document_bytes=13_000),
        description="Prose for calibration and, from other documents, for the probes",
    )
    encoder: str = Field(
        default="bundled:minilm-l6",
        min_length=1,
        description="BERT sentence encoder for the retrieval part; 'none' leaves it out",
    )

    @model_validator(mode="after")
    def _labels_differ(self) -> Self:
        names = [PurePath(folder).name for folder in self.compressed]
        taken = ["dense", *(recipe.label for recipe in (*self.recipes, *self.perplexity_recipes))]
        if twice := sorted({name for name in names if names.count(name) + taken.count(name) > 1}):
            raise ValueError(f"compressed: {twice[0]!r} is the name of two models; rename the folder")
        for recipes in (self.recipes, self.perplexity_recipes):
            labels = [recipe.label for recipe in recipes]
            if twice := sorted({label for label in labels if labels.count(label) > 1}):
                raise ValueError(f"recipes must differ: {', '.join(twice)} is given twice")
        return self
