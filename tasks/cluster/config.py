"""Settings of the cluster step. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.cluster.methods import Method, ScFagc
from tasks.config import Config


class FeatureSettings(Config):
    """Where the samples come from, and what of them counts."""

    source: str = Field(
        default="bundled:digits",
        min_length=1,
        description="'bundled:digits' (1,797 images of 8 x 8 with their digit), a .csv, .parquet, .jsonl, .arrow, "
        ".npy or .npz file, a folder or glob of tables, or a folder written by datasets.save_to_disk. Arrays of "
        "images are flattened",
    )
    columns: tuple[str, ...] = Field(
        default=(),
        description="Columns that are features: numbers, or lists of numbers of one length (embeddings); empty takes "
        "every column of numbers. Of an .npz file the array's name",
    )
    label_column: str = Field(
        default="",
        description="Column (or array in .npz) with a true class, used only to score the clusters, never to find them",
    )
    hub_split: str = Field(
        default="train", min_length=1, description="Split of a saved data set with several"
    )
    scale: Literal["none", "standard"] = Field(
        default="none",
        description="standard: each feature to mean 0 and standard deviation 1, for tables whose columns have "
        "different units; none: as they are, for embeddings and images",
    )
    components: int = Field(
        default=0, ge=0, le=100_000, description="Keep this many principal components; 0 keeps the features"
    )


class ClusterSettings(Config):
    """The cluster step: each method labels all samples."""

    features: FeatureSettings = Field(default=FeatureSettings(), description="The samples")
    methods: tuple[Method, ...] = Field(
        default=(ScFagc(),), min_length=1, description="Methods to put side by side, each with its own labels"
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="Seed of every method")

    @model_validator(mode="after")
    def _labels_differ(self) -> Self:
        labels = [method.label for method in self.methods]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"methods must differ: {', '.join(twice)} is given twice")
        return self
