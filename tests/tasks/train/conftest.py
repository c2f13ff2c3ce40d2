"""A base, its tasks, and a task of free text."""

import json
from pathlib import Path

import pytest

from tasks.prepare.config import OwnTask, TaskSetSettings
from tasks.prepare.task_sets import build_task_sets
from tests.tiny_experts import taught_llama, toy_tasks


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught_llama(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_tasks(tmp_path_factory.mktemp("tasks") / "tasks")


@pytest.fixture
def free_text(tmp_path: Path) -> Path:
    """A task set of prompts with one completion each."""
    file = tmp_path / "free.jsonl"
    rows = [{"ask": f"{i} : say", "tell": f"the sky is blue {i}"} for i in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = OwnTask(name="free", source=str(file), prompt_column="ask", completion_column="tell")
    folder = tmp_path / "free"
    folder.mkdir()
    sizes = {"train_examples": 20, "stop_examples": 8, "select_examples": 8, "test_examples": 8}
    build_task_sets(TaskSetSettings(bundled=(), own=(own,), **sizes), folder)
    return folder / "free"
