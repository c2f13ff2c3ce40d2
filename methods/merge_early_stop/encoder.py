"""Text tasks on one sentence encoder: the language bench of the study (brief, sections 6 and 8.11).

The head is frozen, as CLIP's text head is in the paper's vision runs: an example's logits are the cosines of
its sentence vector with the *base* model's vectors of its possible answers, over a temperature. Answers are
label phrases of the task ("This film is bad.") or the example's own choices. So every task has a label space
of its own, nothing of a task's head is trained, and all trained parameters can be merged.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.common.errors import ConfigError, DataError
from methods.merge_early_stop.experts import TaskSplits

PARTS = ("train", "stop", "select", "test")
SCALE = 20.0  # inverse temperature of the cosines, the usual one of sentence encoders
EVALUATION_BATCH = 64
LORA_TARGETS = ["query", "key", "value", "dense"]  # every linear layer of a BERT block


class TextExample(NamedTuple):
    """A text, its possible answers and the index of the right one.

    `group`: what must not be split between parts.
    """

    text: str
    answers: tuple[str, ...]
    gold: int
    group: str = ""


@dataclass(frozen=True)
class PartSizes:
    """Examples of each part of a task."""

    train: int = 600
    stop: int = 100
    select: int = 80
    test: int = 250

    def of(self, part: str) -> int:
        return int(getattr(self, part))

    def total(self) -> int:
        return sum(self.of(part) for part in PARTS)


def split_examples(
    name: str, examples: Sequence[TextExample], sizes: PartSizes, seed: int
) -> dict[str, list[TextExample]]:
    """Draw disjoint parts, whole groups at a time; texts that differ only in case and spacing count as one.

    Tasks whose answers are the same for all examples are balanced: each part has equally many of each answer
    (up to one), so that an accuracy says something without the share of the largest class.

    Errors: `DataError` when the examples do not suffice, with both numbers.
    """
    unique: dict[str, TextExample] = {}
    for example in examples:
        unique.setdefault(" ".join(example.text.lower().split()), example)
    groups: dict[str, list[TextExample]] = {}
    for key, example in unique.items():
        groups.setdefault(example.group or key, []).append(example)
    order = sorted(groups)
    random.Random(f"{seed}|{name}").shuffle(order)
    classes = len(examples[0].answers) if len({e.answers for e in unique.values()}) == 1 else 1
    parts: dict[str, list[TextExample]] = {}
    place = 0
    for part in ("test", "select", "stop", "train"):
        chosen: list[TextExample] = []
        room = [-(-sizes.of(part) // classes)] * classes
        while len(chosen) < sizes.of(part) and place < len(order):
            for example in groups[order[place]]:
                slot = example.gold if classes > 1 else 0
                if room[slot] and len(chosen) < sizes.of(part):
                    room[slot] -= 1
                    chosen.append(example)
            place += 1
        if len(chosen) < sizes.of(part):
            raise DataError(
                f"task {name}: its {len(unique)} different texts do not fill parts of {sizes.total()} examples "
                "with equal classes; make the parts smaller"
            )
        parts[part] = chosen
    return {part: parts[part] for part in PARTS}


class TokenStore:
    """Token ids of all texts, and for each the row numbers of its answers in the table of answer vectors.

    Copies of a model share it: it never changes.
    """

    def __init__(self, tokens: list[Tensor], answers: Tensor) -> None:
        self.tokens, self.answers = tokens, answers  # answers [texts, most], -1 where a text has fewer

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def padded(self, index: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask `[n, longest]` of these texts."""
        ids = nn.utils.rnn.pad_sequence([self.tokens[i] for i in index], batch_first=True)
        lengths = torch.tensor([len(self.tokens[i]) for i in index])
        return ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()


