"""Structures from a person's files, in three parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from methods.common.errors import DataError
from tasks.atoms.config import AtomsSettings
from tasks.prepare.user_data import source_files

SUFFIXES = (".xyz", ".extxyz", ".db")
LEAST = 3


def check_source(settings: AtomsSettings) -> None:
    """Refuse files that are not there. Raises DataError."""
    for source in sources_of(settings):
        source_files(source, SUFFIXES)


def sources_of(settings: AtomsSettings) -> list[str]:
    """Every source that is given."""
    return [s for s in (settings.source, settings.validation_source, settings.test_source) if s]


def read_frames(source: str) -> list[Any]:
    """Every structure of the source, as `ase.Atoms`. Raises DataError: names the file."""
    from ase.io import read

    frames: list[Any] = []
    for path in source_files(source, SUFFIXES):
        form = "db" if path.suffix.lower() == ".db" else "extxyz"
        try:
            frames += read(path, ":", format=form)
        except Exception as error:  # ASE's readers raise whatever their parsers do
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
            raise DataError(f"{path}: cannot be read as {form} ({reason}); write it anew with ASE") from error
    if not frames:
        raise DataError(f"data {source}: holds no structures; give at least {LEAST}")
    return frames


def parts_of(settings: AtomsSettings) -> dict[str, list[Any]]:
    """train, validation and test; parts of one file are blocks of it, for neighbours in a trajectory are alike.

    Raises:
        DataError: see `read_frames`; too few structures.
    """
    frames = read_frames(settings.source)
    if settings.limit and settings.limit < len(frames):
        frames = [frames[int(place)] for place in np.linspace(0, len(frames) - 1, settings.limit, dtype=int)]
    found = {}
    shares = {"test": settings.test, "validation": settings.validation}
    given = {"test": settings.test_source, "validation": settings.validation_source}
    for part, share in shares.items():
        if given[part]:
            found[part] = read_frames(given[part])
            continue
        count = max(1, round(share * len(frames)))
        found[part], frames = frames[len(frames) - count :], frames[: len(frames) - count]
    if not frames:
        raise DataError(
            f"data {settings.source}: too few structures for three parts; give at least {LEAST}, or files for the "
            "validation and the test"
        )
    return {"train": frames, **found}
