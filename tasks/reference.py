"""What passes between steps: a path, the digest of its content and its kind; never a live model."""

import hashlib
import json
import time
from functools import lru_cache
from pathlib import Path
from typing import Literal

from methods.common.errors import DataError
from tasks.config import Config

Kind = Literal["model", "adapter", "tasks", "text", "data", "bank", "report"]

# Measured times differ from run to run, the marker says where a copy came from, the documents what a model has read:
# no part of the identity.
EXPORT_MARKER = ".seedloom.json"
SETTLED_NS = 2_000_000_000
CALIBRATION_DOCUMENTS = "calibration_documents.txt"
NOT_CONTENT = frozenset({"timings.json", EXPORT_MARKER, CALIBRATION_DOCUMENTS})


class Reference(Config):
    """A folder or file on disk, known by its content.

    Attributes:
        path: where it lies now; no part of its identity.
        digest: sha256 over the relative names and contents of its files.
        kind: what it holds, so that a step can refuse the wrong input by name.
    """

    path: Path
    digest: str
    kind: Kind

    def expect(self, *kinds: Kind) -> Path:
        """The path, when the kind is one of `kinds`.

        Raises:
            DataError: naming the path and what was expected.
        """
        if self.kind not in kinds:
            raise DataError(f"{self.path} holds a {self.kind}; this step needs {' or '.join(kinds)}")
        return self.path


def file_digest(path: Path) -> str:
    """sha256 of one file's content. A file that lies untouched is read once a process: models are large."""
    stat = path.stat()
    changed = max(stat.st_mtime_ns, stat.st_ctime_ns)
    # Clocks of file systems tick slowly: a file that changed just now may change again without a trace.
    if time.time_ns() - changed < SETTLED_NS:
        return _digest(path)
    return _settled_digest(path, (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))


@lru_cache(maxsize=4096)
def _settled_digest(path: Path, _state: tuple[int, ...]) -> str:
    return _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def content_files(root: Path) -> list[Path]:
    """The files that count as content, in a fixed order."""
    if root.is_file():
        return [root]
    return sorted(p for p in root.rglob("*") if p.is_file() and p.name not in NOT_CONTENT)


def combine(files: dict[str, str]) -> str:
    """One digest from relative name -> file digest."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def reference_to(path: Path, kind: Kind) -> Reference:
    """Read `path` and name it by its content.

    Raises:
        DataError: when nothing is there.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; give the path of an existing {kind}")
    base = path if path.is_dir() else path.parent
    files = {p.relative_to(base).as_posix(): file_digest(p) for p in content_files(path)}
    if not files:
        raise DataError(f"{path} is empty; give the path of a folder that holds a {kind}")
    return Reference(path=path.resolve(), digest=combine(files), kind=kind)
