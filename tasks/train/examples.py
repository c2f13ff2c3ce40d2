"""Training examples: token rows, their order and their batches; the loss over the answer's tokens."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from methods.common.choice_scoring import continuation_logits, encode_item, pad_left
from methods.common.errors import DataError

MEGA_BATCH = 16  # batches among which examples of like length meet


class Example(NamedTuple):
    """Token ids of prompt and answer together, and how many of them, at the end, are the answer's."""

    tokens: list[int]
    answer: int


def training_examples(
    tokenizer: Any, rows: Sequence[Mapping[str, Any]], *, max_length: int, learn_end: str
) -> list[Example]:
    """The right answer of each row after its prompt; a prompt that is too long loses its beginning.

    Raises:
        DataError: an answer without tokens or longer than `max_length`, or no end-of-text token to learn.
    """
    end = getattr(tokenizer, "eos_token_id", None)
    if learn_end == "always" and end is None:
        raise DataError(
            "learn_end='always': the tokenizer has no end-of-text token; set learn_end to 'never'"
        )
    found = []
    for row in rows:
        closes = end is not None and (
            learn_end == "always" or (learn_end == "auto" and len(row["choices"]) == 1)
        )
        item = encode_item(
            tokenizer,
            row["context"],
            row["choices"],
            int(row["gold"]),
            max_length=max_length - closes,
            gold_only=True,
        )
        answer = item.choices[0] + [end] * closes
        found.append(Example(item.context + answer, len(answer)))
    return found


def batch_order(lengths: Sequence[int], batch_size: int, steps: int, seed: int) -> list[int]:
    """Positions of the examples of all `steps` batches, one behind the other.

    Each epoch is shuffled; within `MEGA_BATCH` batches examples of like length stand together (little padding),
    and the batches are shuffled again, so that their order says nothing about length.
    """
    draw = random.Random(seed)
    order: list[int] = []
    while len(order) < steps * batch_size:
        epoch = list(range(len(lengths)))
        draw.shuffle(epoch)
        for start in range(0, len(epoch), MEGA_BATCH * batch_size):
            mega = sorted(epoch[start : start + MEGA_BATCH * batch_size], key=lambda k: (lengths[k], k))
            batches = [mega[i : i + batch_size] for i in range(0, len(mega), batch_size)]
            draw.shuffle(batches)
            order += [k for batch in batches for k in batch]
    return order[: steps * batch_size]


class OrderedExamples(Dataset[Example]):
    """The examples in the order in which they are trained, to be read from front to back."""

    def __init__(self, examples: Sequence[Example], order: Sequence[int]) -> None:
        self.examples, self.order = examples, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Example:
        return self.examples[self.order[index]]


def collate(examples: Sequence[Example]) -> dict[str, Tensor]:
    """Inputs padded on the left, and `labels` (rows, 1 + longest answer): what the last columns predict, else -100.

    The last token is only predicted, never read. The first column of the labels is empty: the Trainer counts the
    tokens of a step as if labels stood under their own inputs, which leaves the first column out.
    """
    batch = pad_left([e.tokens[:-1] for e in examples])
    kept = max(e.answer for e in examples)
    labels = torch.full((len(examples), 1 + kept), -100)
    for row, example in enumerate(examples):
        labels[row, 1 + kept - example.answer :] = torch.tensor(example.tokens[-example.answer :])
    return {**batch, "labels": labels}


def answer_loss(model: nn.Module, batch: Mapping[str, Tensor], tokens: Tensor | int | None = None) -> Tensor:
    """Cross-entropy in nats over the answers' tokens: the mean, or the sum divided by `tokens`."""
    labels = batch["labels"][:, 1:]
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = continuation_logits(model, inputs, labels.shape[1])
    wanted = labels != -100
    total = cross_entropy(logits[wanted].float(), labels[wanted], reduction="sum")
    return total / (wanted.sum() if tokens is None else tokens)
