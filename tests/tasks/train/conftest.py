"""A tiny base that a LoRA can teach, and toy task sets as the prepare step writes them."""

import json
from pathlib import Path

import pytest

from tasks.prepare.config import OwnTask, TaskSetSettings
from tasks.prepare.task_sets import build_task_sets
from tests.tiny_models import tiny_llama, toy_task


def teachable_llama(folder: Path, seed: int = 0) -> Path:
    """`tiny_llama` with larger embeddings: with the small ones its logits hardly move, whatever an adapter does."""
    from safetensors.torch import load_file, save_file

    tiny_llama(folder, seed=seed)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"] *= 15
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def toy_tasks(folder: Path, shifts: tuple[int, ...] = (0, 1)) -> Path:
    """Task sets `toy0`, `toy1`, ... below `folder`: each thing has one colour, another one in each task."""
    own = tuple(
        OwnTask(
            name=f"toy{shift}",
            source=str(toy_task(folder.parent / f"toy{shift}.jsonl", shift=shift, seed=shift)),
            prompt_column="question",
            choices_column="choices",
            answer_column="answer",
        )
        for shift in shifts
    )
    settings = TaskSetSettings(
        bundled=(), own=own, train_examples=160, stop_examples=24, select_examples=24, test_examples=48
    )
    folder.mkdir()
    build_task_sets(settings, folder)
    return folder


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return teachable_llama(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_tasks(tmp_path_factory.mktemp("tasks") / "tasks")


@pytest.fixture
def free_text(tmp_path: Path) -> Path:
    """A task set of prompts with one completion each."""
    file = tmp_path / "free.jsonl"
    file.write_text(
        "".join(json.dumps({"ask": f"{i} : say", "tell": f"the sky is blue {i}"}) + "\n" for i in range(60))
    )
    own = OwnTask(name="free", source=str(file), prompt_column="ask", completion_column="tell")
    folder = tmp_path / "free"
    folder.mkdir()
    sizes = {"train_examples": 20, "stop_examples": 8, "select_examples": 8, "test_examples": 8}
    build_task_sets(TaskSetSettings(bundled=(), own=(own,), **sizes), folder)
    return folder / "free"
