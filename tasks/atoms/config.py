"""Settings of the steps on atoms. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.config import Config


class AtomsSettings(Config):
    """Structures with energies and forces, in eV and angstrom."""

    source: str = Field(
        default="data/xtb/ethanol_500K_train.extxyz",
        min_length=1,
        description="An extended XYZ file (.xyz, .extxyz) or an ASE database (.db), a folder or a glob of them",
    )
    validation_source: str = Field(
        default="",
        description="The same for the validation part; empty takes the frames before the test part of `source`",
    )
    test_source: str = Field(
        default="",
        description="The same for the test part, best a trajectory of its own; empty takes the last frames of `source`",
    )
    validation: float = Field(
        default=0.1, gt=0, lt=0.5, description="Share of `source` for validation when it has no source"
    )
    test: float = Field(
        default=0.2, gt=0, lt=0.5, description="Share of `source` for the test when it has no source"
    )
    energy_key: str = Field(default="energy", min_length=1, description="Name of the energy in the file, eV")
    forces_key: str = Field(
        default="forces", min_length=1, description="Name of the forces in the file, eV/angstrom"
    )
    stress_key: str = Field(
        default="stress", min_length=1, description="Name of the stress, eV/angstrom^3, if any"
    )
    limit: int = Field(default=0, ge=0, description="Frames of `source` at most, evenly chosen; 0 takes all")


class PotentialSettings(Config):
    """The potential and its training."""

    architecture: Literal["tace", "mace", "nequip", "allegro"] = Field(
        default="tace", description="Kind of the potential"
    )
    basis: Literal["cartesian", "spherical"] = Field(default="cartesian", description="Basis of the tensors")
    cutoff: float = Field(
        default=5.0, gt=0, le=20, description="Neighbours are atoms within this distance, angstrom"
    )
    channels: int = Field(default=8, ge=1, le=512, description="Channels of each rank")
    layers: int = Field(default=2, ge=1, le=16, description="Layers of messages")
    lmax: int = Field(default=2, ge=1, le=4, description="Highest rank of messages")
    node_lmax: int = Field(default=1, ge=0, le=4, description="Highest rank that atoms keep, at most lmax")
    epochs: int = Field(default=20, ge=1, le=100_000, description="Epochs over the training part")
    batch_size: int = Field(default=5, ge=1, le=10_000, description="Structures a step")
    learning_rate: float = Field(default=1e-2, gt=0, le=1, description="Of Adam, falling along a cosine")
    energy_weight: float = Field(default=1.0, ge=0, description="Of energies per atom in the loss")
    forces_weight: float = Field(default=10.0, ge=0, description="Of forces in the loss")
    stress_weight: float = Field(default=1.0, ge=0, description="Of the stress in the loss")
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="Of weights and batches")
    picoseconds: float = Field(
        default=0.2,
        ge=0,
        le=10_000,
        description="Dynamics at constant energy from the first test frame; 0 for none",
    )
    kelvin: float = Field(
        default=300, gt=0, le=10_000, description="Temperature that the dynamics starts with"
    )