class PrototypeEncoder(nn.Module):
    """Numbers of stored texts `[n]` -> logits `[n, most answers]`; -inf where a text has fewer answers.

    Args:
        encoder: a Hugging Face encoder; `last_hidden_state` is averaged over the tokens and normalised.
        store: the texts. vectors: the base's vectors of the answers `[answers, hidden]`, frozen.
        dtype: type of the matrix products (autocast); weights and everything after the encoder stay float32.
    """

    def __init__(
        self, encoder: nn.Module, store: TokenStore, vectors: Tensor, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.encoder, self.store, self.dtype = encoder, store, dtype
        self.register_buffer("vectors", vectors, persistent=False)
        self.vectors: Tensor

    def vectors_of(self, index: Sequence[int]) -> Tensor:
        """Sentence vectors `[n, hidden]` of stored texts; those of like length are encoded together."""
        if self.training or len(index) <= EVALUATION_BATCH:
            return mean_vector(self.encoder, *self.store.padded(index), self.dtype)
        order = sorted(range(len(index)), key=lambda i: len(self.store.tokens[index[i]]))
        parts = [order[i : i + EVALUATION_BATCH] for i in range(0, len(order), EVALUATION_BATCH)]
        found = torch.cat([self.vectors_of([index[i] for i in part]) for part in parts])
        vectors = torch.empty_like(found)
        vectors[torch.tensor(order)] = found
        return vectors

    def forward(self, index: Tensor) -> Tensor:
        rows = self.store.answers[index]
        vectors = self.vectors_of(index.tolist())
        logits = SCALE * torch.einsum("nd,ncd->nc", vectors, self.vectors[rows.clamp_min(0)])
        return logits.masked_fill(rows < 0, float("-inf"))


def mean_vector(encoder: nn.Module, ids: Tensor, mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Sentence vectors `[n, hidden]`: the mean of the last hidden states over the tokens, of length 1."""
    with torch.autocast(ids.device.type, dtype, enabled=dtype != torch.float32):
        hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    weight = mask[..., None].float()
    return F.normalize((hidden.float() * weight).sum(1) / weight.sum(1), dim=1)


@dataclass(frozen=True)
class EncoderBench:
    """Tasks as numbers of texts in `base.store` with labels, ready for `train_experts` and `length_sweep`."""

    base: PrototypeEncoder
    tasks: dict[str, TaskSplits]


def make_encoder_bench(
    folder: str | Path,
    tasks: Mapping[str, Mapping[str, Sequence[TextExample]]],
    *,
    max_tokens: int = 32,
    dtype: torch.dtype = torch.float32,
    train_embeddings: bool = False,
) -> EncoderBench:
    """The base model with its frozen answers, and the tasks' parts.

    Args:
        folder: a Hugging Face encoder with its tokenizer.
        tasks: for each task its parts `train`, `stop`, `select`, `test`, as `split_examples` makes them.
        max_tokens: longer texts are cut.
        train_embeddings: whether full fine-tuning also changes the embedding tables. They are half of a small
            encoder, and a few hundred texts reach a few per cent of their rows.

    Errors: `ConfigError` for fewer than two tasks or tokens; `DataError` for a text in two parts of a task.
    """
    from transformers import AutoModel, AutoTokenizer

    if len(tasks) < 2 or max_tokens < 4:
        raise ConfigError(
            f"{len(tasks)} tasks and max_tokens={max_tokens}: need at least 2 tasks and 4 tokens"
        )
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    encoder = AutoModel.from_pretrained(str(folder), dtype=torch.float32)
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # not used: it would be a trainable part that no loss reaches
    examples: list[TextExample] = []
    splits: dict[str, TaskSplits] = {}
    for name, parts in tasks.items():
        seen: set[str] = set()
        made = {}
        for part in PARTS:
            texts = {example.text for example in parts[part]}
            if seen & texts:
                raise DataError(f"task {name}: its {part} part shares a text with another part; split again")
            seen |= texts
            first = len(examples)
            examples += parts[part]
            labels = torch.tensor([example.gold for example in parts[part]])
            made[part] = torch.arange(first, len(examples)), labels
        splits[name] = TaskSplits(**made)

    def tokens(texts: Sequence[str]) -> list[Tensor]:
        found = tokenizer(list(texts), truncation=True, max_length=max_tokens)["input_ids"]
        return [torch.tensor(ids) for ids in found]

    answers = list(dict.fromkeys(answer for example in examples for answer in example.answers))
    row = {answer: i for i, answer in enumerate(answers)}
    most = max(len(example.answers) for example in examples)
    rows = torch.full((len(examples), most), -1)
    for i, example in enumerate(examples):
        rows[i, : len(example.answers)] = torch.tensor([row[answer] for answer in example.answers])
    encoder.eval()
    phrases = TokenStore(tokens(answers), torch.zeros(len(answers), 0, dtype=torch.long))
    with torch.no_grad():
        vectors = (
            PrototypeEncoder(encoder, phrases, torch.zeros(0), dtype).eval().vectors_of(range(len(answers)))
        )
    if not train_embeddings:
        encoder.get_input_embeddings().requires_grad_(False)
        getattr(encoder, "embeddings", encoder.get_input_embeddings()).requires_grad_(False)
    store = TokenStore(tokens([example.text for example in examples]), rows)
    return EncoderBench(PrototypeEncoder(encoder, store, vectors, dtype), splits)
