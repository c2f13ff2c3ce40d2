"""Forks drawn in processes of their own, one of them killed and done again; prints what came of them.

Usage: killed_forks.py FOLDER.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tasks.reference import reference_to
from tasks.steer import steer as module
from tests.tasks.steer.planted_folder import settings


def draw(folder: Path, out: Path, kill_after: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write, written = module._write_rows, 0

    def counted(path: Path, rows: Any) -> None:
        nonlocal written
        if kill_after and written == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        written += 1
        write(path, rows)

    module._write_rows = counted
    summary = module.draw_forks(
        out,
        settings=settings(folder / "questions.jsonl", forks=3, completions=1),
        model=reference_to(folder / "model", "model"),
        questions=reference_to(folder / "few", "data"),
    )
    (out.parent / f"{out.name}.json").write_text(json.dumps({"written": written, "summary": summary}))


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    for kill_after in (0, 5):
        out = folder / f"killed-{kill_after}"
        status = []
        for once in (kill_after, 0)[not kill_after :]:
            child = os.fork()
            if child == 0:
                try:
                    draw(folder, out, once)
                    os._exit(0)
                except BaseException as error:
                    print(repr(error), file=sys.stderr)
                    os._exit(1)
            status.append(os.waitpid(child, 0)[1])
        told = json.loads((folder / f"{out.name}.json").read_text())
        found[str(kill_after)] = {
            "status": status,
            **told,
            "files": {
                p.relative_to(out).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
                for p in sorted(out.rglob("*"))
                if p.is_file()
            },
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
