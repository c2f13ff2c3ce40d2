"""Log-likelihood of answer choices under a causal language model.

An item is a context and its continuations. The log-likelihood of a continuation y after context x is
sum_k log p(y_k | x, y_<k), in nats. Tokens are split as EleutherAI's lm-evaluation-harness splits them: context and
continuation are encoded together and cut where the context alone ends, so that a score here is a score there.

Where the architecture allows it, the continuations of a context are packed behind each other
(`methods.common.packed_scoring`). All others take the plain layout: a row a continuation, padded on the left, so
that all end in the same column and the vocabulary projection is computed there only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from methods.common.errors import DataError
from methods.common.open_text import open_tokens
from methods.common.packed_scoring import is_packable, packed_loglikelihoods, unwrapped

Tokenizer = Callable[..., Any]
_LOGIT_CHUNK = 256  # positions whose float32 logits exist at the same time


class Item(NamedTuple):
    """An encoded item.

    Attributes:
        context: token ids.
        choices: token ids of each continuation.
        sizes: bytes of each continuation.
        lengths: characters of each continuation as `shown_length` counts them.
        gold: the right one.
    """

    context: list[int]
    choices: list[list[int]]
    sizes: list[int]
    lengths: list[int]
    gold: int

    @property
    def length(self) -> int:
        """Tokens that the model reads: the last one of a continuation is only predicted."""
        return len(self.context) + sum(len(c) - 1 for c in self.choices)


def shown_length(choice: str) -> int:
    """Characters without the one space that parts an answer from its prompt, as public tasks count; at least 1."""
    return max(1, len(choice.removeprefix(" ")))


def encode_item(
    tokenizer: Tokenizer,
    context: str,
    choices: Sequence[str],
    gold: int,
    *,
    max_length: int,
    gold_only: bool = False,
) -> Item:
    """Encode one item; a context that is too long for `max_length` tokens loses its beginning.

    Raises:
        DataError: `gold` names no choice, or a continuation has no tokens or does not fit.
    """
    if not 0 <= gold < len(choices):
        raise DataError(f"gold={gold} names none of the {len(choices)} choices of the item {context[-40:]!r}")
    if gold_only:
        choices, gold = [choices[gold]], 0
    stripped = context.rstrip()
    moved = context[len(stripped) :]  # a space before a word belongs to the word's token
    prompt: list[int] = open_tokens(tokenizer, stripped) if stripped else []
    encoded = []
    for choice in choices:
        whole = open_tokens(tokenizer, stripped + moved + choice)
        tokens = whole[len(prompt) :]
        if not tokens or not choice:
            raise DataError(
                f"the choice {choice!r} of the item {context[-40:]!r} has no tokens; give it some text"
            )
        encoded.append(tokens)
    if not prompt:
        start = getattr(tokenizer, "bos_token_id", None)
        prompt = [getattr(tokenizer, "eos_token_id", 0) or 0 if start is None else start]
        if encoded and all(tokens[0] == prompt[0] for tokens in encoded):
            encoded = [tokens[1:] for tokens in encoded]  # the tokenizer has already put it there
    room = max_length - max(len(tokens) for tokens in encoded)
    if room < 1:
        raise DataError(
            f"a choice of the item {context[-40:]!r} exceeds max_length={max_length} tokens; raise it"
        )
    sizes, lengths = [len(c.encode()) for c in choices], [shown_length(c) for c in choices]
    return Item(prompt[-room:], encoded, sizes, lengths, gold)


def encode_rows(
    tokenizer: Tokenizer, rows: Iterable[Mapping[str, Any]], *, max_length: int, gold_only: bool = False
) -> list[Item]:
    """Items from rows with `context`, `choices`, `gold`."""
    return [
        encode_item(
            tokenizer,
            row["context"],
            row["choices"],
            int(row["gold"]),
            max_length=max_length,
            gold_only=gold_only,
        )
        for row in rows
    ]


class ChoiceScores(NamedTuple):
    """Log-likelihoods in nats, an inner list an item, in the order of the items."""

    items: list[Item]
    values: list[list[float]]

    @property
    def gold_bits_per_byte(self) -> float:
        """Bits of all right continuations together, divided by their bytes."""
        nats = sum(v[i.gold] for i, v in zip(self.items, self.values, strict=True))
        return -nats / math.log(2) / sum(i.sizes[i.gold] for i in self.items)

    @property
    def accuracy(self) -> float:
        """Share of items whose right continuation has the highest log-likelihood (the first wins a tie)."""
        return self._share([[1] * len(i.choices) for i in self.items])

    @property
    def accuracy_norm(self) -> float:
        """As `accuracy`, of the log-likelihood per character."""
        return self._share([i.lengths for i in self.items])

    @property
    def chance(self) -> float:
        """Expected accuracy of guessing."""
        return sum(1 / len(i.choices) for i in self.items) / len(self.items)

    def _share(self, divisors: Sequence[Sequence[int]]) -> float:
        right = 0
        for item, values, sizes in zip(self.items, self.values, divisors, strict=True):
            best = max(range(len(values)), key=lambda k: values[k] / sizes[k])
            right += best == item.gold
        return right / len(self.items)


class ChoiceScorer:
    """Scores a fixed list of items with any model, again and again (a stop score, a search over merges).

    Args:
        items: what `encode_rows` made; at least one.
        batch_tokens: rows x padded length of a batch, at most (a single longer item makes its own batch).
        packed: continuations behind each other in one row; None asks the model's architecture.
    """

    def __init__(
        self, items: Sequence[Item], *, batch_tokens: int = 2048, packed: bool | None = None
    ) -> None:
        if not items:
            raise DataError("there is no item to score; the split is empty")
        self.items, self.batch_tokens, self.packed = list(items), batch_tokens, packed
        self._requests = [(None, item.context, tokens) for item in self.items for tokens in item.choices]

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> ChoiceScores:
        """Score in the model's own mode; the caller puts it into eval mode."""
        if is_packable(model) if self.packed is None else self.packed:
            longest = max(item.length for item in self.items)  # items were cut when they were encoded
            scores = packed_loglikelihoods(
                model, self._requests, max_length=longest, batch_tokens=self.batch_tokens
            )
            flat = [value for value, _ in scores]
        else:
            flat = self._plain(model)
        walk = iter(flat)
        return ChoiceScores(self.items, [[next(walk) for _ in item.choices] for item in self.items])

    def _plain(self, model: nn.Module) -> list[float]:
        rows = [context + tokens[:-1] for _, context, tokens in self._requests]
        order = sorted(range(len(rows)), key=lambda k: (-len(rows[k]), k))
        flat = [0.0] * len(rows)
        start = 0
        while start < len(order):
            stop = start + max(1, self.batch_tokens // len(rows[order[start]]))
            numbers = order[start:stop]
            answers = [self._requests[k][2] for k in numbers]
            for number, value in zip(
                numbers, _plain_batch(model, [rows[k] for k in numbers], answers), strict=True
            ):
                flat[number] = value
            start = stop
        return flat


def pad_left(rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """`input_ids`, `attention_mask`, `position_ids`, each (rows, longest); padding (id 0, masked) on the left."""
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, longest - len(row) :] = torch.tensor(row)
        mask[number, longest - len(row) :] = 1
    positions = (mask.cumsum(-1) - 1).clamp_(min=0)
    return {
        k: v.to(device)
        for k, v in (("input_ids", ids), ("attention_mask", mask), ("position_ids", positions))
    }


def continuation_logits(model: nn.Module, inputs: Mapping[str, Tensor], kept: int) -> Tensor:
    """Logits (rows, kept, vocabulary) of the last `kept` columns, the vocabulary projection computed there only."""
    find = getattr(unwrapped(model), "get_output_embeddings", None)
    head = find() if find is not None else None
    # The columns are a strided view, for which a frozen projection is copied once a row: make it contiguous.
    handle = (
        None if head is None else head.register_forward_pre_hook(lambda _, given: (given[0].contiguous(),))
    )
    try:
        logits: Tensor = model(**inputs, logits_to_keep=kept, use_cache=False).logits
    finally:
        if handle is not None:
            handle.remove()
    return logits[:, -kept:]


def _plain_batch(
    model: nn.Module, rows: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> list[float]:
    """The summed log-likelihood of each row's answer, in float64; the answer's last token is not in its row."""
    kept = max(len(tokens) for tokens in answers)
    logits = continuation_logits(model, pad_left(rows, _device(model)), kept)
    row = torch.tensor([i for i, tokens in enumerate(answers) for _ in tokens])
    column = torch.tensor([kept - len(tokens) + j for tokens in answers for j in range(len(tokens))])
    target = torch.tensor([token for tokens in answers for token in tokens])
    values = [
        -cross_entropy(
            logits[r.to(logits.device), c.to(logits.device)].float(), t.to(logits.device), reduction="none"
        )
        for r, c, t in zip(
            row.split(_LOGIT_CHUNK), column.split(_LOGIT_CHUNK), target.split(_LOGIT_CHUNK), strict=True
        )
    ]
    sums = torch.zeros(len(answers), dtype=torch.float64)
    return [float(v) for v in sums.index_add_(0, row, torch.cat(values).double().cpu())]


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
