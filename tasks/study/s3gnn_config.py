"""Settings of the study of `s3gnn`. Imports nothing heavy."""

from typing import Annotated, Literal

from pydantic import Field

from tasks.config import Config, Distinct

Part = Literal[
    "law", "payload", "payload_far", "routing", "barbell", "diameter", "hops", "kgqa", "mesh", "weights"
]
Model = Literal[
    "s3gnn",
    "s3gnn_p1",
    "no_p0",
    "gcn",
    "gcn_vn",
    "gin",
    "gat",
    "cheb",
    "gps",
    "adgn",
    "swan",
    "stable_cheb",
    "mlp",
]


class S3GNNStudy(Config):
    """The paper's claims on tasks whose answers lie far away, beside other graph networks tuned alike."""

    data: str = Field(
        "data/mesh_flow",
        min_length=1,
        description="Folder with flows.npz, as `seedloom fetch mesh_flow` writes it; for the part mesh",
    )
    parts: Annotated[tuple[Part, ...], Distinct] = Field(
        (
            "law",
            "payload",
            "payload_far",
            "routing",
            "barbell",
            "diameter",
            "hops",
            "kgqa",
            "mesh",
            "weights",
        ),
        min_length=1,
        description="law: sensitivity at initial weights; payload, payload_far, routing: classes carried across rings "
        "of 32, 128 and 16; barbell: the mean of the other clique; diameter; hops: eccentricity and shortest paths; "
        "kgqa: questions over facts of countries; mesh: flows around a cylinder; weights: the barbell under each "
        "constraint of the weights",
    )
    models: Annotated[tuple[Model, ...], Distinct] = Field(
        (
            "s3gnn",
            "s3gnn_p1",
            "no_p0",
            "gcn",
            "gcn_vn",
            "gin",
            "gat",
            "cheb",
            "gps",
            "adgn",
            "swan",
            "stable_cheb",
            "mlp",
        ),
        min_length=1,
        description="s3gnn_p1 has the spectral projector too, no_p0 neither; stable_cheb and mlp only run on the "
        "barbell unless the profile is full",
    )
    seeds: int = Field(3, ge=3, le=100, description="Seeds of graphs, weights and batches")
    profile: Literal["quick", "full"] = Field(
        "quick", description="quick: small sets, minutes; full: the sets of the field, hours"
    )
    processes: int = Field(2, ge=1, le=64, description="Runs at the same time, a thread each")
