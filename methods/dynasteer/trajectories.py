"""Baseline answers: questions with answers that can be checked, and the chains that the model writes for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from methods.common.errors import ConfigError, DataError
from methods.dynasteer.decoding import Decoded, Policy, Sentence, decode
from methods.dynasteer.numbers import answered_number, whole_number
from methods.dynasteer.sampling import EntropyMode, GenConfig, encode


@dataclass(frozen=True)
class Problem:
    """A question whose answer can be checked.

    Attributes:
        prompt: what the model reads: text, or token ids (chat templates).
        answer: the right answer, as the verifier understands it.
        group: what problems share (a template): intervals treat the groups as the independent units. Its own number
            when empty.
    """

    prompt: str | tuple[int, ...]
    answer: str
    group: str = ""


Verifier = Callable[[str, Problem], bool]


def number_is_right(text: str, problem: Problem) -> bool:
    """Whether the last number (or the last box) of the text equals the problem's answer, exactly.

    Raises:
        DataError: the problem's answer is no number.
    """
    wanted = whole_number(problem.answer)
    if wanted is None:
        raise DataError(f"answer {problem.answer!r} is no number; give numbers, or a verifier of your own")
    return answered_number(text) == wanted


def words_are_right(text: str, problem: Problem) -> bool:
    """Whether the last line with words is the answer, case and punctuation aside (letters of choices, short words)."""
    lines = [plain for line in text.splitlines() if (plain := " ".join(re.findall(r"\w+", line.lower())))]
    wanted = " ".join(re.findall(r"\w+", problem.answer.lower()))
    return bool(lines) and (lines[-1] == wanted or lines[-1].endswith(f" {wanted}"))


VERIFIERS: dict[str, Verifier] = {"number": number_is_right, "words": words_are_right}


@dataclass(frozen=True)
class Trajectory:
    """A chain that the model wrote.

    Attributes:
        problem: number of its problem.
        prompt: token ids.
        sentences: with their entropies.
        correct: whether the verifier accepts it.
        finished: whether it ended by itself.
        entropy: the kind of the sentences' entropies.
        text: the decoded answer.
        entropy_k: tokens of the kind "topk".
    """

    problem: int
    prompt: tuple[int, ...]
    sentences: tuple[Sentence, ...]
    correct: bool
    finished: bool
    entropy: EntropyMode
    text: str
    entropy_k: int = 20

    def prefix(self, sentence: int) -> list[int]:
        """Prompt and the sentences before number `sentence` (from 1)."""
        return [*self.prompt, *(token for s in self.sentences[: sentence - 1] for token in s.ids)]


def answer_text(tokenizer: Any, decoded: Decoded) -> str:
    """The answer as text, end-of-text tokens left out."""
    return str(tokenizer.decode(decoded.ids, skip_special_tokens=True))


def collect_trajectories(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    verifier: Verifier = number_is_right,
    config: GenConfig | None = None,
    on_done: Callable[[int, int], None] | None = None,
    first: int = 0,
) -> list[Trajectory]:
    """One chain a problem, drawn without steering, split into sentences and checked.

    `first` is the number of the first problem, when they are a part of a longer list.

    Raises:
        ConfigError: no problem, or an empty prompt.
        DataError: an answer that the verifier cannot read.
    """
    if not len(problems):
        raise ConfigError("problems: none is given; give at least one question with its answer")
    if strange := [problem for problem in problems if not isinstance(problem, Problem)]:
        raise ConfigError(f"problems hold {str(strange[0])[:40]!r}; give a list of Problem(prompt, answer)")
    config = config or GenConfig()
    prompts = encode(tokenizer, [problem.prompt for problem in problems])
    numbers = range(first, first + len(problems))
    found = decode(model, tokenizer, prompts, config, Policy(), keys=numbers, on_done=on_done)
    trajectories = []
    for number, problem, decoded in zip(numbers, problems, found, strict=True):
        text = answer_text(tokenizer, decoded)
        trajectories.append(
            Trajectory(
                number,
                decoded.prompt,
                tuple(decoded.sentences),
                verifier(text, problem),
                decoded.finished,
                config.entropy,
                text,
                config.entropy_k,
            )
        )
    return trajectories
