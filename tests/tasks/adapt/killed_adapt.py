"""Adaptations in processes of their own, one of them killed and done again; prints what came of them.

Usage: killed_adapt.py FOLDER, which holds llama, rows; the method is psd-skip.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tasks.adapt.adapt import adapt
from tasks.reference import reference_to
from tests.tasks.adapt.tiny import settings


def train(folder: Path, out: Path, kill_at: int = 0) -> None:
    out.mkdir(exist_ok=True)

    def on_row(row: dict[str, float]) -> None:
        if kill_at and row["step"] == kill_at and "train/loss" in row:
            os.kill(os.getpid(), signal.SIGKILL)

    model, corpus = reference_to(folder / "llama", "model"), reference_to(folder / "rows", "data")
    summary = adapt(out, settings=settings(), model=model, corpus=corpus, on_row=on_row)
    (folder / f"{out.name}.json").write_text(json.dumps(summary))


def in_a_process(*arguments: Any) -> int:
    child = os.fork()
    if child == 0:
        try:
            train(*arguments)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    return os.waitpid(child, 0)[1]


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    for kill_at in (0, 6):
        out = folder / f"killed-{kill_at}"
        status = in_a_process(folder, out, kill_at)
        killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if kill_at:
            status = in_a_process(folder, out)
        summary = json.loads((folder / f"{out.name}.json").read_text())
        found[str(kill_at)] = {
            "signal": killed_by,
            "status": status,
            "steps_here": summary.pop("timings")["steps_here"],
            "summary": summary,
            "files": {
                p.relative_to(out).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
                for p in sorted(out.rglob("*"))
                if p.is_file()
            },
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
