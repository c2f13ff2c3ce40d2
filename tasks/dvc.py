"""DVC from flows and tests: one command at a time in a repository, and the state of its data as MLflow tags.

DVC refuses at once when another command holds its lock (exit 255, "Unable to acquire lock") and has no option to
wait. `DvcOps` puts its own callers in a queue with an inter-process file lock, and tries again when a person's
command in another terminal is in the way.
"""

import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_WORDS = ("Unable to acquire lock", "is busy, it is being blocked by")
HELD = "SEEDLOOM_DVC_LOCK_HELD"
LONGEST_PAUSE = 2.0


class DvcError(OSError):
    """A DVC command failed, in one line with what to do."""


def find_root(start: Path | None = None) -> Path | None:
    """The DVC repository that holds `start` (default: the working folder), or None."""
    here = (start or Path.cwd()).resolve()
    return next((folder for folder in (here, *here.parents) if (folder / ".dvc" / "config").is_file()), None)


class DvcOps:
    """Runs DVC commands in one repository, one after the other, whoever asks: threads, tasks or processes.

    Args:
        root: the repository; default: the one that holds the working folder.
        timeout_seconds: how long a command may wait for others before it gives up.

    Raises:
        DvcError: there is no repository.
    """

    def __init__(self, root: Path | None = None, timeout_seconds: float = 600.0) -> None:
        found = find_root(root)
        if found is None:
            raise DvcError(f"{root or Path.cwd()} is in no DVC repository; run this in the project's folder")
        self.root = found
        self.timeout_seconds = timeout_seconds

    def run(self, *arguments: str) -> str:
        """Run `dvc <arguments>` and return what it printed.

        A command started below another one (a stage of `dvc repro` that asks for data) does not queue behind
        its own parent.

        Raises:
            DvcError: the command failed, or others kept the repository busy for the whole timeout.
        """
        deadline = time.monotonic() + self.timeout_seconds
        if os.environ.get(HELD) == str(self.root):
            return self._run_until(deadline, arguments)
        lock = self.root / ".dvc" / "tmp" / "seedloom.lock"
        lock.parent.mkdir(exist_ok=True)
        try:
            with FileLock(lock, timeout=self.timeout_seconds):
                return self._run_until(deadline, arguments)
        except Timeout:
            raise self._busy(arguments) from None

    def ensure(self, target: str, path: Path) -> Path:
        """The data that the stage `target` makes at `path` (relative to the repository): made when it is missing.

        Raises:
            DvcError: the stage failed, or ended without making `path`.
        """
        wanted = self.root / path
        if not wanted.exists():
            self.run("repro", "--quiet", target)
            if not wanted.exists():
                raise DvcError(f"dvc repro {target} ended without {path}; see this stage in dvc.yaml")
        return wanted

    def _run_until(self, deadline: float, arguments: tuple[str, ...]) -> str:
        pause = 0.1
        while True:
            result = self._once(arguments)
            if result.returncode == 0:
                return result.stdout
            if not any(words in result.stderr for words in LOCK_WORDS):
                raise DvcError(_one_line(arguments, result))
            if time.monotonic() + pause > deadline:
                raise self._busy(arguments)
            # Jitter: commands that were refused together must not come back together.
            time.sleep(random.uniform(0.5, 1.0) * pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _once(self, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        binaries = Path(sys.executable).parent
        environment = {
            **os.environ,
            # Stages call `seedloom` and `python` by name; they mean this environment, activated or not.
            "PATH": os.pathsep.join([str(binaries), os.environ.get("PATH", os.defpath)]),
            "DVC_NO_ANALYTICS": "1",
            HELD: str(self.root),
        }
        return subprocess.run(
            [sys.executable, "-m", "dvc", *arguments],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def _busy(self, arguments: tuple[str, ...]) -> DvcError:
        return DvcError(
            f"dvc {' '.join(arguments)}: another DVC command kept {self.root} busy for {self.timeout_seconds:g} s; "
            "wait for it or end it, then try again"
        )


def _one_line(arguments: tuple[str, ...], result: subprocess.CompletedProcess[str]) -> str:
    """The command with the line that says most: a stage's own message, else DVC's."""
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    dvc = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    said = (own or dvc or lines or ["no message"])[0]
    return f"dvc {' '.join(arguments)} failed (exit {result.returncode}): {said}"


def lock_digest(root: Path) -> str | None:
    """sha256 of `dvc.lock`: one name for the state of all data and stages; None before the first stage ran."""
    try:
        return hashlib.sha256((root / "dvc.lock").read_bytes()).hexdigest()
    except OSError:
        return None


def dvc_tags(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What ties an MLflow run to DVC: the lock's digest, and the stage and experiment that started it."""
    root = find_root()
    digest = root and lock_digest(root)
    tags = {"dvc.digest": digest} if digest else {}
    for tag, name in (("dvc.stage", "DVC_STAGE"), ("dvc.experiment", "DVC_EXP_NAME")):
        if value := environment.get(name):
            tags[tag] = value
    return tags
