"""A base, its tasks, and an adapter for each."""

from pathlib import Path

import pytest

from tasks.reference import reference_to
from tasks.train.finetune import finetune
from tests.tiny_experts import QUICK_TRAINING, taught_llama, toy_tasks


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught_llama(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_tasks(tmp_path_factory.mktemp("tasks") / "tasks")


@pytest.fixture(scope="session")
def experts(base: Path, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name in ("toy0", "toy1"):
        found[name] = tmp_path_factory.mktemp("experts") / name
        found[name].mkdir()
        finetune(
            found[name],
            settings=QUICK_TRAINING,
            base=reference_to(base, "model"),
            task=reference_to(tasks / name, "tasks"),
            stopping="merge_aware",
        )
    return found
