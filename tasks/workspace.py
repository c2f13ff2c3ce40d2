"""The work folder: one content-addressed output folder a step, finished by an atomic rename.

    <work>/outputs/<step>/<key>/output/         what the step made
    <work>/outputs/<step>/<key>/manifest.json   its inputs, files with digests, summary and timings
    <work>/outputs/<step>/<key>.partial/        a step at work, or what a killed one left for its successor

A folder without `.partial` is always whole.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from tasks.reference import Kind, Reference, combine, content_files, file_digest

MANIFEST = "manifest.json"


class StorageError(OSError):
    """The work folder cannot be written: disk full, read-only or not permitted."""


@contextmanager
def storage_errors(root: Path) -> Iterator[None]:
    """Turn the operating system's storage failures into one line with a remedy."""
    reasons = {
        errno.ENOSPC: "no space is left on the disk of {root}; free some, or set SEEDLOOM_WORK_DIR to another disk",
        errno.EDQUOT: "the disk quota of {root} is used up; free some, or set SEEDLOOM_WORK_DIR to another disk",
        errno.EROFS: "{root} is read-only; set SEEDLOOM_WORK_DIR to a folder that can be written",
        errno.EACCES: "{root} cannot be written by this user; set SEEDLOOM_WORK_DIR to a folder that can",
        errno.EPERM: "{root} cannot be written by this user; set SEEDLOOM_WORK_DIR to a folder that can",
    }
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError) or error.errno not in reasons:
            raise
        raise StorageError(reasons[error.errno].format(root=root)) from error
    except Exception as error:
        # Writers in other languages (safetensors) report a full disk by an error class of their own.
        if os.strerror(errno.ENOSPC) not in str(error):
            raise
        raise StorageError(reasons[errno.ENOSPC].format(root=root)) from error


class Workspace:
    """Finds, starts and finishes step outputs below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def check(self, needed_bytes: int = 0) -> None:
        """Refuse a work folder that cannot hold the run, before any work starts.

        Raises:
            StorageError: not writable, or fewer than `needed_bytes` free.
        """
        with storage_errors(self.root):
            try:
                self.root.mkdir(parents=True, exist_ok=True)
            except (FileNotFoundError, NotADirectoryError, FileExistsError) as error:
                raise StorageError(
                    f"{self.root} cannot be made; set SEEDLOOM_WORK_DIR to another folder"
                ) from error
            probe = self.root / f".write-probe-{os.getpid()}"
            probe.write_bytes(b"x")
            probe.unlink()
        free = shutil.disk_usage(self.root).free
        if free < needed_bytes:
            raise StorageError(
                f"{self.root} has {free / 2**30:.1f} GiB free and this run needs about "
                f"{needed_bytes / 2**30:.1f} GiB; free some, or set SEEDLOOM_WORK_DIR to another disk"
            )

    def folder(self, step: str, key: str) -> Path:
        """The finished folder of a step's output (it may not exist yet)."""
        return self.root / "outputs" / step / key

    def find(self, step: str, key: str) -> "Finished | None":
        """A finished, intact output, or None. A damaged one is set aside, so that it is made anew."""
        folder = self.folder(step, key)
        try:
            manifest = json.loads((folder / MANIFEST).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except json.JSONDecodeError:
            manifest = None
        if manifest is None or not _intact(folder / "output", manifest["files"]):
            shutil.rmtree(folder, ignore_errors=True)
            return None
        return Finished(folder, manifest)

    @contextmanager
    def claim(self, step: str, key: str) -> Iterator[Path]:
        """Hold the output's lock and its `.partial/output` folder; a second process waits here."""
        final = self.folder(step, key)
        with storage_errors(self.root):
            final.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(final.with_name(f"{key}.lock")):
                partial = final.with_name(f"{key}.partial")
                (partial / "output").mkdir(parents=True, exist_ok=True)
                yield partial / "output"

    def finish(self, step: str, key: str, record: dict[str, Any]) -> "Finished":
        """Write the manifest and rename; only a caller that holds the claim may do this."""
        final = self.folder(step, key)
        partial = final.with_name(f"{key}.partial")
        output = partial / "output"
        manifest = {**record, "files": file_records(output, content_files(output))}
        temporary = partial / f"{MANIFEST}.tmp"
        temporary.write_text(json.dumps(manifest, indent=1, sort_keys=True))
        temporary.replace(partial / MANIFEST)
        shutil.rmtree(final, ignore_errors=True)
        partial.replace(final)
        return Finished(final, manifest)


class Finished:
    """A finished step output."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.output = folder / "output"
        self.manifest = manifest

    def reference(self, kind: Kind) -> Reference:
        files = {name: entry["sha256"] for name, entry in self.manifest["files"].items()}
        return Reference(path=self.output, digest=combine(files), kind=kind)


def file_records(root: Path, files: Iterable[Path] | None = None) -> dict[str, dict[str, Any]]:
    """Digest, size and time of files below `root` (default: all), by their relative names."""
    records = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()) if files is None else files:
        stat = path.stat()
        records[path.relative_to(root).as_posix()] = {
            "sha256": file_digest(path),
            "size": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
        }
    return records


def is_recorded(path: Path, entry: dict[str, Any]) -> bool:
    """Whether a file is there as recorded; it is only read when its time changed."""
    try:
        stat = path.stat()
    except OSError:
        return False
    if stat.st_size != entry["size"]:
        return False
    return stat.st_mtime_ns == entry.get("mtime_ns") or file_digest(path) == entry["sha256"]


def _intact(output: Path, files: dict[str, dict[str, Any]]) -> bool:
    return all(is_recorded(output / name, entry) for name, entry in files.items())
