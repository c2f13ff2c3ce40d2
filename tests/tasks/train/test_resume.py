"""SIGKILL at any moment of a training, and the run after it ends with the same bytes; two processes share one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
KILLED = [("lora", "3", 0), ("lora", "7", 4), ("lora", "saving", 4), ("full", "7", 4)]


@pytest.fixture(scope="module")
def runs(base: Path, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.tasks.train.killed_run", str(base), str(tasks / "toy0"), str(work)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_it_stops_by_itself_after_a_reduction(runs: dict[str, Any]) -> None:
    summary = runs["lora"]["never"]["summary"]
    assert summary["reason"] == "plateau"
    assert summary["kept_step"] < summary["steps"] < 40
    rates = [row["learning_rate"] for row in summary["trace"]]
    assert rates[0] == 0.05
    assert rates[-1] == 0.025


@pytest.mark.parametrize(("adapter", "point"), [*(k[:2] for k in KILLED), ("lora", "writing")])
def test_a_killed_run_ends_like_one_that_was_not(runs: dict[str, Any], adapter: str, point: str) -> None:
    killed, whole = runs[adapter][point], runs[adapter]["never"]
    assert killed["signal"] == signal.SIGKILL
    assert ".checkpoints" in killed["left"]
    assert killed["status"] == 0
    assert killed["files"] == whole["files"]
    assert killed["summary"] == whole["summary"]
    assert not any(name.startswith(".") for name in killed["files"])


@pytest.mark.parametrize(("adapter", "point", "done"), KILLED)
def test_it_goes_on_from_the_last_whole_checkpoint(
    runs: dict[str, Any], adapter: str, point: str, done: int
) -> None:
    assert runs[adapter][point]["steps_here"] == runs[adapter]["never"]["summary"]["steps"] - done


def test_two_processes_train_what_one_does(runs: dict[str, Any]) -> None:
    one, two = runs["processes"]["1"], runs["processes"]["2"]
    assert one["files"] == two["files"]
    assert one["steps"] == two["steps"] == 8
    assert two["stop_score"] == pytest.approx(one["stop_score"], abs=2e-3)
