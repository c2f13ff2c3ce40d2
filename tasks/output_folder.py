"""Folders of the user's that a flow writes: whole or not at all, and never over files that are not Seedloom's own.

A written folder holds a marker with the size and digest of each of its files. Only a folder whose files are still
those may be replaced; what a person added to it or changed in it is refused, before any work starts.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from methods.common.errors import DataError
from tasks.reference import EXPORT_MARKER, Reference
from tasks.workspace import file_records, is_recorded, storage_errors

REPORT_FILES = ("metrics.json", "report.md")
CARD = "card.md"


def check_output(folder: Path, inputs: Sequence[Path] = (), field: str = "output") -> None:
    """Refuse a folder that cannot be written, holds files of others, or is mixed up with an input.

    Args:
        folder: to be written by `write_output`.
        inputs: what the run reads; those that do not exist (hub ids) are passed over.
        field: the setting that names the folder.

    Raises:
        DataError: names the field, the folder and the remedy.
        StorageError: the disk is read-only or full, or the user may not write there.
    """
    place = folder.expanduser().resolve()
    for given in inputs:
        other = given.expanduser().resolve()
        if other.exists() and (place == other or place in other.parents or other in place.parents):
            raise DataError(f"{field}: {folder} and the input {given} overlap; name another folder")
    if Path.cwd().is_relative_to(place):
        # It is replaced as a whole, which would take the ground from under this process.
        raise DataError(f"{field}: {folder} is or holds the current folder; name a new folder")
    _check_writable(place.parent, folder, field)
    if not place.exists():
        return
    if not place.is_dir():
        raise DataError(f"{field}: {folder} is a file; name an empty or new folder")
    if not any(place.iterdir()):
        return
    recorded = _marker(place).get("files")
    if not isinstance(recorded, dict):
        raise DataError(f"{field}: {folder} holds other files; name an empty or new folder")
    for path in sorted(p for p in place.rglob("*") if p.is_file() and p != place / EXPORT_MARKER):
        name = path.relative_to(place).as_posix()
        if name not in recorded or not is_recorded(path, recorded[name]):
            raise DataError(
                f"{field}: {folder / name} was added or changed since {folder} was written; move it away, or name "
                "another folder"
            )


def _check_writable(parent: Path, folder: Path, field: str) -> None:
    with storage_errors(parent):
        try:
            parent.mkdir(parents=True, exist_ok=True)
            probe = parent / f".write-probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except (FileNotFoundError, NotADirectoryError, FileExistsError) as error:
            raise DataError(f"{field}: {folder} cannot be made; name another folder") from error


def write_output(folder: Path, fill: Callable[[Path], object], facts: dict[str, Any] | None = None) -> Path:
    """Replace `folder` by what `fill` writes into an empty one, and mark it.

    Args:
        folder: checked by `check_output`.
        fill: gets the empty folder.
        facts: kept in the marker.

    Raises:
        DataError, StorageError: as `check_output`.
    """
    check_output(folder)
    place = folder.expanduser().resolve()
    staging = place.with_name(f".{place.name}.partial")
    with storage_errors(place.parent):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        fill(staging)
        # Without times: the same content is the same folder, marker included, for DVC too.
        files = {
            name: {"sha256": entry["sha256"], "size": entry["size"]}
            for name, entry in file_records(staging).items()
        }
        marker = {**(facts or {}), "files": files}
        (staging / EXPORT_MARKER).write_text(json.dumps(marker, sort_keys=True))
        shutil.rmtree(place, ignore_errors=True)
        staging.replace(place)
    return folder


def export(reference: Reference, folder: Path) -> Path:
    """Copy a step's output to a place of the user's.

    Raises:
        DataError, StorageError: as `check_output`.
    """
    return write_output(
        folder,
        lambda staging: shutil.copytree(reference.path, staging, dirs_exist_ok=True),
        {"digest": reference.digest, "kind": reference.kind},
    )


def check_report(folder: Path, field: str = "report.folder") -> None:
    """Refuse a folder whose results no report of Seedloom wrote; other files beside a report stay.

    Raises:
        DataError: names the field, the folder and the remedy.
        StorageError: it cannot be written.
    """
    place = folder.expanduser().resolve()
    _check_writable(place.parent, folder, field)
    if place.exists() and not place.is_dir():
        raise DataError(f"{field}: {folder} is a file; name a folder")
    if (place / EXPORT_MARKER).exists() or (place / CARD).exists():
        return
    foreign = [name for name in (*REPORT_FILES, "plots") if (place / name).exists()]
    if foreign:
        raise DataError(
            f"{field}: {folder / foreign[0]} was written by no report of Seedloom; name another folder"
        )


def earlier_report(folder: Path) -> list[str]:
    """Files that an earlier report wrote below `folder`, so that those without a successor can go."""
    names = _marker(folder).get("report", [])
    known = [str(name) for name in names] if isinstance(names, list) else []
    return [name for name in known if (folder / name).resolve().is_relative_to(folder.resolve())]


def mark_report(folder: Path, names: Iterable[str]) -> None:
    """Remember which files below `folder` are the report's."""
    (folder / EXPORT_MARKER).write_text(json.dumps({"report": sorted(names)}, indent=1) + "\n")


def _marker(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / EXPORT_MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
