"""Where a training keeps what a killed run resumes from, and how a batch is split over processes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from methods.common.errors import ConfigError
from methods.merge_early_stop import latest_resumable_checkpoint

CHECKPOINTS = ".checkpoints"


def open_checkpoints(out: Path, facts: Mapping[str, Any]) -> Path:
    """The folder of checkpoints; what another configuration left there is thrown away."""
    folder = out / CHECKPOINTS
    mark = folder / "run.json"
    text = json.dumps(facts, sort_keys=True)
    if folder.exists() and (not mark.is_file() or mark.read_text(encoding="utf-8") != text):
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    part = mark.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(mark)
    return folder


def rows_a_device(batch_size: int) -> int:
    """Rows of a step on each process that torchrun or accelerate started.

    Raises:
        ConfigError: the batch cannot be split evenly.
    """
    devices = max(1, int(os.environ.get("WORLD_SIZE", "1")))
    if batch_size % devices:
        raise ConfigError(
            f"batch_size={batch_size} cannot be split over {devices} processes; give a multiple of {devices}"
        )
    return batch_size // devices


def train_onward(trainer: Any, checkpoints: Path) -> int:
    """Train from the last whole checkpoint, or from the start; the step at which this process began."""
    resume = latest_resumable_checkpoint(checkpoints)
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return 0 if resume is None else int(resume.name.rpartition("-")[2])
