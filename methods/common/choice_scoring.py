"""Log-likelihood of answer choices under a causal language model.

An item is a context and its continuations. The log-likelihood of a continuation y after context x is
sum_k log p(y_k | x, y_<k), in nats. Tokens are split as EleutherAI's lm-evaluation-harness splits them: context and
continuation are encoded together and cut where the context alone ends, so that a score here is a score there.

Batches are sorted by length and padded on the left, so that all continuations end in the same column and the
vocabulary projection is computed there only. Several continuations of one context share it: they stand behind each
other in one row, and a block mask keeps them from seeing each other. That layout is used only where a comparison
with the plain layout agrees (models with sliding windows or without attention masks take the plain one).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from methods.common.errors import DataError

Tokenizer = Callable[..., Any]
_LOGIT_CHUNK = 256  # positions whose float32 logits exist at the same time


class Item(NamedTuple):
    """An encoded item: token ids of the context and of each continuation, bytes of each continuation, the right one."""

    context: list[int]
    choices: list[list[int]]
    sizes: list[int]
    gold: int

    @property
    def length(self) -> int:
        """Tokens that the model reads: the last one of a continuation is only predicted."""
        return len(self.context) + sum(len(c) - 1 for c in self.choices)


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
    prompt: list[int] = list(tokenizer(stripped)["input_ids"]) if stripped else []
    encoded = []
    for choice in choices:
        whole = list(tokenizer(stripped + moved + choice)["input_ids"])
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
    return Item(prompt[-room:], encoded, [len(c.encode()) for c in choices], gold)


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
        """As `accuracy`, of the log-likelihood per byte."""
        return self._share([i.sizes for i in self.items])

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
        packed: continuations behind each other in one row; None decides by a comparison at the first call.
    """

    def __init__(
        self, items: Sequence[Item], *, batch_tokens: int = 2048, packed: bool | None = None
    ) -> None:
        if not items:
            raise DataError("there is no item to score; the split is empty")
        self.items, self.batch_tokens = list(items), batch_tokens
        self.packed = packed if any(len(i.choices) > 1 for i in items) else False

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> ChoiceScores:
        """Score in the model's own mode; the caller puts it into eval mode."""
        if self.packed is None:
            self.packed = packing_agrees(model, self.items)
        if self.packed:
            values: list[list[float]] = [[] for _ in self.items]
            for numbers, batch in _batches(self.items, self.batch_tokens):
                for number, found in zip(numbers, _packed_batch(model, batch), strict=True):
                    values[number] = found
            return ChoiceScores(self.items, values)
        singles = [
            Item(item.context, [tokens], [size], 0)
            for item in self.items
            for tokens, size in zip(item.choices, item.sizes, strict=True)
        ]
        flat = [0.0] * len(singles)
        for numbers, batch in _batches(singles, self.batch_tokens):
            for number, value in zip(numbers, _plain_batch(model, batch), strict=True):
                flat[number] = value
        walk = iter(flat)
        return ChoiceScores(self.items, [[next(walk) for _ in item.choices] for item in self.items])


@torch.no_grad()
def packing_agrees(model: nn.Module, items: Sequence[Item]) -> bool:
    """Whether rows with several continuations give this model's plain log-likelihoods."""
    config = getattr(model, "config", None)
    kinds = getattr(config, "layer_types", None) or []
    if getattr(config, "_attn_implementation", "") not in ("sdpa", "eager") or set(kinds) - {
        "full_attention"
    }:
        return False
    if not kinds and getattr(config, "sliding_window", None):
        return False
    several = sorted((i for i in items if len(i.choices) > 1), key=lambda i: i.length)[:2]
    try:
        together = [v for values in _packed_batch(model, several) for v in values]
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    apart = [
        value
        for item in several
        for tokens, size in zip(item.choices, item.sizes, strict=True)
        for value in _plain_batch(model, [Item(item.context, [tokens], [size], 0)])
    ]
    # bfloat16 keeps 8 bits; a continuation that sees another one is off by whole nats.
    tolerance = 1e-3 if _dtype(model) == torch.float32 else 3e-2
    return all(abs(a - b) <= tolerance * max(1.0, abs(b)) for a, b in zip(together, apart, strict=True))


def _batches(items: Sequence[Item], batch_tokens: int) -> Iterable[tuple[list[int], list[Item]]]:
    order = sorted(range(len(items)), key=lambda k: (-items[k].length, k))
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // items[order[start]].length)
        numbers = order[start : start + rows]
        yield numbers, [items[k] for k in numbers]
        start += rows


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
    head = _output_layer(model)
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


