"""EleutherAI's lm-evaluation-harness on local task sets, and on its public tasks by name.

Each task set becomes a task YAML that points to the Arrow file, so the same definition runs with the harness's own
command line: `lm_eval --include_path <out>/harness --tasks seedloom_<name>`, started in the folder of the task sets.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from methods.common.errors import DataError
from tasks.evaluate.config import EvaluateSettings
from tasks.evaluate.items import item_rows
from tasks.quiet import quiet_logs, quiet_progress

PREFIX = "seedloom_"
FEWSHOT_SEED = 1234  # the harness's own default
COLUMNS = ("context", "choices", "gold", "id")


def task_folders(tasks: Path, split: str) -> dict[str, Path]:
    """Name and folder of the wanted part of each task set below `tasks`.

    Raises:
        DataError: no task set is there, or one lacks the part or a column.
    """
    found = {path.parent.name: path.parent / split for path in sorted(tasks.glob("*/task.json"))}
    if not found:
        raise DataError(
            f"tasks {tasks}: holds no task set (a folder with task.json); give what prepare wrote"
        )
    for name, folder in found.items():
        if not (folder / "state.json").is_file():
            raise DataError(f"task {name}: {folder} is no Arrow data set; run prepare again")
    return found


def arrow_files(folder: Path) -> list[Path]:
    """The Arrow files of a saved data set, in order.

    Raises:
        DataError: a file is missing, or the data set cannot be read or lacks a column.
    """
    from datasets import load_from_disk

    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        files = [folder / entry["filename"] for entry in state["_data_files"]]
        data = load_from_disk(str(folder)) if files else None
    except Exception as error:
        raise DataError(
            f"{folder}: is not a whole Arrow data set ({type(error).__name__}); run prepare again"
        ) from error
    if data is None or len(data) == 0:
        raise DataError(f"{folder}: holds no examples; run prepare again")
    lacking = [column for column in COLUMNS if column not in data.column_names]
    if lacking:
        raise DataError(f"{folder}: has no column {lacking[0]!r}; it has {', '.join(data.column_names)}")
    return files


def task_yaml(name: str, files: Sequence[str], spaced: bool, cache: str = "") -> str:
    """The harness's definition of one task set.

    Args:
        name: of the task set.
        files: its Arrow files.
        spaced: every answer starts with one space. The harness then adds that space itself and counts an answer's
            length without it, as in public tasks.
        cache: where the harness keeps its copy of the data; empty for its default.
    """
    metrics = [
        {"metric": metric, "aggregation": "mean", "higher_is_better": True}
        for metric in ("acc", "acc_norm", "exact_match")
    ]
    definition = {
        "task": PREFIX + name,
        "dataset_path": "arrow",
        "dataset_kwargs": {"data_files": {"test": list(files)}} | ({"cache_dir": cache} if cache else {}),
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "context",
        "doc_to_target": "gold",
        "doc_to_choice": "{{ choices | map('replace', ' ', '', 1) | list }}" if spaced else "choices",
        "target_delimiter": " " if spaced else "",
        "num_fewshot": 0,
        "metric_list": metrics,
        "metadata": {"version": 1},
    }
    return json.dumps(definition, indent=2, ensure_ascii=False) + "\n"  # JSON is YAML


def run_task_sets(
    lm: Any, tasks: Path, settings: EvaluateSettings, out: Path
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Score the task sets below `tasks` with the harness.

    Args:
        lm: the harness's model.
        tasks: folder of task sets.
        settings: the part, the number of examples, public tasks.
        out: gets `harness/<task>.yaml`.

    Returns:
        the items (see `item_rows`) of the task sets and the metrics of the public tasks (`public/<task>/<metric>`).
    """
    from datasets import load_from_disk

    folders = task_folders(tasks, settings.split)
    public = run_public_tasks(lm, settings)  # first: a wrong name should cost no work
    definitions = out / "harness"
    definitions.mkdir(parents=True, exist_ok=True)
    frames = []
    with tempfile.TemporaryDirectory(prefix="seedloom-harness-") as scratch:
        include = Path(scratch) / "tasks"
        include.mkdir()
        data = {}
        for name, folder in folders.items():
            files = arrow_files(folder)
            data[name] = load_from_disk(str(folder))
            spaced = all(text.startswith(" ") for choices in data[name]["choices"] for text in choices)
            # The kept definition must not name this machine's folders.
            kept = task_yaml(name, [f"{name}/{settings.split}/{file.name}" for file in files], spaced)
            (definitions / f"{name}.yaml").write_text(kept, encoding="utf-8")
            used = task_yaml(name, [str(file.resolve()) for file in files], spaced, f"{scratch}/cache")
            (include / f"{name}.yaml").write_text(used, encoding="utf-8")
        results = _run_harness(lm, [PREFIX + name for name in folders], settings.examples, include, False)
        for name in folders:
            samples = sorted(results["samples"][PREFIX + name], key=lambda sample: sample["doc_id"])
            answers = [
                [(float(ll), bool(greedy)) for ll, greedy in sample["filtered_resps"]] for sample in samples
            ]
            frames.append(item_rows(name, [data[name][sample["doc_id"]] for sample in samples], answers))
    return pd.concat(frames, ignore_index=True), public


def run_public_tasks(lm: Any, settings: EvaluateSettings) -> dict[str, float]:
    """Metrics of the harness's public tasks that the settings name; their data come from the hub.

    Raises:
        DataError: the harness has no such task, or its data cannot be fetched.
    """
    if not settings.extra_tasks:
        return {}
    try:
        results = _run_harness(lm, list(settings.extra_tasks), settings.extra_examples, None, True)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise DataError(f"extra_tasks {', '.join(settings.extra_tasks)}: cannot be run ({reason})") from error
    metrics = {}
    for task, values in results["results"].items():
        for key, value in values.items():
            metric, _, filtered = key.partition(",")
            if isinstance(value, int | float) and filtered:
                suffix = "" if filtered == "none" else f"_{filtered}"
                metrics[f"public/{task}/{metric}{suffix}"] = float(value)
    return metrics


def _run_harness(lm: Any, names: list[str], limit: int, include: Path | None, public: bool) -> dict[str, Any]:
    """The harness's `evaluate` on tasks by name.

    Not its `simple_evaluate`, which afterwards collects facts about the machine by starting pip, git and others:
    several seconds for each candidate.
    """
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    with quiet_logs("lm_eval", "datasets"), quiet_progress():
        loaded = TaskManager(include_path=str(include) if include else None, include_defaults=public).load(
            names
        )
        for task in loaded["tasks"].values():
            if task.get_config("num_fewshot") is None:
                task.set_config(key="num_fewshot", value=0)
            task.set_fewshot_seed(seed=FEWSHOT_SEED)
        results = evaluate(
            lm=lm,
            task_dict=loaded,
            limit=limit or None,
            # Bootstraps are only for metrics without a closed standard error; ours have one.
            bootstrap_iters=1_000 if public else 0,
            log_samples=True,
        )
    assert results is not None  # None only on ranks above 0
    return dict(results)
