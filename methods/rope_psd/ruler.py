"""Prompts that ask for evidence at a chosen depth of a long text: RULER's tasks (NVIDIA/RULER, Apache-2.0).

Ours is a new implementation with the benchmark's templates. With noise and needle haystacks and no depth it draws in
the official script's order, so that equal seeds and word lists give equal prompts. What differs: keys come from a word
list of this project, essays from any text that is given (Paul Graham's are not at hand; sentences are split at full
stops), `vt` and `cwe` come without their solved example, and `qa_2` (HotpotQA) is missing.

`recall` is not RULER's: facts in running text, and the start of one of them at the end. Models too small for RULER's
instructions can do it.
"""

from __future__ import annotations

import random
import re
import string
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from methods.common.errors import ConfigError, DataError
from methods.rope_psd.ruler_words import ADJECTIVES, PAIRS, SINGLE

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic {kind} for {key} is: {value}."
FACT = "Remember {key} {value}."
TEMPLATE = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will "
    "quiz you about the {kind} afterwards.\n{context}\nWhat are all the special magic {kind} for {query} "
    "mentioned in the provided text?"
)
PREFIX = "The special magic {kind} for {query} mentioned in the provided text {verb}"
VT = (
    "Memorize and track the chain(s) of variable assignment hidden in the following "
    "text.\n\n{context}\nQuestion: Find all variables that are assigned the value {query} in the text "
    "above.",
    "Answer: According to the chain(s) of variable assignment in the text above, {count} variables are "
    "assgined the value {query}, they are:",
)
CWE = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize "
    "the ones that appear most often.\n{context}\nQuestion: What are the 10 most common words in the "
    "above list?",
    "Answer: The top 10 words that appear most often in the list are:",
)
FWE = (
    "Read the following coded text and track the frequency of each coded word. Find the three most "
    "frequently appeared coded words. {context}\nQuestion: Do not provide any explanation. Please "
    "ignore the dots '....'. What are the three most frequently appeared words in the above coded "
    "text?",
    "Answer: According to the coded text above, the three most frequently appeared words are:",
)
QA_ORDER = (
    "Answer the question based on the given documents. Only give me the answer and do not output any "
    "other words."
)
QA = QA_ORDER + "\n\nThe following are given documents.\n\n{context}\n\n" + QA_ORDER + "\n\nQuestion: {query}"


@dataclass(frozen=True)
class Prompt:
    """One question.

    Attributes:
        text: the long text with its instruction.
        prefix: the start of the answer, which the model is given too.
        answers: what it should say; all of them, or one of them when `any_counts`.
    """

    text: str
    prefix: str
    answers: tuple[str, ...]
    any_counts: bool = False

    @property
    def joined(self) -> str:
        return f"{self.text} {self.prefix}" if self.text else self.prefix


@dataclass(frozen=True)
class Needles:
    """What a retrieval task hides: k keys with v values each, q of them asked for."""

    haystack: str  # repeat, needle or essay
    key: str = "words"
    value: str = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1
    plain: bool = False


@dataclass(frozen=True)
class Material:
    """What tasks draw on.

    Attributes:
        sentences: of running text, for essay haystacks.
        documents, questions: for `qa_1`; a question has its text, its answers and the number of its document.
        words: keys.
    """

    sentences: Sequence[str] = ()
    documents: Sequence[str] = ()
    questions: Sequence[tuple[str, tuple[str, ...], int]] = ()
    words: Sequence[str] = PAIRS


NEEDLE_TASKS = {
    "niah_single_1": Needles("repeat"),
    "niah_single_2": Needles("essay"),
    "niah_single_3": Needles("essay", value="uuids"),
    "niah_multikey_1": Needles("essay", keys=4),
    "niah_multikey_2": Needles("needle"),
    "niah_multikey_3": Needles("needle", key="uuids", value="uuids"),
    "niah_multivalue": Needles("essay", values=4),
    "niah_multiquery": Needles("essay", queries=4),
    "recall": Needles("essay", value="adjectives", keys=4, plain=True),
}
# Their evidence is everywhere: they have no depth.
SPREAD_TASKS = ("vt", "cwe", "fwe")
TASKS = (*NEEDLE_TASKS, *SPREAD_TASKS, "qa_1")


