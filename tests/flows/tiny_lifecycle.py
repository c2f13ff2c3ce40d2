"""A lifecycle on a tiny model and toy tasks: the whole graph in seconds on one thread."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.tiny_models import tiny_llama, toy_task, toy_text

ROOT = Path(__file__).parent.parent.parent


def tiny_settings(folder: Path) -> dict[str, Any]:
    """Write model, tasks and text below `folder`; settings of a lifecycle over them."""
    tiny_llama(folder / "model")
    own = []
    for shift in (0, 1):
        file = toy_task(folder / f"toy{shift}.jsonl", shift=shift, seed=shift)
        own.append(
            {
                "name": f"toy{shift}",
                "source": str(file),
                "prompt_column": "question",
                "choices_column": "choices",
                "answer_column": "answer",
            }
        )
    return {
        "prepare": {
            "model": {"source": str(folder / "model")},
            "tasks": {
                "bundled": [],
                "own": own,
                "train_examples": 120,
                "stop_examples": 24,
                "select_examples": 24,
                "test_examples": 24,
            },
            "text": {
                "source": str(toy_text(folder / "text.jsonl")),
                "heldout_bytes": 2000,
                "calibration_bytes": 4000,
            },
        },
        "finetune": {
            "max_steps": 12,
            "warmup": 2,
            "stop_every": 2,
            "checkpoint_every": 3,
            "rank": 4,
            "dtype": "float32",
            "learning_rate": 0.01,
        },
        "merge": {"methods": ["task_arithmetic", "ties"]},
        "compress": {
            "recipes": [{"kind": "wanda", "calibration_sequences": 4, "calibration_length": 32}],
        },
        "evaluate": {"dtype": "float32", "measure_speed": False, "text_window": 64},
    }


def environment(work: Path, **more: str) -> dict[str, str]:
    """An environment for `seedloom` in a subprocess."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("SEEDLOOM_", "PREFECT_"))
    }
    return {**kept, "SEEDLOOM_WORK_DIR": str(work), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}


def seedloom(*arguments: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments],
        env={**env, "PYTHONPATH": str(ROOT)},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def write_params(file: Path, settings: dict[str, Any]) -> Path:
    file.write_text(json.dumps({"lifecycle": settings}))
    return file
