"""Train a potential on a person's structures: the model's folder, predictions on the test part, dynamics."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.atoms.config import AtomsSettings, PotentialSettings
from tasks.atoms.read import parts_of

logger = logging.getLogger("seedloom")
SIZES = ("architecture", "basis", "cutoff", "channels", "layers", "lmax", "node_lmax")
TRAINING = (
    "epochs",
    "batch_size",
    "learning_rate",
    "energy_weight",
    "forces_weight",
    "stress_weight",
    "seed",
)
SHOWN = 20_000  # force components in the parity plot


def train_on(out: Path, atoms: AtomsSettings, settings: PotentialSettings) -> dict[str, Any]:
    """Write `model/`, and return what the report shows.

    Raises:
        ConfigError, DataError: see `PotentialTrainer` and `parts_of`.
    """
    from methods.tace import PotentialTrainer, TaceCalculator, TrainingConfig, save_potential
    from methods.tace.study import constant_energy

    keys = {"energy": atoms.energy_key, "forces": atoms.forces_key, "stress": atoms.stress_key}
    values = settings.model_dump()
    trainer = PotentialTrainer(
        {name: values[name] for name in SIZES},
        TrainingConfig(**{name: values[name] for name in TRAINING}),
        keys=keys,
        folder=out / "fit",
        progress=_told,
    )
    parts = parts_of(atoms)
    trainer.fit(parts["train"], parts["validation"])
    save_potential(trainer.model_, out / "model")
    facts: dict[str, Any] = {
        "frames": {name: len(frames) for name, frames in parts.items()},
        "parameters": sum(value.numel() for value in trainer.model_.parameters()),
        "history": trainer.history_,
        **_tested(trainer, parts["test"], keys),
    }
    if settings.picoseconds:
        calculator = TaceCalculator(trainer.model_)
        facts |= constant_energy(
            calculator, parts["test"][0], settings.picoseconds, settings.seed, settings.kelvin
        )
    (out / "facts.json").write_text(json.dumps(facts) + "\n")
    return facts


def _told(row: Mapping[str, float]) -> None:
    logger.info(
        "epoch %d: energy MAE %.1f meV/atom, force MAE %.1f meV/angstrom",
        row["epoch"],
        1000 * row["energy_mae"],
        1000 * row["forces_mae"],
    )


def _tested(trainer: Any, frames: list[Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """Scores on the test part, and labels beside predictions."""
    from methods.tace import labelled_graphs, score

    model = trainer.model_
    graphs = labelled_graphs(frames, model.config.cutoff, keys, "test")
    energies, forces = [], []
    for graph in graphs:
        found = model(graph)
        size = len(graph["positions"])
        energies.append((float(graph["target_energy"]) / size, float(found["energy"].detach()) / size))
        forces.append(torch.stack([graph["target_forces"].flatten(), found["forces"].detach().flatten()], 1))
    pairs = torch.cat(forces).double().numpy()
    kept = np.linspace(0, len(pairs) - 1, min(len(pairs), SHOWN), dtype=int)
    return {"test": score(model, graphs), "energies": energies, "forces": pairs[kept].tolist()}