def check_task(task: str) -> None:
    """Raises ConfigError for an unknown task."""
    if task not in TASKS:
        raise ConfigError(f"task={task!r}: choose one of {', '.join(TASKS)}")


def split_sentences(text: str) -> list[str]:
    """Sentences by full stops, line ends as spaces."""
    return [part for part in re.split(r"(?<=[.!?:;])\s+", re.sub(r"\s+", " ", text)) if part]


def make_prompt(
    task: str, size: int, rng: random.Random, depth: float | None = None, material: Material | None = None
) -> Prompt:
    """One prompt.

    Args:
        task: a name of `TASKS`.
        size: units of haystack: noises, needles, sentences, words or documents.
        rng: every draw comes from it.
        depth: where the evidence stands, 0 is the start and 1 the end of the haystack; None draws it. Of several
            needles it is the first that is asked for.
        material: text for essays and questions.

    Raises:
        ConfigError: unknown task, depth outside 0 .. 1, or a depth for a task without one.
        DataError: the material lacks what the task needs.
    """
    check_task(task)
    if depth is not None and not 0 <= depth <= 1:
        raise ConfigError(f"depth={depth}: give 0 (start) to 1 (end)")
    given = material or Material()
    if task in NEEDLE_TASKS:
        return _needles(NEEDLE_TASKS[task], max(1, size), rng, depth, given)
    if task == "qa_1":
        return _question(max(1, size), rng, depth, given)
    if depth is not None:
        raise ConfigError(f"task={task!r}: its evidence is spread over the text; it has no depth")
    makers: dict[str, Callable[[int, random.Random], Prompt]] = {
        "vt": _variables,
        "cwe": _common,
        "fwe": _frequent,
    }
    return makers[task](max(1, size), rng)


def _draw(kind: str, rng: random.Random, words: Sequence[str]) -> str:
    if kind == "numbers":
        return str(rng.randint(10**6, 10**7 - 1))
    if kind == "words":
        return rng.choice(words)
    if kind == "adjectives":
        return rng.choice(ADJECTIVES)
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _needles(spec: Needles, size: int, rng: random.Random, depth: float | None, given: Material) -> Prompt:
    # The order of the draws is the official script's.
    sentence = FACT if spec.plain else NEEDLE
    count = max(spec.keys, spec.queries)
    keys: list[str] = []
    values: list[list[str]] = []
    needles: list[tuple[int, str]] = []
    for i in range(count):
        keys.append(_draw(spec.key, rng, given.words))
        values.append([])
        for _ in range(spec.values):
            values[-1].append(_draw(spec.value, rng, given.words))
            needles.append((i, sentence.format(kind=spec.value, key=keys[-1], value=values[-1][-1])))
    random.Random(42).shuffle(needles)
    asked: list[int] | None = None
    if spec.haystack == "essay":
        if len(given.sentences) < size:
            raise DataError(
                f"essay haystack of {size} sentences: the text has {len(given.sentences)}; give more"
            )
        start = rng.randrange(len(given.sentences) - size + 1)
        units = list(given.sentences[start : start + size])
    elif spec.haystack == "repeat":
        units = [NOISE] * size
    else:
        units = []
        for _ in range(size):
            key = _draw(spec.key, rng, given.words)
            units.append(NEEDLE.format(kind=spec.value, key=key, value=_draw(spec.value, rng, given.words)))
    size = max(size, len(needles))
    places = sorted(rng.sample(range(size), len(needles)), reverse=True)
    if depth is None:
        for place, (_, needle) in zip(places, needles, strict=True):
            units.insert(place, needle)
    else:
        asked = rng.sample(range(count), spec.queries)
        first = next(n for n in needles if n[0] == asked[0])
        others = [n for n in needles if n is not first]
        for place, (_, needle) in zip(places, others, strict=False):
            units.insert(place, needle)
        units.insert(round(depth * len(units)), first[1])
    if asked is None:
        asked = rng.sample(range(count), spec.queries)
    context = (" " if spec.haystack == "essay" else "\n").join(units)
    answers = tuple(value for i in asked for value in values[i])
    query = [keys[i] for i in asked]
    if spec.plain:
        return Prompt(context, FACT.partition(" {value}")[0].format(key=query[0]), answers)
    told = ", ".join(query[:-1]) + ", and " + query[-1] if len(query) > 1 else query[0]
    one = spec.queries * spec.values == 1
    template, kind = TEMPLATE, spec.value
    if one:
        template = template.replace("Some", "A").replace("are all", "is").replace("are", "is")
        kind = kind[:-1]
    return Prompt(
        template.format(kind=kind, context=context, query=told),
        PREFIX.format(kind=kind, query=told, verb="is" if one else "are"),
        answers,
    )


