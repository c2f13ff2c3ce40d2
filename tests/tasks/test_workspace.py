"""The work folder: atomic, content-addressed, honest about damage and about storage that fails."""

import errno
import hashlib
import multiprocessing
import os
import signal
import time
from functools import lru_cache
from pathlib import Path

import pytest

import tasks.reference as reference_module
from methods.common.errors import DataError
from tasks.reference import file_digest, reference_to
from tasks.workspace import StorageError, Workspace, storage_errors


def make(workspace: Workspace, key: str = "k", text: str = "hello") -> None:
    with workspace.claim("step", key) as out:
        (out / "sub").mkdir(exist_ok=True)
        (out / "sub" / "a.txt").write_text(text)
        workspace.finish("step", key, {"summary": {}, "timings": {}})


def test_an_output_is_found_only_when_finished(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with workspace.claim("step", "k") as out:
        (out / "a.txt").write_text("half")
        assert workspace.find("step", "k") is None
    assert workspace.find("step", "k") is None
    make(workspace)
    found = workspace.find("step", "k")
    assert found is not None
    assert (found.output / "sub" / "a.txt").read_text() == "hello"


def test_a_killed_attempt_leaves_its_files_to_the_next(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)

    def die() -> None:
        with workspace.claim("step", "k") as out:
            (out / "checkpoint").write_text("step 5")
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert workspace.find("step", "k") is None
    with workspace.claim("step", "k") as out:  # the lock of a dead process does not block
        assert (out / "checkpoint").read_text() == "step 5"


@pytest.mark.parametrize("damage", ["missing", "longer", "same size", "manifest"])
def test_damage_is_noticed_and_made_anew(tmp_path: Path, damage: str) -> None:
    workspace = Workspace(tmp_path)
    make(workspace)
    folder = workspace.folder("step", "k")
    file = folder / "output" / "sub" / "a.txt"
    if damage == "missing":
        file.unlink()
    elif damage == "longer":
        file.write_text("hello!")
    elif damage == "same size":
        file.write_text("hallo")
        os.utime(file, ns=(1, 1))
    else:
        (folder / "manifest.json").write_text("{")
    assert workspace.find("step", "k") is None
    make(workspace)
    assert workspace.find("step", "k") is not None


def test_a_touched_but_equal_file_is_intact(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    make(workspace)
    os.utime(workspace.folder("step", "k") / "output" / "sub" / "a.txt", ns=(1, 1))
    assert workspace.find("step", "k") is not None


def test_two_processes_do_not_work_on_one_key(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    started = multiprocessing.get_context("fork").Event()

    def hold() -> None:
        with workspace.claim("step", "k"):
            started.set()
            time.sleep(0.5)

    process = multiprocessing.get_context("fork").Process(target=hold)
    process.start()
    started.wait()
    begin = time.monotonic()
    with workspace.claim("step", "k"):
        waited = time.monotonic() - begin
    process.join()
    assert waited > 0.2


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.ENOSPC, "no space is left"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "cannot be written"),
        (errno.EDQUOT, "quota"),
    ],
)
def test_storage_failures_become_one_line(tmp_path: Path, code: int, says: str) -> None:
    with pytest.raises(StorageError, match=says) as caught, storage_errors(tmp_path):
        raise OSError(code, os.strerror(code))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_full_disk_reported_by_another_class_is_the_same_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no space is left"), storage_errors(tmp_path):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(RuntimeError, match="other"), storage_errors(tmp_path):
        raise RuntimeError("other")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be made"):
        Workspace(tmp_path / "file" / "work").check()


def test_other_failures_pass_through(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), storage_errors(tmp_path):
        (tmp_path / "absent").read_text()


def test_too_little_space_is_refused_before_work(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="GiB free and this run needs"):
        Workspace(tmp_path).check(needed_bytes=2**60)


def test_a_reference_follows_content_not_place(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("same")
    assert reference_to(tmp_path / "a", "data").digest == reference_to(tmp_path / "b", "data").digest
    (tmp_path / "b" / "x").write_text("other")
    assert reference_to(tmp_path / "a", "data").digest != reference_to(tmp_path / "b", "data").digest
    with pytest.raises(DataError, match="does not exist"):
        reference_to(tmp_path / "absent", "data")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="is empty"):
        reference_to(tmp_path / "empty", "data")


def test_a_reference_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("same")
    with pytest.raises(DataError, match="holds a text; this step needs model or adapter"):
        reference_to(tmp_path, "text").expect("model", "adapter")


def test_a_digest_follows_every_change_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one within a tick of the clock, and one after which the old time was set again."""
    monkeypatch.setattr(
        reference_module, "_settled_digest", lru_cache(reference_module._settled_digest.__wrapped__)
    )
    file = tmp_path / "a"
    for text in ("one", "two", "six"):
        file.write_text(text)
        assert file_digest(file) == hashlib.sha256(text.encode()).hexdigest()
    monkeypatch.setattr(reference_module, "SETTLED_NS", 0)  # as if it had lain for long
    before = file.stat()
    assert file_digest(file) == file_digest(file)
    assert reference_module._settled_digest.cache_info().hits == 1
    time.sleep(0.02)
    file.write_text("ten")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_digest(file) == hashlib.sha256(b"ten").hexdigest()
