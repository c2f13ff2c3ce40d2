"""Adaptations in processes of their own, one of them killed and done again; prints what came of them.

Usage: killed_adapt.py FOLDER, which holds llama, rows; the method is psd-skip.
"""

import json
import sys
from functools import partial
from pathlib import Path

from tasks.adapt.adapt import adapt
from tasks.reference import reference_to
from tests.killed import keep, kill, training_and_again
from tests.tasks.adapt.tiny import settings


def train(folder: Path, out: Path, kill_at: int = 0) -> None:
    out.mkdir(exist_ok=True)

    def on_row(row: dict[str, float]) -> None:
        if kill_at and row["step"] == kill_at and "train/loss" in row:
            kill()

    model, corpus = reference_to(folder / "llama", "model"), reference_to(folder / "rows", "data")
    keep(out, adapt(out, settings=settings(), model=model, corpus=corpus, on_row=on_row))


def main(folder: Path) -> None:
    found = {}
    for kill_at in (0, 6):
        out = folder / f"killed-{kill_at}"
        again = partial(train, folder, out) if kill_at else None
        found[str(kill_at)] = training_and_again(out, partial(train, folder, out, kill_at), again)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
