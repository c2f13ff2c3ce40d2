"""Settings of the coreset of a source that may be larger than memory. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.cluster.methods import CLUSTERS, EPS, POINTS, POWER
from tasks.config import Config


class StreamSource(Config):
    """Where the rows come from; they are read a batch at a time."""

    source: str = Field(
        default="bundled:digits",
        min_length=1,
        description="'bundled:digits', a .parquet, .arrow, .csv, .jsonl or .npy file, a folder or glob of such files, "
        "or a folder written by datasets.save_to_disk; each may be larger than memory",
    )
    columns: tuple[str, ...] = Field(
        default=(),
        description="Columns that are features: numbers, or lists of numbers of one length (embeddings); empty takes "
        "every column of numbers",
    )
    batch_rows: int = Field(default=8_192, ge=1, le=100_000_000, description="Rows that are read at once")
    partitions: int = Field(
        default=4,
        ge=1,
        le=100_000,
        description="Pieces that are reduced side by side, at most; each goes to the task runner on its own, and a "
        "run that was killed goes on with the pieces that are missing",
    )


class StreamCoresetSettings(Config):
    """A coreset of all rows, and centres solved on it."""

    features: StreamSource = Field(default=StreamSource(), description="The rows")
    n_clusters: int = CLUSTERS
    points: int = POINTS
    eps: float = EPS
    power: Literal[1, 2] = POWER
    starts: int = Field(
        default=10, ge=1, le=10_000, description="Starts of the solver, of which the best is taken"
    )
    label_rows: bool = Field(
        default=True,
        description="Read all rows once more: each row's cluster, and the exact cost beside the coreset's estimate",
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="Seed of the draws and the solver")
