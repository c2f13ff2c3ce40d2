"""The study of `pruning_representations` as small steps, so that a killed run loses one of them at most.

Every step has its own key: a run with more recipes, tasks or seeds finds the others done.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pandas as pd

from tasks.reference import Reference
from tasks.step import step
from tasks.study.pruning.items import LETTERS, build_items, read_items, write_items

FRAME = "frame.csv.gz"
DAY = 24 * 3600
# float32 for what is compared; the number format of scores is the device's fast one.
PROBE_LENGTH = 256


def read_frame(folder: Path) -> pd.DataFrame:
    """The frame that a step wrote."""
    return pd.read_csv(folder / FRAME)


def _write(out: Path, frame: pd.DataFrame) -> None:
    # No time stamp in the archive: the same numbers are the same bytes.
    frame.to_csv(out / FRAME, index=False, float_format="%.7g", compression={"method": "gzip", "mtime": 0})


def _load(model: Reference, exact: bool) -> tuple[Any, Any]:
    """A model, in float32 or in the device's fast format, and its tokenizer."""
    import torch

    from methods.common.dtype import fast_dtype
    from tasks.evaluate.loading import best_device, load_candidate

    return load_candidate(model.expect("model"), None, torch.float32 if exact else fast_dtype(best_device()))


def config_of(folder: Path) -> dict[str, Any]:
    """The model's config.json."""
    found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return found


def documents(text: Reference, part: str = "") -> list[str]:
    """The documents of a prepared text, or of its part `calibration`."""
    from tasks.evaluate.perplexity import read_text

    folder = text.expect("text")
    return read_text(folder / part if part else folder)


@step("pruning-items", kind="data", version="1", timeout_seconds=DAY)
def items_step(out: Path, *, text: Reference, count: int, seed: int, fingerprint: str) -> dict[str, Any]:
    """Build the study's tasks."""
    built = build_items(documents(text), documents(text, "calibration"), count, seed)
    return {"items": write_items(out, built)}


@step("pruning-scores", kind="report", version="1", timeout_seconds=DAY)
def scores_step(out: Path, *, model: Reference, items: Reference, tasks: list[str]) -> dict[str, Any]:
    """Score one model on tasks; a task that a killed attempt finished is not done again."""
    from tasks.study.pruning.scores import score_task

    loaded: tuple[Any, Any] | None = None
    for task in tasks:
        file = out / f"{task}.json"
        if not file.exists():
            loaded = loaded or _load(model, exact=False)
            values = score_task(*loaded, task, read_items(items.path, task))
            part = file.with_suffix(".part")
            part.write_text(json.dumps(values) + "\n")
            part.replace(file)
    values_by_task = {task: json.loads((out / f"{task}.json").read_text()) for task in tasks}
    return {"scores": {task: sum(values) / len(values) for task, values in values_by_task.items()}}