def _output_layer(model: nn.Module) -> nn.Module | None:
    while not hasattr(model, "get_output_embeddings") and hasattr(model, "module"):
        model = model.module  # type: ignore[assignment]
    find = getattr(model, "get_output_embeddings", None)
    found = find() if find is not None else None
    return found if isinstance(found, nn.Module) else None


def _plain_batch(model: nn.Module, batch: Sequence[Item]) -> list[float]:
    device = _device(model)
    inputs = pad_left([item.context + item.choices[0][:-1] for item in batch], device)
    kept = max(len(item.choices[0]) for item in batch)
    logits = continuation_logits(model, inputs, kept)
    owner: list[int] = []
    column: list[int] = []
    target: list[int] = []
    for row, item in enumerate(batch):
        tokens = item.choices[0]
        owner += [row] * len(tokens)
        column += range(kept - len(tokens), kept)
        target += tokens
    return _sums(logits, owner, column, target, owner, len(batch))


def _packed_batch(model: nn.Module, batch: Sequence[Item]) -> list[list[float]]:
    device, dtype = _device(model), _dtype(model)
    inputs = pad_left([item.context + [t for c in item.choices for t in c[:-1]] for item in batch], device)
    longest = inputs["input_ids"].shape[1]
    kept = max(item.length - len(item.context) for item in batch) + 1
    seen = torch.zeros(len(batch), 1, longest, longest, dtype=torch.bool)
    positions = torch.zeros(len(batch), longest, dtype=torch.long)
    owner: list[int] = []
    column: list[int] = []
    target: list[int] = []
    segment: list[int] = []
    segments = 0
    for row, item in enumerate(batch):
        begin = longest - item.length
        end = begin + len(item.context)
        seen[row, 0, begin:end, begin:end] = torch.ones(end - begin, end - begin, dtype=torch.bool).tril()
        positions[row, begin:end] = torch.arange(end - begin)
        place = end
        for tokens in item.choices:
            size = len(tokens) - 1  # what is read of it
            seen[row, 0, place : place + size, begin:end] = True
            seen[row, 0, place : place + size, place : place + size] = torch.ones(
                size, size, dtype=torch.bool
            ).tril()
            positions[row, place : place + size] = torch.arange(end - begin, end - begin + size)
            # the first token is predicted at the context's end, each other one at its predecessor
            spots = [end - 1, *range(place, place + size)]
            owner += [row] * len(tokens)
            column += [spot - (longest - kept) for spot in spots]
            target += tokens
            segment += [segments] * len(tokens)
            segments += 1
            place += size
    inputs["position_ids"] = positions.to(device)
    seen |= torch.eye(longest, dtype=torch.bool)  # padding sees itself: a row without any weight would be NaN
    if getattr(getattr(model, "config", None), "_attn_implementation", "") == "sdpa":
        inputs["attention_mask"] = seen.to(device)
    else:
        bias = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)
        inputs["attention_mask"] = bias.to(device)
    logits = continuation_logits(model, inputs, kept)
    walk = iter(_sums(logits, owner, column, target, segment, segments))
    return [[next(walk) for _ in item.choices] for item in batch]


def _sums(
    logits: Tensor, row: list[int], column: list[int], target: list[int], segment: list[int], segments: int
) -> list[float]:
    """Log-likelihood of each target at its position, summed by segment (in float64)."""
    places = torch.tensor(row) * logits.shape[1] + torch.tensor(column)
    distinct, inverse = torch.unique(
        places, return_inverse=True
    )  # choices share their context's last position
    flat = logits.reshape(-1, logits.shape[-1])
    totals = [flat[part.to(flat.device)].float().logsumexp(-1) for part in distinct.split(_LOGIT_CHUNK)]
    chosen = flat[places.to(flat.device), torch.tensor(target).to(flat.device)].float()
    values = (chosen.cpu() - torch.cat(totals).cpu()[inverse]).double()
    sums = torch.zeros(segments, dtype=torch.float64).index_add_(0, torch.tensor(segment), values)
    return [float(v) for v in sums]


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _dtype(model: nn.Module) -> torch.dtype:
    """The type that attention is computed in: that of the first floating-point weight of the base model."""
    return next(p.dtype for p in model.parameters() if p.is_floating_point())
