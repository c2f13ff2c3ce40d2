"""`seedloom archive` and the flow of that name, from the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.archive import check
from flows.archive_config import ArchiveConfig
from flows.cli import app
from methods.common.errors import ConfigError, DataError
from tests.flows.tiny_lifecycle import environment, seedloom
from tests.tiny_models import sentences


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    (folder / "source").mkdir()
    for name, count, seed in (("known.txt", 200, 1), ("other.txt", 60, 2), ("source/a.txt", 40, 3)):
        (folder / name).write_text("\n".join(sentences(count, seed)))
    return folder


def run(*arguments: str) -> tuple[int, str, str]:
    """`seedloom archive`, in this process."""
    done = CliRunner().invoke(app, ["archive", *arguments], catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def test_a_file_from_calibration_to_restoration(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)

    model = ("--model", "ngram:known.txt")
    status, out, err = run("calibrate", *model, "--text", "other.txt", "--chunk-tokens", "512")
    assert status == 0, err
    assert json.loads(out.partition("written")[0])["mismatch"]["steps"]["tokens"] == 512
    status, out, err = run("compress", "source/a.txt", *model, "--codec", "codec.pmc", "--output", "a.pmz")
    assert status == 0, err
    assert "read back" in out
    status, out, err = run("inspect", "a.pmz")
    assert "chunks                 4" in out, out + err
    status, out, err = run("decompress", "a.pmz", *model, "--output", "again.txt")
    assert status == 0, err
    assert (place / "again.txt").read_bytes() == (place / "source/a.txt").read_bytes()
    damaged = bytearray((place / "a.pmz").read_bytes())
    damaged[-1] ^= 1
    (place / "damaged.pmz").write_bytes(damaged)
    status, out, err = run("decompress", "damaged.pmz", *model, "--output", "no.txt")
    assert (status, err.strip()) == (2, "error: damaged.pmz: chunk 3 was changed since it was written")
    assert not (place / "no.txt").exists()


def test_mistakes_at_the_command_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    model = ("--model", "ngram:known.txt")
    (place / "copy.txt").write_bytes((place / "source/a.txt").read_bytes())
    for given in ("source/a.txt", "copy.txt"):
        status, _, err = run("compress", "source/a.txt", *model, "--calibration", given)
        assert (status, err.count("\n")) == (2, 1)
        assert f"calibration {given}: is what will be compressed" in err
    for command, where in (("decompress", model), ("inspect", ())):
        status, _, err = run(command, "known.txt", *where, *(("--output", "no.txt") if where else ()))
        assert (status, err.strip()) == (2, "error: known.txt: is no archive written by Seedloom")
    made = ("compress", "source/a.txt", *model, "--calibration", "other.txt", "--output")
    assert run(*made, "new/folder/a.pmz")[0] == 0
    assert (place / "new/folder/a.pmz").is_file()
    status, _, err = run(*made, "known.txt/a.pmz")
    assert (status, err.count("\n")) == (2, 1)
    assert "known.txt is no folder" in err


@pytest.mark.server
def test_the_flow_archives_reads_back_and_drops(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "gone").mkdir()
    text = (place / "source/a.txt").read_text()
    (place / "gone/a.txt").write_text(text)
    env = environment(place / "work")
    arguments = (
        "--source",
        "gone",
        "--model",
        "ngram:known.txt",
        "--calibration",
        "other.txt",
        "--output",
        "kept",
    )
    done = seedloom("run", "archive", *arguments, "--drop_original", "true", env=env, cwd=place)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "read back by" in done.stdout
    assert not (place / "gone").exists()
    assert json.loads((place / "kept/verified.json").read_text())["verified"]
    monkeypatch.chdir(place)
    status, _, err = run("decompress", "kept", "--model", "ngram:known.txt", "--output", "back")
    assert status == 0, err
    assert (place / "back/a.txt").read_text() == text


def test_mistakes_are_told_before_any_work(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    good = {"source": "source", "model": "ngram:known.txt", "calibration": "other.txt", "output": "out"}
    check(ArchiveConfig.model_validate(good))
    for changes, kind, said in (
        ({"source": "nowhere"}, DataError, "nowhere does not exist"),
        ({"model": "nowhere"}, DataError, "give a model folder"),
        ({"calibration": "none"}, ConfigError, "give some, or a bound"),
        ({"output": "source"}, DataError, "overlap"),
        ({"computations": ["steps", "bfloat16"]}, ConfigError, "'steps' only"),
        ({"source": "known.txt", "drop_original": True}, ConfigError, "model lies inside the source"),
    ):
        with pytest.raises(kind, match=said):
            check(ArchiveConfig.model_validate(good | changes))
    check(ArchiveConfig.model_validate(good | {"calibration": "none", "bound": 0.1}))
