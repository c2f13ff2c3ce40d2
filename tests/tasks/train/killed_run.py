"""Trainings in processes of their own: killed and done again, or shared by two; prints what came of them.

Usage: killed_run.py BASE TASK WORK. The processes are forked from one that has imported everything.
"""

import json
import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tasks.reference import reference_to
from tasks.train import finetune as module
from tasks.train.config import FinetuneSettings
from tests.killed import keep, kill, training_and_again


def settings(adapter: str) -> FinetuneSettings:
    """A run that stops by itself, after a reduction of the rate, with dropout."""
    return FinetuneSettings(
        adapter=adapter,
        rank=4,
        dropout=0.1 if adapter == "lora" else 0.0,
        learning_rate=0.05,
        batch_size=16,
        max_steps=40,
        warmup=2,
        stop_every=2,
        stop_patience=1,
        stop_reductions=1,
        checkpoint_every=4,
        dtype="float32",
    )


def train(base: Path, task: Path, out: Path, adapter: str, kill_at: str = "") -> None:
    out.mkdir(parents=True, exist_ok=True)

    def on_row(row: dict[str, float]) -> None:
        if kill_at.isdigit() and row["step"] == int(kill_at) and "train/loss" in row:
            kill()

    if kill_at == "writing":  # the weights are there, the rest is not
        module.write_trace = lambda *_: kill()
    if kill_at == "saving":  # a checkpoint's weights are there, its state is not
        save = module.Trainer._save_rng_state
        module.Trainer._save_rng_state = lambda self, folder: (
            kill() if self.state.global_step == 8 else save(self, folder)
        )
    summary = module.finetune(
        out,
        settings=settings(adapter),
        base=reference_to(base, "model"),
        task=reference_to(task, "tasks"),
        stopping="merge_aware",
        on_row=on_row,
    )
    keep(out, summary)


POINTS = {"lora": ("", "3", "7", "saving", "writing"), "full": ("", "7")}


def main(base: Path, task: Path, work: Path) -> None:
    found: dict[str, Any] = {adapter: runs(base, task, work / adapter, adapter) for adapter in POINTS}
    found["processes"] = {count: shared(base, task, work / f"by-{count}", count) for count in (1, 2)}
    print(json.dumps(found))


def shared(base: Path, task: Path, out: Path, count: int) -> dict[str, Any]:
    """The same training by `count` processes, as torchrun starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out.mkdir()
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
            if count > 1:
                os.environ.update(
                    {name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1"
                )
            summary = module.finetune(
                out,
                settings=settings("lora").model_copy(
                    update={"dropout": 0.0, "max_steps": 8, "learning_rate": 0.005}
                ),
                base=reference_to(base, "model"),
                task=reference_to(task, "tasks"),
                stopping="fixed",
            )
            if rank == 0:
                keep(out, summary)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * count
    return json.loads((out.parent / f"{out.name}.json").read_text()) | {"files": sorted(os.listdir(out))}


def runs(base: Path, task: Path, work: Path, adapter: str) -> dict[str, Any]:
    found = {}
    for point in POINTS[adapter]:
        out = work / f"killed-{point or 'never'}"
        first = partial(train, base, task, out, adapter, point)
        again = partial(train, base, task, out, adapter) if point else None
        found[point or "never"] = training_and_again(out, first, again)
    return found


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
