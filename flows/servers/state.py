"""Which `seedloom up` runs on this work folder: a small file that other commands read."""

import json
from pathlib import Path

import psutil

from tasks.config import Config


class Running(Config):
    """A `seedloom up` at work.

    Attributes:
        pid: its process.
        started: that process's start in seconds since 1970, because process ids are used again.
        prefect: address of the Prefect UI, without `/api`.
        mlflow: address of the MLflow UI.
    """

    pid: int
    started: float
    prefect: str
    mlflow: str


def state_file(work: Path) -> Path:
    return work / "up.json"


def running(work: Path) -> Running | None:
    """The servers of this work folder, if their process lives."""
    try:
        found = Running.model_validate(json.loads(state_file(work).read_text()))
        alive = abs(psutil.Process(found.pid).create_time() - found.started) < 1.0
    except (OSError, ValueError, psutil.Error):
        return None
    return found if alive else None


def record(work: Path, found: Running) -> None:
    temporary = state_file(work).with_suffix(".tmp")
    temporary.write_text(found.model_dump_json(indent=1))
    temporary.replace(state_file(work))


def clear(work: Path) -> None:
    state_file(work).unlink(missing_ok=True)
