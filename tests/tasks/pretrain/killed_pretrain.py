"""Pre-trainings in processes of their own, one of them killed and done again; prints what came of them.

Usage: killed_pretrain.py CORPUS WORK.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tasks.pretrain import pretrain as module
from tests.tasks.pretrain.tiny import reference, settings

WRITING = -1


def train(corpus: Path, out: Path, kill_at: int = 0) -> None:
    out.mkdir(parents=True, exist_ok=True)

    def kill(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def on_row(row: dict[str, float]) -> None:
        if kill_at and row["step"] == kill_at and "train/loss" in row:
            kill()

    if kill_at == WRITING:  # the weights are there, the rest is not
        module.write_trace = kill
    summary = module.pretrain(out, settings=settings(), corpus=reference(corpus), on_row=on_row)
    (out.parent / f"{out.name}.json").write_text(json.dumps(summary))


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


def main(corpus: Path, work: Path) -> None:
    found: dict[str, Any] = {}
    for kill_at in (0, 7, WRITING):
        out = work / f"killed-{kill_at}"
        status = in_a_process(corpus, out, kill_at)
        left = sorted(path.name for path in out.iterdir())
        if kill_at:
            again = in_a_process(corpus, out)
        summary = json.loads((work / f"{out.name}.json").read_text())
        found[str(kill_at)] = {
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
            "status": again if kill_at else status,
            "left": left,
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
    main(*(Path(argument) for argument in sys.argv[1:3]))
