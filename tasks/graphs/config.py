"""Settings of the graph steps. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tasks.config import Config, Distinct, Seeds

Level = Literal["node", "graph", "edge"]
Kind = Literal[
    "s3gnn", "no_p0", "mlp", "gcn", "gcn_vn", "gin", "gat", "cheb", "stable_cheb", "gps", "adgn", "swan"
]
Rate = Annotated[float, Field(gt=0, le=1)]


class GraphSettings(Config):
    """Where the graphs come from, and what is to be predicted."""

    source: str = Field(
        default="bundled:rings",
        min_length=1,
        description="A folder with edges.csv (columns source, target), and where there are any nodes.csv (node and "
        "features) and graphs.csv; a column `graph` in each tells several graphs apart. Or .graphml, .gml or .json "
        "(node-link) files as NetworkX writes them: a file, folder or glob, a graph each. Or a .pt file of "
        "torch-geometric Data. 'bundled:rings': classes to be carried to the node opposite",
    )
    level: Level = Field(
        default="node", description="What a target belongs to: a node, a whole graph, or an edge"
    )
    target: str = Field(
        default="y",
        min_length=1,
        description="Column or attribute with the target; rows without one are predicted. Of .pt files y is taken",
    )
    kind: Literal["auto", "classes", "numbers"] = Field(
        default="auto",
        description="auto: text, truth values and up to 20 different whole numbers are classes",
    )
    features: tuple[str, ...] = Field(
        default=(),
        description="Columns or attributes of nodes that are features; empty takes every one that holds numbers; "
        "without any, the degree is the feature",
    )
    weight: str = Field(
        default="", description="Column or attribute of edges with weights of at least 0; empty: all 1"
    )


class TrainGraphSettings(Config):
    """The models and how they are trained, all alike."""

    models: Annotated[tuple[Kind, ...], Distinct] = Field(
        default=("s3gnn", "gcn_vn", "gcn"),
        min_length=1,
        description="Models to put side by side; mlp sees no edges, no_p0 is s3gnn without its global mean",
    )
    use_p1: bool = Field(
        default=False,
        description="s3gnn also with the spectral projector: far nodes told apart by where they lie",
    )
    hidden: int = Field(default=64, ge=1, le=4096, description="Width")
    layers: int = Field(default=4, ge=1, le=256, description="Layers")
    act: Literal["relu", "tanh"] = Field(default="relu", description="After each layer")
    epochs: int = Field(default=100, ge=1, le=100_000, description="Epochs at most")
    patience: int = Field(default=20, ge=1, le=100_000, description="Epochs without a lower validation loss")
    batch_size: int = Field(default=16, ge=1, le=100_000, description="Graphs a step")
    learning_rates: Annotated[tuple[Rate, ...], Distinct] = Field(
        default=(3e-3, 1e-2), min_length=1, description="Each is tried; the lower validation loss chooses"
    )
    test: float = Field(default=0.2, gt=0, lt=1, description="Share of the known targets that only scores")
    seeds: Seeds = Field(
        default=(0, 1, 2), min_length=1, description="Seeds of weights, batches and validation part"
    )
