"""Writing token by token with a cache, several prompts at once, and what the model computed on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError, DataError
from methods.common.reading_limit import longest_input
from methods.common.sublayers import output_head


def pad_left(rows: Sequence[Sequence[int]], device: torch.device | str) -> dict[str, Tensor]:
    """`input_ids`, `attention_mask`, `position_ids`, each [rows, longest]; padding (id 0, masked) on the left."""
    if not rows or not all(len(row) for row in rows):
        raise DataError("a prompt has no tokens; give at least one token each")
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, longest - len(row) :] = torch.tensor(row)
        mask[number, longest - len(row) :] = 1
    positions = (mask.cumsum(-1) - 1).clamp_(min=0)
    named = (("input_ids", ids), ("attention_mask", mask), ("position_ids", positions))
    return {name: value.to(device) for name, value in named}


def readable(model: nn.Module, rows: Sequence[Sequence[int]], more: int = 0) -> list[list[int]]:
    """The rows; of those too long for the model, the last tokens, so that `more` tokens can follow.

    Raises:
        ConfigError: no room for a prompt before so many tokens.
    """
    config: Any = model.config
    limit = longest_input(config.to_dict())
    if limit is None:
        return [list(row) for row in rows]
    if more >= limit:
        raise ConfigError(f"{more} tokens to write: the model reads at most {limit} in all; give fewer")
    return [list(row[-(limit - more) :]) for row in rows]


class Writer:
    """One model that reads a batch of prompts and then a token a row and step.

    Args:
        model: a causal language model.
        rows: prompts as token ids.
    """

    def __init__(self, model: nn.Module, rows: Sequence[Sequence[int]]) -> None:
        self.model: Any = model
        self._inputs = pad_left(rows, next(model.parameters()).device)
        self._cache: Any = None

    @torch.no_grad()
    def step(self, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The states before the head [rows, width] and the logits [rows, vocabulary] at the last position.

        Args:
            tokens: [rows] the next token of each; None at the first call, which reads the prompts.
        """
        inputs = self._inputs
        if tokens is not None:
            mask = torch.cat([inputs["attention_mask"], torch.ones_like(tokens)[:, None]], dim=1)
            positions = inputs["position_ids"][:, -1:] + 1
            inputs = {"input_ids": tokens[:, None], "attention_mask": mask, "position_ids": positions}
        with head_input(self.model) as seen:
            out = self.model(**inputs, cache=self._cache, use_cache=True, logits_to_keep=1)
        self._inputs, self._cache = inputs, out.cache
        return seen[-1][:, -1], out.logits[:, -1]

    def keep(self, rows: Tensor) -> None:
        """Go on with some rows only."""
        self._inputs = {name: value[rows] for name, value in self._inputs.items()}
        self._cache.batch_select_indices(rows)


@contextmanager
def head_input(model: nn.Module) -> Iterator[list[Tensor]]:
    """What enters the output head, after the last norm."""
    seen: list[Tensor] = []
    handle = output_head(model).register_forward_pre_hook(lambda _m, args: seen.append(args[0].detach()))
    try:
        yield seen
    finally:
        handle.remove()


def choose(logits: Tensor, temperature: float = 0.0, uniform: Tensor | None = None) -> Tensor:
    """The next token [rows]: the most probable, or sampled at a temperature.

    Args:
        logits: [rows, vocabulary].
        temperature: 0 takes the most probable token.
        uniform: [rows] numbers in [0, 1): the token at which the cumulated probability passes them. Two models
            with equal probabilities so draw the same token.
    """
    if temperature == 0 or uniform is None:
        return logits.argmax(-1)
    cumulated = (logits.double() / temperature).softmax(-1).cumsum(-1)
    return (cumulated < uniform[:, None].to(cumulated)).sum(-1).clamp_(max=logits.shape[-1] - 1)


def write(
    model: nn.Module,
    rows: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop: Callable[[list[int]], bool] | None = None,
    batch_size: int = 32,
) -> list[list[int]]:
    """Greedy continuations.

    Args:
        model: a causal language model.
        rows: prompts as token ids; one that is too long loses its start.
        max_new_tokens: at most so many for each.
        stop: whether a continuation is finished, given all its tokens; the last one is kept.
        batch_size: prompts at a time; those of like length share a batch.
    """
    rows = readable(model, rows, max_new_tokens)
    results: list[list[int]] = [[] for _ in rows]
    order = sorted(range(len(rows)), key=lambda i: (-len(rows[i]), i))
    for start in range(0, len(order), batch_size):
        alive = order[start : start + batch_size]
        writer = Writer(model, [rows[i] for i in alive])
        tokens: Tensor | None = None
        for _ in range(max_new_tokens):
            _, logits = writer.step(tokens)
            tokens = choose(logits)
            for i, token in zip(alive, tokens.tolist(), strict=True):
                results[i].append(token)
            going = [n for n, i in enumerate(alive) if stop is None or not stop(results[i])]
            if not going:
                break
            if len(going) < len(alive):
                index = torch.tensor(going, device=tokens.device)
                writer.keep(index)
                alive, tokens = [alive[n] for n in going], tokens[index]
    return results
