"""What is trained: tokens, their order, and the loss over the answer only."""

from pathlib import Path
from typing import Any

import pytest
import torch

from methods.common.errors import DataError
from tasks.load_model import load_causal_lm
from tasks.train.examples import (
    MEGA_BATCH,
    OrderedExamples,
    answer_loss,
    batch_order,
    collate,
    training_examples,
)
from tasks.train.loading import load_tokenizer

ROWS = [
    {"context": "the apple is", "choices": [" green", " red and black"], "gold": 1},
    {"context": "the night and the long dark coal is", "choices": [" black"], "gold": 0},
]


@pytest.fixture(scope="module")
def tokenizer(base: Path) -> Any:
    return load_tokenizer(base)


def test_the_right_answer_follows_its_prompt(tokenizer: Any) -> None:
    found = training_examples(tokenizer, ROWS, max_length=64, learn_end="never")
    assert tokenizer.decode(found[0].tokens) == "the apple is red and black"
    assert tokenizer.decode(found[0].tokens[-found[0].answer :]) == " red and black"


@pytest.mark.parametrize(
    ("rule", "ends"), [("auto", [False, True]), ("always", [True, True]), ("never", [False] * 2)]
)
def test_the_end_is_learnt_for_free_text(tokenizer: Any, rule: str, ends: list[bool]) -> None:
    found = training_examples(tokenizer, ROWS, max_length=64, learn_end=rule)
    assert [e.tokens[-1] == tokenizer.eos_token_id for e in found] == ends


def test_an_end_that_does_not_exist(tokenizer: Any) -> None:
    class Endless:
        eos_token_id = None

    with pytest.raises(DataError, match="learn_end"):
        training_examples(Endless(), ROWS, max_length=64, learn_end="always")


def test_every_epoch_has_every_example_once() -> None:
    lengths = [(7 * k) % 50 + 1 for k in range(100)]
    order = batch_order(lengths, batch_size=10, steps=25, seed=0)
    assert len(order) == 250
    assert sorted(order[:100]) == sorted(order[100:200]) == list(range(100))
    assert order[:100] != order[100:200]
    assert order == batch_order(lengths, 10, 25, seed=0)
    assert order != batch_order(lengths, 10, 25, seed=1)


def test_batches_have_examples_of_like_length() -> None:
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(10, 200, (8 * MEGA_BATCH,), generator=draw).tolist()
    order = batch_order(lengths, batch_size=8, steps=MEGA_BATCH, seed=0)
    padded = sum(8 * max(lengths[k] for k in order[i : i + 8]) for i in range(0, len(order), 8))
    assert padded < 1.15 * sum(lengths)
    firsts = [max(lengths[k] for k in order[i : i + 8]) for i in range(0, len(order), 8)]
    assert firsts != sorted(firsts)


def test_fewer_examples_than_a_batch() -> None:
    assert sorted(batch_order([3, 1, 2], batch_size=8, steps=1, seed=0)[:3]) == [0, 1, 2]


def test_the_loss_is_that_of_transformers_over_the_answers(base: Path, tokenizer: Any) -> None:
    model = load_causal_lm(base, torch.float32)
    examples = training_examples(tokenizer, ROWS, max_length=64, learn_end="auto")
    loss = answer_loss(model, collate(examples))
    total = count = 0.0
    for example in examples:
        labels = torch.full((len(example.tokens),), -100)
        labels[-example.answer :] = torch.tensor(example.tokens[-example.answer :])
        one = model(torch.tensor([example.tokens]), labels=labels[None]).loss
        total += float(one) * example.answer
        count += example.answer
    assert float(loss) == pytest.approx(total / count, rel=1e-5)
    assert float(answer_loss(model, collate(examples), tokens=2 * int(count))) == pytest.approx(
        total / count / 2, rel=1e-5
    )


def test_the_data_set_is_read_from_front_to_back(tokenizer: Any) -> None:
    examples = training_examples(tokenizer, ROWS, max_length=64, learn_end="never")
    data = OrderedExamples(examples, [1, 0, 1])
    assert [data[k] for k in range(len(data))] == [examples[1], examples[0], examples[1]]
