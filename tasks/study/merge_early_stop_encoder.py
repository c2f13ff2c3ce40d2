"""The encoder bench of `merge_early_stop` as steps: one a kind and seed, resumable expert by expert."""

import json
import logging
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from methods.common.dtype import resolve_dtype
from methods.common.errors import ConfigError, DataError
from methods.merge_early_stop.encoder import (
    PartSizes,
    TextExample,
    make_encoder_bench,
    split_examples,
)
from methods.merge_early_stop.encoder_study import EncoderSettings, encoder_job
from tasks.prepare.bundled_tasks import bundled_examples
from tasks.prepare.sentiment import DOMAINS, read_sentences
from tasks.reference import Reference
from tasks.step import step
from tasks.study.merge_early_stop_encoder_config import EncoderBenchStudy, EncoderTexts

logger = logging.getLogger("seedloom")
NEUTRAL = 0.5  # mean ratings nearer to 0 than this are neither positive nor negative
# What the frozen head compares a sentence with: the base model's vectors of these phrases, negative first.
PHRASES = {
    "tweets": ("This tweet is negative and unhappy.", "This tweet is positive and happy."),
    "films": ("This film is bad.", "This film is good."),
    "news": ("This news is bad.", "This news is good."),
    "products": ("This product is bad.", "This product is good."),
}


def sentiment_examples(rows: Iterable[dict[str, Any]], domain: str) -> list[TextExample]:
    """Sentences of a domain by the sign of their rating, near-neutral ones left out.

    Sentences of one article or review (`12_3` is the third of the twelfth) stay in one part.
    """
    return [
        TextExample(row["text"], PHRASES[domain], int(row["rating"] > 0), group)
        for row in rows
        if row["domain"] == domain and abs(row["rating"]) >= NEUTRAL
        for group in [f"{domain} {row['id'].split('_')[0]}" if "_" in row["id"] else ""]
    ]


def choice_examples(name: str) -> list[TextExample]:
    """A bundled task's training questions with their choices.

    Those with another number of choices than most are left out.
    """
    examples = bundled_examples(name, "train")
    counts = [len(example.choices) for example in examples]
    usual = max(set(counts), key=counts.count)
    return [
        TextExample(
            e.context.removeprefix("Question:").removesuffix("Answer:").strip(),
            tuple(choice.strip() for choice in e.choices),
            e.gold,
            e.group,
        )
        for e in examples
        if len(e.choices) == usual
    ]


def own_examples(file: Path) -> list[TextExample]:
    """A user's task.

    Raises:
        DataError: the file or a line of it cannot be used; names the line and what it must hold.
    """
    need = 'each line must be {"text": ..., "answers": [two or more], "gold": index of the right answer}'
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"tasks.own: {file} cannot be read ({error}); give a JSON-lines file") from error
    examples = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            example = TextExample(str(row["text"]), tuple(map(str, row["answers"])), int(row["gold"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"tasks.own: {file}, line {number}: {error}; {need}") from error
        if (
            len(example.answers) < 2
            or not 0 <= example.gold < len(example.answers)
            or not example.text.strip()
        ):
            raise DataError(f"tasks.own: {file}, line {number}: gold or answers do not fit; {need}")
        examples.append(example)
    return examples


def task_examples(settings: EncoderTexts, data: Path, own: Sequence[Path]) -> dict[str, list[TextExample]]:
    """All examples of each task, before they are divided into parts."""
    rows = read_sentences(data) if set(settings.names) & set(DOMAINS) else []
    found = {
        name: sentiment_examples(rows, name) if name in DOMAINS else choice_examples(name)
        for name in settings.names
    }
    for file in own:
        found[file.stem] = own_examples(file)
    return found


def check_tasks(settings: EncoderBenchStudy) -> None:
    """Refuse tasks that cannot be used, before any work starts.

    Raises:
        ConfigError, DataError: one line that names the setting and the remedy.
    """
    study_settings(settings)
    names = [*settings.tasks.names, *(Path(file).stem for file in settings.tasks.own)]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigError(f"tasks: {', '.join(names) or 'none'}; give two or more of different names")
    if set(settings.tasks.names) & set(DOMAINS):
        read_sentences(Path(settings.data).expanduser())
    for file in settings.tasks.own:
        own_examples(Path(file).expanduser())


def study_settings(settings: EncoderBenchStudy) -> EncoderSettings:
    """The method's settings."""
    return EncoderSettings(
        steps=settings.steps,
        seeds=settings.seeds,
        kinds=settings.kinds,
        rates={"full": settings.learning_rate_full, "lora": settings.learning_rate_lora},
        rank=settings.rank,
        batch_size=settings.batch_size,
        warmup=settings.warmup,
    )


def study_kind(
    out: Path,
    *,
    settings: EncoderBenchStudy,
    kind: str,
    seed: int,
    model: Reference,
    sentences: Reference | None,
    own: list[Reference],
) -> dict[str, Any]:
    """Train, sweep and stop the experts of one kind and seed; one CSV a frame."""
    texts = settings.tasks
    sizes = PartSizes(texts.train, texts.stop, texts.select, texts.test)
    data = sentences.path if sentences is not None else Path()
    examples = task_examples(texts, data, [reference.path for reference in own])
    bench = make_encoder_bench(
        model.path,
        {name: split_examples(name, found, sizes, seed) for name, found in examples.items()},
        max_tokens=texts.max_tokens,
        dtype=resolve_dtype(settings.dtype),
    )
    frames = encoder_job(bench, kind, seed, study_settings(settings), out / "bank", logger.info)
    shutil.rmtree(out / "bank")
    costs = frames.pop("costs")
    for name, frame in frames.items():
        frame.to_csv(out / f"{name}.csv", index=False)
    return {"frames": sorted(frames), "timings": {"costs": costs.to_dict("records")}}


encoder_study = step("study-merge-early-stop-encoder", kind="report", version="1", timeout_seconds=24 * 3600)(
    study_kind
)


def read_encoder_frames(parts: Sequence[tuple[Path, list[dict[str, Any]]]]) -> dict[str, pd.DataFrame]:
    """The frames of all kinds and seeds, one below the other, with the measured costs."""
    found: dict[str, list[pd.DataFrame]] = {}
    for folder, costs in parts:
        for path in sorted(folder.glob("*.csv")):
            found.setdefault(path.stem, []).append(pd.read_csv(path))
        found.setdefault("costs", []).append(pd.DataFrame(costs))
    return {name: pd.concat(frames, ignore_index=True) for name, frames in found.items()}
