"""Trainings in processes of their own: killed and done again, or shared by two; prints what came of them.

Usage: killed_run.py BASE TASK WORK. The processes are forked from one that has imported everything.
"""

import hashlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.reference import reference_to
from tasks.train import finetune as module
from tasks.train.config import FinetuneSettings


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


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_process(work: Callable[[], object]) -> int:
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
    (out.parent / f"{out.name}.json").write_text(json.dumps(summary))


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
                (out.parent / f"{out.name}.json").write_text(json.dumps(summary))
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * count
    return json.loads((out.parent / f"{out.name}.json").read_text()) | {"files": sorted(os.listdir(out))}


def runs(base: Path, task: Path, work: Path, adapter: str) -> dict[str, Any]:
    found = {}
    for point in POINTS[adapter]:
        out = work / f"killed-{point or 'never'}"
        killed = in_a_process(lambda out=out, point=point: train(base, task, out, adapter, point))
        left = sorted(path.name for path in out.iterdir())
        status = in_a_process(lambda out=out: train(base, task, out, adapter)) if point else killed
        summary = json.loads((work / f"{out.name}.json").read_text())
        found[point or "never"] = {
            "signal": os.WTERMSIG(killed) if os.WIFSIGNALED(killed) else 0,
            "left": left,
            "status": status,
            "steps_here": summary.pop("timings")["steps_here"],
            "summary": summary,
            "files": {
                path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted(out.rglob("*"))
                if path.is_file()
            },
        }
    return found


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
