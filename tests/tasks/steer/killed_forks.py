"""Forks drawn in processes of their own, one of them killed and done again; prints what came of them.

Usage: killed_forks.py FOLDER.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tasks.reference import reference_to
from tasks.steer import steer as module
from tests.killed import keep, kill, killed_and_again
from tests.tasks.steer.planted_folder import settings

module.PART_QUESTIONS = 6


def draw(folder: Path, out: Path, kill_after: int = 0) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write, written = module._write_rows, 0

    def counted(path: Path, rows: Any) -> None:
        nonlocal written
        if kill_after and written == kill_after:
            kill()
        written += 1
        write(path, rows)

    module._write_rows = counted
    summary = module.draw_forks(
        out,
        settings=settings(folder / "questions.jsonl", forks=3, completions=1),
        model=reference_to(folder / "model", "model"),
        questions=reference_to(folder / "few", "data"),
    )
    keep(out, {"written": written, "summary": summary})


def main(folder: Path) -> None:
    found = {}
    for kill_after in (0, 5):
        out = folder / f"killed-{kill_after}"
        again = partial(draw, folder, out) if kill_after else None
        found[str(kill_after)] = killed_and_again(out, partial(draw, folder, out, kill_after), again)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
