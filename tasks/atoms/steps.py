"""The potential flow's step as a Prefect task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.atoms.config import AtomsSettings, PotentialSettings
from tasks.step import step


@step("potential-train", kind="model", version="1", timeout_seconds=48 * 3600)
def train_potential(
    out: Path, *, atoms: AtomsSettings, settings: PotentialSettings, fingerprint: str
) -> dict[str, Any]:
    """A trained potential; a training that was cut off goes on from its last checkpoint."""
    from tasks.atoms.train import train_on

    facts = train_on(out, atoms, settings)
    return {"frames": facts["frames"], "test": facts["test"]}
