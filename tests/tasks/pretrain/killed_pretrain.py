"""Pre-trainings in processes of their own, one of them killed and done again; prints what came of them.

Usage: killed_pretrain.py CORPUS WORK.
"""

import json
import sys
from functools import partial
from pathlib import Path

from tasks.pretrain import pretrain as module
from tests.killed import keep, kill, training_and_again
from tests.tasks.pretrain.tiny import reference, settings

WRITING = -1


def train(corpus: Path, out: Path, kill_at: int = 0) -> None:
    out.mkdir(parents=True, exist_ok=True)

    def on_row(row: dict[str, float]) -> None:
        if kill_at and row["step"] == kill_at and "train/loss" in row:
            kill()

    if kill_at == WRITING:  # the weights are there, the rest is not
        module.write_trace = kill
    keep(out, module.pretrain(out, settings=settings(), corpus=reference(corpus), on_row=on_row))


def main(corpus: Path, work: Path) -> None:
    found = {}
    for kill_at in (0, 7, WRITING):
        out = work / f"killed-{kill_at}"
        again = partial(train, corpus, out) if kill_at else None
        found[str(kill_at)] = training_and_again(out, partial(train, corpus, out, kill_at), again)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:3]))