def item_scores(folder: Path) -> dict[str, list[float]]:
    """Task -> 1 or 0 for each item."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


@step("pruning-perplexity", kind="report", version="1", timeout_seconds=DAY)
def perplexity_step(out: Path, *, model: Reference, text: Reference, characters: int) -> dict[str, Any]:
    """Perplexity on the first held-out prose."""
    from tasks.study.pruning.scores import perplexity

    prose, left = [], characters
    for document in documents(text):
        prose.append(document[:left])
        left -= len(prose[-1])
        if left <= 0:
            break
    value = perplexity(*_load(model, exact=False), prose)
    (out / "perplexity.json").write_text(json.dumps(value) + "\n")
    return {"perplexity": value}


@step("pruning-layers", kind="report", version="1", timeout_seconds=DAY)
def layers_step(
    out: Path,
    *,
    model: Reference,
    text: Reference,
    sublayer: str,
    tokens: int,
    temperature: float,
    final_norm: bool,
    seed: int,
) -> dict[str, Any]:
    """Protocol A on held-out prose: every sublayer of a kind dropped, one at a time."""
    from methods.pruning_representations import RepresentationProbe

    loaded, tokenizer = _load(model, exact=True)
    probe = RepresentationProbe(loaded, tokenizer, final_norm=final_norm, temperature=temperature)
    table = probe.layerwise(
        passages(documents(text), 8, seed, 900),
        sublayer=sublayer,  # type: ignore[arg-type]
        max_tokens=tokens,
        max_length=PROBE_LENGTH,
    )
    _write(out, table.frame)
    return {"tokens": int(table.frame.token.nunique())}


def passages(texts: list[str], count: int, seed: int, characters: int) -> list[str]:
    """Stretches of prose that start with a word, drawn without overlap."""
    pieces = [
        text[start : start + characters].partition(" ")[2]
        for text in texts
        for start in range(0, len(text) - characters, characters)
    ]
    random.Random(seed).shuffle(pieces)
    return pieces[:count] if pieces else texts[:count]


@step("pruning-decoding", kind="report", version="1", timeout_seconds=DAY)
def decoding_step(
    out: Path,
    *,
    model: Reference,
    other: Reference,
    text: Reference,
    prompts: int,
    steps: int,
    temperature: float,
    seed: int,
) -> dict[str, Any]:
    """Protocol B: both models continue prose, each on its own and both on the dense model's text."""
    from methods.pruning_representations import RepresentationProbe

    dense, tokenizer = _load(model, exact=True)
    changed, _ = _load(other, exact=True)
    probe = RepresentationProbe(dense, tokenizer, temperature=temperature)
    table = probe.decoding(passages(documents(text), prompts, seed, 300), changed, max_new_tokens=steps)
    _write(out, table.frame)
    return {"summary": table.summary()}


def _letters(tokenizer: Any, cue: str) -> tuple[str, ...]:
    """The letters as they follow the prompt, after a space when it asks for one, if each is a single token so."""
    from methods.common.errors import ConfigError
    from methods.pruning_representations.probe import option_tokens

    plain = tuple(letter.strip() for letter in LETTERS)
    first, second = (LETTERS, plain) if cue == "cued" else (plain, LETTERS)
    try:
        option_tokens(tokenizer, first)
    except ConfigError:
        return second
    return first


@step("pruning-options", kind="report", version="1", timeout_seconds=DAY)
def options_step(
    out: Path,
    *,
    model: Reference,
    other: Reference,
    items: Reference,
    cue: str,
    questions: int,
    temperature: float,
) -> dict[str, Any]:
    """Protocol C: lettered answers, where the prompt asks for the letter (`cued`) or does not (`plain`)."""
    from methods.pruning_representations import RepresentationProbe

    dense, tokenizer = _load(model, exact=True)
    changed, _ = _load(other, exact=True)
    probe = RepresentationProbe(dense, tokenizer, temperature=temperature)
    rows = read_items(items.path, "letters")[:questions]
    strings = _letters(tokenizer, cue)
    frame = probe.options([row[cue] for row in rows], strings, changed).frame
    frame.insert(0, "cue", cue)
    frame.insert(1, "gold", [row["gold"] for row in rows])
    _write(out, frame)
    return {"questions": len(rows)}


@step("pruning-retrieval", kind="report", version="2", timeout_seconds=DAY)
def retrieval_step(
    out: Path, *, encoder: Reference, items: Reference, text: Reference, questions: int, seed: int
) -> dict[str, Any]:
    """Recall of passages by an encoder, dense and compressed, among the passages of all these questions."""
    from tasks.study.pruning.retrieval import measure

    pairs = read_items(items.path, "retrieval")[:questions]
    rows = measure(encoder.expect("model"), pairs, documents(text, "calibration"), seed)
    frame = pd.DataFrame(rows)
    _write(out, frame)
    return {"recall": {str(k): float(v) for k, v in frame.groupby("variant").found.mean().items()}}
