"""A tiny model and tiny task sets, made once."""

from pathlib import Path

import pytest

from tasks.prepare.config import TaskSetSettings, TextSettings
from tasks.prepare.task_sets import build_task_sets
from tasks.prepare.text import build_heldout_text
from tests.tiny_models import tiny_llama, toy_task, toy_text


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def task_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two multiple-choice tasks and one with free text."""
    folder = tmp_path_factory.mktemp("tasks")
    own = [
        {
            "name": f"toy{shift}",
            "source": str(toy_task(folder / f"toy{shift}.jsonl", shift=shift, seed=shift)),
            "prompt_column": "question",
            "choices_column": "choices",
        }
        for shift in (0, 1)
    ]
    free = folder / "free.jsonl"
    free.write_text(
        "".join(f'{{"prompt": "{i} : the sea is", "completion": "blue für {i}"}}\n' for i in range(60))
    )
    own.append({"name": "free", "source": str(free)})
    settings = TaskSetSettings.model_validate(
        {
            "bundled": [],
            "own": own,
            "train_examples": 20,
            "stop_examples": 5,
            "select_examples": 5,
            "test_examples": 20,
        }
    )
    build_task_sets(settings, folder / "sets")
    return folder / "sets"


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    source = toy_text(folder / "text.jsonl")
    settings = TextSettings(source=str(source), heldout_bytes=1500, calibration_bytes=500, document_bytes=400)
    build_heldout_text(settings, folder / "text")
    return folder / "text"
