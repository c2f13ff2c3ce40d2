"""The study's tasks: what is asked, and what counts as right."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from methods.common.errors import DataError
from tasks.study.pruning.items import (
    arithmetic,
    arithmetic_words,
    build_items,
    cloze,
    is_right,
    letters,
    recall,
    squad,
    squad_rows,
)
from tasks.study.pruning.retrieval import recall_at
from tasks.study.pruning.scores import perplexity, prompt_of, score_task
from tests.tiny_models import sentences, tiny_llama

PROSE = [" ".join(f"d{d}w{i}" for i in range(400)) for d in range(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tiny_llama(tmp_path_factory.mktemp("tiny") / "model")
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


@pytest.mark.bundled
def test_items_follow_the_seed_and_every_task_has_them() -> None:
    first, other = (build_items(PROSE, ["calibration"], 20, seed) for seed in (0, 1))
    assert [first[task] for task in ("cloze", "recall", "arithmetic", "arithmetic_words")] == [
        build(20, 0) if build is not cloze else cloze(PROSE, 20, 0)
        for build in (cloze, recall, arithmetic, arithmetic_words)
    ]
    assert all(first[task] != other[task] for task in first if task != "retrieval")
    assert {task: len(items) for task, items in first.items() if task != "retrieval"} == {
        task: 20 for task in first if task != "retrieval"
    }
    with pytest.raises(DataError, match="task cloze: only 0 items; give more held-out text"):
        build_items(["short"], [], 20, 0)


def test_the_clozes_gold_is_what_follows_and_the_others_come_from_elsewhere() -> None:
    for item in cloze(PROSE, 20, 0):
        last, first = item["context"].split()[-1], item["choices"][item["gold"]].split()[0]
        assert last.split("w")[0] == first.split("w")[0]
        assert int(first.split("w")[1]) == int(last.split("w")[1]) + 1
        assert len(set(item["choices"])) == 4
    assert len({item["gold"] for item in cloze(PROSE, 20, 0)}) > 1


def test_sums_and_codes_are_true() -> None:
    for item in arithmetic(243, 0):
        *shots, last = item["prompt"].split("\n")
        assert all(eval(shot.replace("=", "==")) for shot in shots)
        assert item["answers"] == [str(eval(last.removesuffix("=")))]
        assert last not in [shot.split("=")[0] + "=" for shot in shots]
    assert len({item["chat"] for item in arithmetic_words(200, 0)}) == 200
    for item in recall(50, 0):
        assert item["prompt"].count(item["answers"][0]) == 1
        assert len(item["answers"][0]) == 7


@pytest.mark.bundled
def test_questions_avoid_what_compression_saw() -> None:
    passage = squad_rows()[0]["passage"]
    assert all(passage not in item["chat"] for item in squad([passage], 1000, 0, longest=10_000))
    assert any(passage in item["chat"] for item in squad([], 1000, 0, longest=10_000))
    for item in letters(10, 0):
        assert item["cued"] == item["plain"] + "Answer:"
        assert [line[:2] for line in item["plain"].split("\n")[-5:-1]] == ["A.", "B.", "C.", "D."]


@pytest.mark.parametrize(
    ("text", "check", "answers", "right"),
    [
        (" 11\n3 + 4 = 7", "first_number", ["11"], True),
        (" 12, or 11", "first_number", ["11"], False),
        (" 18775", "first_number", ["1877551"], False),
        ('The answer is "9 + 1 = 10."', "last_number", ["10"], True),
        ("Nine plus one is ten. Or 12.", "last_number", ["10"], True),
        ("The answer is 9 + 1 = 11.", "last_number", ["10"], False),
        ("I do not know", "last_number", ["10"], False),
        ("It was the Thames River.<|im_end|>\n", "contains", ["Thames river"], True),
        ("It was\nthe Thames river", "contains", ["Thames river"], False),
        ("something", "contains", ["the"], False),
    ],
)
def test_what_is_right(text: str, check: str, answers: list[str], right: bool) -> None:
    assert is_right(text, {"check": check, "answers": answers}) is right


def test_choices_are_scored_by_log_likelihood_per_character(model: tuple[Any, Any]) -> None:
    network, tokenizer = model
    lines = sentences(12, seed=5)
    items = []
    for i, line in enumerate(lines):
        start, end = line.split(" and ")
        others = [" and " + lines[(i + k) % 12].split(" and ")[1] for k in (1, 2)]
        items.append({"context": start, "choices": [" and " + end, *others], "gold": 0})
    expected = []
    for item in items:
        values = []
        for choice in item["choices"]:
            context = tokenizer(item["context"]).input_ids
            answer = tokenizer(choice, add_special_tokens=False).input_ids
            with torch.no_grad():
                logp = network(torch.tensor([context + answer])).logits[0].log_softmax(-1)
            total = sum(float(logp[len(context) - 1 + j, token]) for j, token in enumerate(answer))
            values.append(total / (len(choice) - 1))
        expected.append(float(values.index(max(values)) == 0))
    assert score_task(network, tokenizer, "cloze", items) == expected


def test_written_answers_are_what_generate_writes(model: tuple[Any, Any]) -> None:
    network, tokenizer = model
    prompts = [line[: 12 + i] for i, line in enumerate(sentences(5, seed=2))]
    items = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        text = network.generate(ids, max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
        items.append(
            {"prompt": prompt, "answers": [tokenizer.decode(text)], "check": "contains", "tokens": 5}
        )
    wrong = {"prompt": prompts[0], "answers": ["zzz"], "check": "contains", "tokens": 5}
    found = score_task(network, tokenizer, "squad", [*items, wrong])
    assert found[-1] == 0
    # An answer without a word counts as none.
    assert found[:-1] == [
        float(any(c.isalnum() for c in item["answers"][0].split("\n")[0])) for item in items
    ]


def test_a_chat_without_a_template_is_a_plain_question(model: tuple[Any, Any]) -> None:
    assert prompt_of(model[1], {"chat": "What?"}) == "What?\nAnswer:"


def test_perplexity_is_the_plain_loop(model: tuple[Any, Any]) -> None:
    network, tokenizer = model
    text = " ".join(sentences(20))
    ids = tokenizer(text, add_special_tokens=False).input_ids
    nats, count = 0.0, 0
    for start in range(0, len(ids) - 31, 32):
        row = torch.tensor([ids[start : start + 32]])
        with torch.no_grad():
            logp = network(row).logits[0, :-1].double().log_softmax(-1)
        nats -= float(logp.gather(-1, row[0, 1:, None]).sum())
        count += 31
    expected = float(torch.tensor(nats / count).exp())
    assert perplexity(network, tokenizer, [text], window=32) == pytest.approx(expected, rel=1e-4)


def test_recall_counts_passages_that_are_nearer() -> None:
    questions = torch.eye(3)
    passages = torch.tensor([[0.9, 0.1, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert recall_at(questions, passages, [0, 2, 3], k=1).tolist() == [0, 1, 1]
    assert recall_at(questions, passages, [0, 2, 3], k=2).tolist() == [1, 1, 1]
