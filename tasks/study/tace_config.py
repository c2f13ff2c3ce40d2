"""Settings of the study of `tace`. Imports nothing heavy."""

from typing import Annotated, Literal

from pydantic import Field

from tasks.config import Config, Distinct

Part = Literal["fits", "costs"]
Model = Literal[
    "nequip_spherical",
    "nequip_cartesian",
    "nequip_path",
    "mace_spherical",
    "mace_cartesian",
    "mace_path",
    "allegro_spherical",
    "allegro_cartesian",
    "allegro_path",
    "tace",
    "scalar",
]


class TaceStudy(Config):
    """Potentials with the basis of their tensors as the only difference, on trajectories labelled by GFN2-xTB."""

    data: str = Field(
        "data/xtb",
        min_length=1,
        description="Folder of trajectories, as `seedloom fetch xtb` writes it; for the part fits",
    )
    parts: Annotated[tuple[Part, ...], Distinct] = Field(
        ("fits", "costs"),
        min_length=1,
        description="fits: force errors on ethanol at 500 K and 1000 K, and dynamics at constant energy; costs: time "
        "of products and layers beside e3nn's",
    )
    models: Annotated[tuple[Model, ...], Distinct] = Field(
        (
            "nequip_spherical",
            "nequip_cartesian",
            "nequip_path",
            "mace_spherical",
            "mace_cartesian",
            "mace_path",
            "allegro_spherical",
            "allegro_cartesian",
            "allegro_path",
            "tace",
            "scalar",
        ),
        min_length=1,
        description="Twins, path with the sizes of the published symbol; scalar knows distances only",
    )
    seeds: int = Field(3, ge=3, le=100, description="Seeds of weights and batches")
    profile: Literal["quick", "full"] = Field(
        "quick",
        description="quick: 100 frames, 8 channels, 0.5 ps, minutes; full: 400 frames, 16 channels, 5 ps, hours",
    )
    processes: int = Field(2, ge=1, le=64, description="Trainings at the same time, a thread each")