def _variables(size: int, rng: random.Random, hops: int = 4) -> Prompt:
    names: list[str] = []
    while len(names) < hops + 1:
        name = "".join(rng.choices(string.ascii_uppercase, k=5))
        names += [name] if name not in names else []
    value = str(rng.randint(10000, 99998))
    chain = [
        f"VAR {names[0]} = {value}",
        *(f"VAR {b} = VAR {a} " for a, b in pairwise(names)),
    ]
    sentences = [NOISE + "\n"] * max(size, len(chain) + 1)
    for i, place in enumerate(sorted(rng.sample(range(len(sentences)), len(chain)))):
        sentences.insert(place + i, chain[i])
    context = " ".join(sentences).replace(". \n", ".\n")
    text, prefix = (part.format(context=context, query=value, count=hops + 1) for part in VT)
    return Prompt(text, prefix, tuple(names))


def _common(size: int, rng: random.Random) -> Prompt:
    words = rng.sample(SINGLE, min(len(SINGLE), max(size, 11)))
    listed = words[:10] * 6 + words[10:]
    rng.shuffle(listed)
    context = " ".join(f"{i}. {word}" for i, word in enumerate(listed, 1))
    return Prompt(CWE[0].format(context=context), CWE[1], tuple(words[:10]))


def _frequent(size: int, rng: random.Random, alpha: float = 2.0) -> Prompt:
    # Frequencies fall as rank^-alpha; the first rank is noise.
    vocabulary: list[str] = []
    while len(vocabulary) < max(8, size // 10):
        word = "".join(rng.choices(string.ascii_lowercase, k=6))
        vocabulary += [word] if word not in vocabulary else []
    vocabulary[0] = "..."
    total = sum(rank**-alpha for rank in range(1, len(vocabulary) + 1))
    counts = [round(size * rank**-alpha / total) for rank in range(1, len(vocabulary) + 1)]
    counts[1:5] = [max(c, 5 - i) for i, c in enumerate(counts[1:5])]  # the three winners are always distinct
    listed = [word for word, times in zip(vocabulary, counts, strict=True) for _ in range(times)]
    rng.shuffle(listed)
    return Prompt(FWE[0].format(context=" ".join(listed)), FWE[1], tuple(vocabulary[1:4]))


def _question(size: int, rng: random.Random, depth: float | None, given: Material) -> Prompt:
    if not given.questions or len(given.documents) < size:
        raise DataError(
            f"qa_1 with {size} documents: {len(given.documents)} documents and {len(given.questions)} questions are "
            "given; give more"
        )
    query, answers, own = rng.choice(list(given.questions))
    others = [number for number in range(len(given.documents)) if number != own]
    chosen = rng.sample(others, min(size - 1, len(others)))
    place = rng.randint(0, len(chosen)) if depth is None else round(depth * len(chosen))
    chosen.insert(place, own)
    context = "\n\n".join(f"Document {i}:\n{given.documents[n]}" for i, n in enumerate(chosen, 1))
    return Prompt(QA.format(context=context, query=query), "Answer:", answers, any_counts=True)


def largest_size(task: str, budget: int, count_tokens: Callable[[str], int], material: Material) -> int:
    """The largest haystack whose prompt, answers included, has at most `budget` tokens.

    Raises:
        DataError: not even the smallest one fits.
    """

    def fits(size: int) -> bool:
        made = make_prompt(task, size, random.Random(f"size|{task}|{size}"), None, material)
        return count_tokens(made.joined + " " + " ".join(made.answers)) <= budget

    limits = {"qa_1": len(material.documents)}
    if task in NEEDLE_TASKS and NEEDLE_TASKS[task].haystack == "essay":
        limits[task] = len(material.sentences)
    highest = limits.get(task, budget)
    if highest < 1 or not fits(1):
        raise DataError(
            f"task {task}: no prompt fits into {budget} tokens; give a greater length, or more text"
        )
    low = 1
    while low < highest:
        middle = (low + highest + 1) // 2
        low, highest = (middle, highest) if fits(middle) else (low, middle - 1)
    return low
