"""Settings of the compress step. Imports nothing heavy."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.compress.recipes import MagnitudeRecipe, Recipe, WandaRecipe
from tasks.config import Config


class CompressSettings(Config):
    """The compress step: each recipe makes one compressed model."""

    recipes: tuple[Recipe, ...] = Field(
        default=(
            MagnitudeRecipe(),
            MagnitudeRecipe(pattern="2:4"),
            WandaRecipe(),
            WandaRecipe(pattern="2:4"),
        ),
        description="Recipes to try, each a compressed model of its own; none leaves the step out",
    )

    @model_validator(mode="after")
    def _labels_differ(self) -> Self:
        labels = [recipe.label for recipe in self.recipes]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"recipes must differ: {', '.join(twice)} is given twice")
        return self
