"""A source's fingerprint changes when, and only when, what the settings name holds something else."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.prepare.config import TaskSetSettings
from tasks.prepare.steps import source_fingerprint, task_fingerprints
from tests.tiny_models import toy_task


@pytest.mark.parametrize("changed", ["source", "test_source"])
def test_each_source_of_a_task_counts(changed: str, tmp_path: Path) -> None:
    files = {name: toy_task(tmp_path / f"{name}.jsonl", count=10) for name in ("source", "test_source")}
    own = [{"name": "toy", **{name: str(file) for name, file in files.items()}}]
    settings = TaskSetSettings.model_validate({"bundled": [], "own": own})
    before = task_fingerprints(settings)
    assert task_fingerprints(settings) == before
    toy_task(files[changed], count=11)
    assert task_fingerprints(settings) != before


@pytest.mark.parametrize("name", ["held.txt", "held.md", "held.rst", "held.jsonl"])
def test_a_file_of_any_kind_and_a_pattern(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("one")
    sources = (str(tmp_path / name), f"{tmp_path}/hel*")
    before = [source_fingerprint(source) for source in sources]
    (tmp_path / name).write_text("two")
    assert all(source_fingerprint(source) != mark for source, mark in zip(sources, before, strict=True))


def test_a_moved_branch_of_the_hub_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = {"model": "a" * 40, "dataset": "b" * 40}

    def info(_self: object, source: str, *, repo_type: str, **_: object) -> SimpleNamespace:
        assert source == "owner/name"
        return SimpleNamespace(sha=commits[repo_type])

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", info)
    model, data = source_fingerprint("owner/name", "main", "model"), source_fingerprint("owner/name")
    commits["model"] = "c" * 40
    assert source_fingerprint("owner/name", "main", "model") != model
    assert source_fingerprint("owner/name") == data
    assert source_fingerprint("owner/name", "d" * 40, "model") == f"hub:owner/name@{'d' * 40}"


def test_without_a_network_the_cached_commit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert source_fingerprint("owner/name", "", "model") == "hub:owner/name@"
    (tmp_path / "models--owner--name/refs").mkdir(parents=True)
    (tmp_path / "models--owner--name/refs/main").write_text("e" * 40)
    assert source_fingerprint("owner/name", "", "model") == f"hub:owner/name@{'e' * 40}"
