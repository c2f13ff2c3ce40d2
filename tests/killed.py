"""Work in processes of their own, killed and done again, for the scripts that tests of resuming start."""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def kill(*_: Any) -> None:
    """End this process as a machine that fails would."""
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_process(work: Callable[[], Any]) -> int:
    """The wait status of a forked process that does the work."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    return os.waitpid(child, 0)[1]


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def keep(out: Path, told: Any) -> None:
    """Put what the work returned beside its folder, where `killed_and_again` finds it."""
    (out.parent / f"{out.name}.json").write_text(json.dumps(told))


def killed_and_again(out: Path, first: Callable[[], Any], again: Callable[[], Any] | None) -> dict[str, Any]:
    """What came of work that was done (`again` is None), or killed and done again."""
    status = in_a_process(first)
    left = sorted(path.name for path in out.iterdir())
    found = {"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, "left": left}
    if again is not None:
        status = in_a_process(again)
    told = json.loads((out.parent / f"{out.name}.json").read_text())
    return {**found, "status": status, "told": told, "files": digests(out)}


def training_and_again(
    out: Path, first: Callable[[], Any], again: Callable[[], Any] | None
) -> dict[str, Any]:
    """The same for a training, whose summary tells the steps that its process made."""
    found = killed_and_again(out, first, again)
    summary = found.pop("told")
    return {**found, "steps_here": summary.pop("timings")["steps_here"], "summary": summary}
