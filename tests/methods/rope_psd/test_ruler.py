"""Prompts: the evidence stands where it should, lengths hold, and the benchmark's own script writes the same."""

import random
import re
import sys
import types
from typing import Any

import pytest

from methods.common.errors import ConfigError, DataError
from methods.rope_psd import TASKS
from methods.rope_psd.positions import make_prompts
from methods.rope_psd.ruler import (
    NEEDLE_TASKS,
    SPREAD_TASKS,
    Material,
    make_prompt,
    split_sentences,
)
from methods.rope_psd.ruler_words import ADJECTIVES, NOUNS, PAIRS

TEXT = [f"Sentence number {i} talks about nothing much." for i in range(300)]
DOCUMENTS = [f"Page {i} says that the code of town {i} is T{i}." for i in range(30)]
MATERIAL = Material(TEXT, DOCUMENTS, [(f"What is the code of town {i}?", (f"T{i}",), i) for i in range(30)])


class Words:
    """A tokenizer of words."""

    eos_token_id = sep_token_id = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in re.findall(r"\w+|\W", text)]}


@pytest.mark.parametrize("task", NEEDLE_TASKS)
def test_the_evidence_moves_and_nothing_else(task: str) -> None:
    spec = NEEDLE_TASKS[task]
    places = []
    for depth in (0.0, 0.25, 0.5, 1.0):
        made = make_prompt(task, 40, random.Random(5), depth, MATERIAL)
        assert len(made.answers) == spec.queries * spec.values
        assert all(answer in made.text for answer in made.answers)
        places.append(made.text.index(made.answers[0]) / len(made.text))
    assert len({made.answers, make_prompt(task, 40, random.Random(5), 0.75, MATERIAL).answers}) == 1
    if spec.values == 1:
        assert places == sorted(places)
        assert places[0] < 0.25
        assert places[-1] > 0.75


def test_questions_about_documents_have_a_depth() -> None:
    numbers = []
    for depth in (0.0, 0.5, 1.0):
        made = make_prompt("qa_1", 11, random.Random(2), depth, MATERIAL)
        town = re.search(r"town (\d+)\?", made.text)
        assert town
        assert made.answers == (f"T{town[1]}",)
        place = re.search(rf"Document (\d+):\nPage {town[1]} ", made.text)
        assert place
        numbers.append(int(place[1]))
    assert numbers == [1, 6, 11]


def test_spread_tasks_have_the_right_answers() -> None:
    variables = make_prompt("vt", 20, random.Random(1))
    assert variables.text.count("VAR") == 2 * 5 - 1
    assert all(f"VAR {name}" in variables.text for name in variables.answers)
    common = make_prompt("cwe", 30, random.Random(1))
    counts = {word: len(re.findall(rf"\. {word}\b", common.text)) for word in common.answers}
    assert set(counts.values()) == {6}
    frequent = make_prompt("fwe", 200, random.Random(1))
    times = [frequent.text.count(word) for word in frequent.answers]
    coded = re.findall(r"\b[a-z]{6}\b", frequent.text.split("words. ")[1].split("\nQuestion")[0])
    assert times == sorted(times, reverse=True)
    assert {w for w in set(coded) if coded.count(w) >= min(times)} == set(frequent.answers)


@pytest.mark.parametrize("task", TASKS)
def test_prompts_fit_and_are_the_same_each_time(task: str) -> None:
    grid = {} if task in SPREAD_TASKS else {"depths": (0.0, 1.0)}
    first = make_prompts(Words(), task, 700, n=2, seed=3, material=MATERIAL, **grid)
    again = make_prompts(Words(), task, 700, n=2, seed=3, material=MATERIAL, **grid)
    assert str(first) == str(again)  # depths are nan where there are none
    assert len(first) == (2 if task in SPREAD_TASKS else 4)
    lengths = [len(tokens) for *_, tokens in first]
    assert max(lengths) <= 700
    if task != "qa_1":
        assert max(lengths) >= 500
    other = make_prompts(Words(), task, 700, n=2, seed=4, material=MATERIAL, **grid)
    assert [p.text for _, _, p, _ in other] != [p.text for _, _, p, _ in first]


def test_the_official_script_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval's copy of NVIDIA's script, with our words, at equal seeds: noise and needle haystacks."""
    words = types.ModuleType("wonderwords")
    kinds = {"nouns": NOUNS, "adjectives": ADJECTIVES, "verbs": ["go"]}
    words.RandomWord = lambda: types.SimpleNamespace(_categories=kinds)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wonderwords", words)
    nltk = pytest.importorskip("nltk", reason="lm-eval's script needs nltk")
    monkeypatch.setattr(nltk.data, "find", lambda *_: True)
    monkeypatch.delitem(sys.modules, "lm_eval.tasks.ruler.prepare_niah", raising=False)
    from lm_eval.tasks.ruler import niah_utils, prepare_niah

    assert sorted(PAIRS) == prepare_niah.WORDS
    for task, hay, kind_k, kind_v, keys, values, queries in (
        ("niah_single_1", "repeat", "words", "numbers", 1, 1, 1),
        ("niah_multikey_2", "needle", "words", "numbers", 1, 1, 1),
        ("niah_multikey_3", "needle", "uuids", "uuids", 1, 1, 1),
    ):
        for seed in range(5):
            random.seed(seed)
            text, answers, query = prepare_niah.generate_input_output(
                25,
                prepare_niah.get_haystack(type_haystack=hay),
                type_haystack=hay,
                num_needle_k=keys,
                type_needle_k=kind_k,
                num_needle_v=values,
                type_needle_v=kind_v,
                template=niah_utils.TEMPLATE,
                num_needle_q=queries,
                random_seed=42,
            )
            own = make_prompt(task, 25, random.Random(seed), None, Material(words=prepare_niah.WORDS))
            assert own.text == text, (task, seed)
            assert list(own.answers) == answers
            assert (
                own.prefix == f"The special magic {kind_v[:-1]} for {query} mentioned in the provided text is"
            )
    monkeypatch.delitem(sys.modules, "lm_eval.tasks.ruler.prepare_niah", raising=False)
    monkeypatch.delitem(sys.modules, "lm_eval.tasks.ruler.niah_utils", raising=False)


@pytest.mark.parametrize(
    ("task", "depth", "says"),
    [
        ("niah", 0.5, "task='niah': choose one of niah_single_1"),
        ("niah_single_1", 1.5, "depth=1.5: give 0"),
        ("vt", 0.5, "it has no depth"),
    ],
)
def test_wrong_values_are_refused(task: str, depth: float, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        make_prompt(task, 10, random.Random(0), depth)


def test_missing_material_is_told() -> None:
    with pytest.raises(DataError, match="essay haystack of 10 sentences: the text has 0"):
        make_prompt("niah_single_2", 10, random.Random(0), 0.5)
    with pytest.raises(DataError, match="qa_1 with 10 documents: 0 documents"):
        make_prompt("qa_1", 10, random.Random(0), 0.5)
    with pytest.raises(DataError, match="no prompt fits into 20 tokens"):
        make_prompts(Words(), "niah_single_1", 20)
    with pytest.raises(ConfigError, match="n=0"):
        make_prompts(Words(), "niah_single_1", 200, n=0)
    assert split_sentences("One.  Two\nlines? Three") == ["One.", "Two lines?", "Three"]
