"""DVC commands of many callers in one repository: none is lost, each failure is one line."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zc.lockfile

from tasks.dvc import HELD, DvcError, DvcOps, dvc_tags, find_root, lock_digest

PROCESSES = 4


def dvc(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """DVC itself, without the queue."""
    return subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=root, capture_output=True, text=True, check=False
    )


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    for name in (HELD, "DVC_STAGE", "DVC_EXP_NAME"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "repository"
    # What `dvc init --no-scm` writes, without its two seconds.
    (root / ".dvc" / "tmp").mkdir(parents=True)
    (root / ".dvc" / "config").write_text("[core]\n    no_scm = True\n    analytics = false\n")
    return root


def add_file(root: Path, number: int) -> None:
    file = root / f"file-{number}"
    file.write_text(str(number))
    DvcOps(root, timeout_seconds=120).run("add", "--quiet", file.name)


def test_commands_of_four_processes_all_arrive(repository: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=add_file, args=(repository, n)) for n in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * PROCESSES
    assert len(list(repository.glob("file-*.dvc"))) == PROCESSES
    assert dvc(repository, "status", "--quiet").returncode == 0


def test_a_persons_command_is_waited_for(repository: Path) -> None:
    """DVC alone fails at once; the queue waits until the lock is free."""
    (repository / "file").write_text("x")
    lock = zc.lockfile.LockFile(str(repository / ".dvc" / "tmp" / "lock"))
    assert "Unable to acquire lock" in dvc(repository, "add", "file").stderr
    threading.Timer(1.0, lock.close).start()
    DvcOps(repository, timeout_seconds=60).run("add", "file")
    assert (repository / "file.dvc").exists()


def test_waiting_ends_with_one_clear_line(repository: Path) -> None:
    lock = zc.lockfile.LockFile(str(repository / ".dvc" / "tmp" / "lock"))
    (repository / "file").write_text("x")
    started = time.monotonic()
    with pytest.raises(DvcError) as error:
        DvcOps(repository, timeout_seconds=1).run("add", "file")
    lock.close()
    assert time.monotonic() - started < 30
    assert str(error.value) == (
        f"dvc add file: another DVC command kept {repository} busy for 1 s; wait for it or end it, then try again"
    )


def test_a_stage_that_needs_dvc_does_not_wait_for_its_own_parent(repository: Path) -> None:
    (repository / "ask.py").write_text(
        "from pathlib import Path\n"
        "from tasks.dvc import DvcOps\n"
        "DvcOps(Path('.'), timeout_seconds=20).ensure('first', Path('first.txt'))\n"
        "Path('second.txt').write_text(Path('first.txt').read_text())\n"
    )
    (repository / "dvc.yaml").write_text(
        "stages:\n"
        "  first: {cmd: echo one > first.txt, outs: [first.txt]}\n"
        f"  second: {{cmd: PYTHONPATH={Path.cwd()} {sys.executable} ask.py, outs: [second.txt]}}\n"
    )
    DvcOps(repository, timeout_seconds=60).run("repro", "--quiet", "--single-item", "second")
    assert (repository / "second.txt").read_text() == "one\n"


def test_stages_find_this_environments_programs(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (repository / "dvc.yaml").write_text(
        "stages:\n  where: {cmd: command -v seedloom > where.txt, outs: [where.txt]}\n"
    )
    DvcOps(repository).run("repro", "--quiet")
    assert (repository / "where.txt").read_text().strip() == str(Path(sys.executable).parent / "seedloom")


def test_failures_are_one_line_with_the_stages_own_words(repository: Path) -> None:
    (repository / "dvc.yaml").write_text(
        "stages:\n"
        "  wrong: {cmd: 'echo \"error: field = 7: too large\" >&2; exit 2', outs: [out.txt]}\n"
        "  empty: {cmd: 'true'}\n"
    )
    with pytest.raises(
        DvcError, match=r"^dvc repro --quiet wrong failed \(exit \d+\): field = 7: too large$"
    ):
        DvcOps(repository).ensure("wrong", Path("out.txt"))
    with pytest.raises(
        DvcError, match=r"^dvc repro empty ended without out.txt; see this stage in dvc.yaml$"
    ):
        DvcOps(repository).ensure("empty", Path("out.txt"))
    with pytest.raises(DvcError, match=r"^dvc push failed \(exit \d+\): .*no remote"):
        DvcOps(repository).run("push")


def test_outside_a_repository(tmp_path: Path) -> None:
    with pytest.raises(DvcError, match="is in no DVC repository; run this in the project's folder"):
        DvcOps(tmp_path)


def test_tags_name_the_state_of_the_data(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = repository / "deep" / "er"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert find_root() == repository
    assert lock_digest(repository) is None
    assert dvc_tags({}) == {}
    (repository / "dvc.lock").write_text("schema: '2.0'\n")
    first = dvc_tags({"DVC_STAGE": "merge", "DVC_EXP_NAME": "loud-lion"})
    assert first == {
        "dvc.digest": lock_digest(repository),
        "dvc.stage": "merge",
        "dvc.experiment": "loud-lion",
    }
    (repository / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    assert dvc_tags(os.environ)["dvc.digest"] != first["dvc.digest"]
    monkeypatch.chdir("/")
    assert dvc_tags({}) == {}
