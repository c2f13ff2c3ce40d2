"""Algorithm 1: sentence after sentence, with lookahead entropy, rollback and an edited second attempt.

Many prompts are decoded side by side, one token a step, each at its own place in its own text. Rolling back does not
crop the cache: the discarded places are masked out for their row, and the last token of the prefix is fed again at
its own position, with the edit on. The keys and values that this edit leaves behind stay for the rest of the answer;
`restore` computes the position anew once the sentence is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from methods.common.checks import check_whole
from methods.common.errors import ConfigError, DataError, NumericalError
from methods.dynasteer.edits import Control, Edit
from methods.dynasteer.gate import EntropyGate
from methods.dynasteer.sampling import GenConfig, TokenTexts, choose, end_tokens, token_entropy, uniforms

Scope = Literal["fork", "sentence", "always"]
FIRST, AGAIN = 0, 1
SAID = 200  # characters that `stop` may look back over


@dataclass(frozen=True)
class Sentence:
    """An accepted sentence.

    Attributes:
        ids: its tokens, the delimiter's included.
        entropy: mean entropy of its tokens in nats.
        lookahead: the same of the first attempt, which decides; equal to `entropy` without a rollback.
        triggered: whether the gate was open.
        discarded: tokens of the first attempt that were thrown away.
    """

    ids: tuple[int, ...]
    entropy: float
    lookahead: float
    triggered: bool
    discarded: int


@dataclass
class Decoded:
    """An answer to one prompt.

    Attributes:
        prompt: its token ids.
        sentences: the accepted ones.
        finished: whether it ended by an end-of-text token or by `stop`; it reached its budget otherwise.
    """

    prompt: tuple[int, ...]
    sentences: list[Sentence] = field(default_factory=list)
    finished: bool = False

    @property
    def ids(self) -> list[int]:
        return [token for sentence in self.sentences for token in sentence.ids]

    @property
    def triggers(self) -> int:
        return sum(sentence.triggered for sentence in self.sentences)

    @property
    def discarded(self) -> int:
        return sum(sentence.discarded for sentence in self.sentences)


@dataclass(frozen=True)
class Policy:
    """When and how an answer is steered.

    Attributes:
        gate: None never looks; the gate of a resample control has no edit.
        edit: what is added to the activations, or None.
        scope: "fork" edits the last token of the prefix once; "sentence" every token of the sentence; "always" every
            token of the answer, without gate and rollback.
        rollback: throw the unsteered sentence away; otherwise it is kept and the next one is steered.
        first, last: numbers of the sentences, from 1, in which the gate may open; `last` is the paper's tau_decay.
        restore: compute the edited position anew once the sentence is accepted.
    """

    gate: EntropyGate | None = None
    edit: Edit | None = None
    scope: Scope = "fork"
    rollback: bool = True
    first: int = 1
    last: int | None = None
    restore: bool = False

    def __post_init__(self) -> None:
        if self.scope not in ("fork", "sentence", "always"):
            raise ConfigError(f"scope={self.scope!r} is not known; give 'fork', 'sentence' or 'always'")
        if self.scope == "always" and self.gate is not None:
            raise ConfigError("scope='always' has no gate; leave the gate out")
        if self.restore and (self.scope != "fork" or not self.rollback):
            raise ConfigError("restore needs scope='fork' and rollback; set restore=False")
        if self.scope == "always" and self.edit is None:
            raise ConfigError("scope='always' without an edit is plain generation; give an edit, or Policy()")
        check_whole("first", self.first, 1)
        if self.last is not None:
            check_whole("tau_decay (last)", self.last, self.first)
        if self.scope == "always" and (self.first > 1 or self.last is not None or not self.rollback):
            raise ConfigError(
                "scope='always' edits every token; leave first, tau_decay (last) and rollback out"
            )

    def opens(self, entropy: float, number: int) -> bool:
        """Whether sentence `number` (from 1) with this lookahead entropy is rolled back."""
        inside = self.first <= number and (self.last is None or number <= self.last)
        return inside and self.gate is not None and self.gate.triggers(entropy)


PLAIN = Policy()


class _Row:
    """One prompt on its way."""

    def __init__(self, prompt: Sequence[int], numbers: np.ndarray, index: int) -> None:
        self.index = index
        self.decoded = Decoded(tuple(prompt))
        self.numbers = numbers
        self.pending = prompt[-1]  # drawn or given, not yet fed
        self.position = len(prompt) - 1  # of the pending token
        self.accepted = 0
        self.attempt = FIRST
        self.steer = False  # the sentence at work is steered
        self.steer_next = False
        self.triggered = False
        self.lookahead = 0.0
        self.discarded = 0
        self.restoring: tuple[int, int, int] | None = None  # token, position, first slot of the sentence
        self.done = False
        self.said = ""  # the end of what was accepted, for `stop`
        self.begin(0)

    def begin(self, slot: int) -> None:
        self.ids: list[int] = []
        self.entropies: list[float] = []
        self.text = ""
        self.start = (self.pending, self.position, slot)


def decode(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    config: GenConfig,
    policy: Policy = PLAIN,
    keys: Sequence[int] | None = None,
    sentences: int | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> list[Decoded]:
    """Answer each prompt.

    Args:
        model, tokenizer: a causal language model in evaluation mode and its tokenizer.
        prompts: token ids, each at least one.
        config: how text is drawn.
        policy: when and how it is steered; nothing by default.
        keys: a number a prompt that names its uniform numbers; its place in `prompts` by default.
        sentences: stop after so many; None writes to the end.
        on_done: called with (answers done, all) after each batch.

    Raises:
        ConfigError: gate and config measure entropy in different ways; a prompt or its key that cannot be used.
        DataError: the model looks back over a window that rolled-back places would shift.
        NumericalError: logits are NaN (an edit that is far too strong, or a damaged model).
    """
    if policy.gate is not None:
        policy.gate.check(config)
    names = range(len(prompts)) if keys is None else keys
    _check_prompts(model, prompts, names, config)
    texts, ends = TokenTexts(tokenizer), end_tokens(model, tokenizer)
    found: list[Decoded] = []
    attached = nullcontext(Control()) if policy.edit is None else policy.edit.attached(model)
    with torch.no_grad(), attached as control:
        for begin in range(0, len(prompts), config.batch_size):
            rows = [
                _Row(prompts[i], uniforms(config.seed, names[i], config.max_new_tokens), i)
                for i in range(begin, min(begin + config.batch_size, len(prompts)))
            ]
            batch = _Batch(model, config, policy, control, texts, ends, sentences, list(rows))
            while batch.rows:
                batch.step()
            found.extend(row.decoded for row in rows)
            if on_done is not None:
                on_done(len(found), len(prompts))
    return found


def _check_prompts(
    model: Any, prompts: Sequence[Sequence[int]], keys: Sequence[int], config: GenConfig
) -> None:
    """Refuse before any work what would fail, or be wrong, in the middle of it."""
    if len(keys) != len(prompts):
        raise ConfigError(f"keys: {len(keys)} for {len(prompts)} prompts; give one a prompt, or none at all")
    for key in keys:
        check_whole("key", int(key) if hasattr(key, "__index__") else key, 0)
    size = int(model.get_input_embeddings().num_embeddings)
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise ConfigError(f"prompt {number} has no token; give at least one (a beginning-of-text token)")
        if not (min(prompt) >= 0 and max(prompt) < size):
            raise ConfigError(
                f"prompt {number} holds token {max(prompt) if min(prompt) >= 0 else min(prompt)}, the model knows 0 to "
                f"{size - 1}; encode the text with the model's own tokenizer"
            )
    longest = max((len(p) for p in prompts), default=0)
    places = getattr(model.config, "max_position_embeddings", None)
    if places and longest + config.max_new_tokens > places:
        raise ConfigError(
            f"max_new_tokens={config.max_new_tokens}: with a prompt of {longest} tokens the model has room for "
            f"{max(0, places - longest)}; give at most that, or a shorter prompt"
        )
    _check_window(model, longest + config.max_new_tokens)


def _check_window(model: Any, length: int) -> None:
    window = getattr(model.config, "sliding_window", None)
    if window and getattr(model.config, "use_sliding_window", True) and window < length:
        raise DataError(
            f"the model attends to the last {window} tokens only, prompt and answer may have {length}; rollback needs "
            "full attention: lower max_new_tokens, or take another model"
        )


class _Batch:
    """Rows that are fed side by side, their shared cache, and which of its places each row may see."""

    def __init__(
        self,
        model: Any,
        config: GenConfig,
        policy: Policy,
        control: Control,
        texts: TokenTexts,
        ends: frozenset[int],
        sentences: int | None,
        rows: list[_Row],
    ) -> None:
        from transformers import DynamicCache

        self.model, self.config, self.policy, self.control = model, config, policy, control
        self.texts, self.ends, self.sentences, self.rows = texts, ends, sentences, rows
        self.delimiter = re.compile(config.delimiter)
        self.stop = re.compile(config.stop) if config.stop else None
        self.cache = DynamicCache(config=model.config)
        self.slots = max(len(row.decoded.prompt) for row in rows) - 1
        self.mask = torch.zeros(len(rows), self.slots + 64, dtype=torch.long)
        for row in rows:
            row.begin(self.slots)
            row.said = texts[row.pending] if self.stop is not None else ""
        if self.slots:
            control.rows = None
            self._read_prompts()

    def _read_prompts(self) -> None:
        """All but the last token of each prompt into the cache; what all prompts begin with is computed once."""
        known = [row.decoded.prompt[:-1] for row in self.rows]
        alike = takewhile(lambda column: len(set(column)) == 1, zip(*known, strict=False))
        shared = sum(1 for _ in alike) if len(known) > 1 else 0
        if shared:
            self._forward(
                torch.tensor([known[0][:shared]]),
                torch.arange(shared)[None],
                torch.ones(1, shared, dtype=torch.long),
            )
            self.cache.batch_repeat_interleave(len(known))
        if self.slots > shared:
            table = torch.zeros(len(known), self.slots - shared, dtype=torch.long)
            positions = torch.zeros_like(table)
            for i, ids in enumerate(known):
                # Padded on the right: a place that sees nothing would put NaN into the cache.
                self.mask[i, : max(len(ids), 1)] = 1
                table[i, : len(ids) - shared] = torch.tensor(ids[shared:], dtype=torch.long)
                positions[i, : len(ids) - shared] = torch.arange(shared, len(ids))
            self._forward(table, positions, self.mask[:, : self.slots])
        for i, ids in enumerate(known):
            self.mask[i] = 0
            self.mask[i, : len(ids)] = 1

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        device = self.model.device
        out = self.model(
            input_ids=ids.to(device),
            position_ids=positions.to(device),
            attention_mask=mask.to(device),
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = out.logits[:, -1]
        return logits

    def step(self) -> None:
        """Feed one token of every row and draw the next."""
        slot = self.slots
        if slot >= self.mask.shape[1]:
            self.mask = torch.cat([self.mask, torch.zeros_like(self.mask)], dim=1)
        tokens, positions, edited = [], [], []
        for i, row in enumerate(self.rows):
            if row.restoring is not None:
                token, position, begun = row.restoring
                # The clean state sees the prefix only; the sentence comes back below.
                self.mask[i, begun:slot] = 0
            else:
                token, position = row.pending, row.position
                if self._is_edited(row):
                    edited.append(i)
            tokens.append(token)
            positions.append(position)
            self.mask[i, slot] = 0 if row.done else 1
        self.control.rows = torch.tensor(edited, device=self.model.device) if edited else None
        logits = self._forward(
            torch.tensor(tokens)[:, None], torch.tensor(positions)[:, None], self.mask[:, : slot + 1]
        )
        self.slots += 1
        self._draw(logits, slot)
        self._drop_finished()

    def _is_edited(self, row: _Row) -> bool:
        if self.policy.edit is None or row.done:
            return False
        if self.policy.scope == "always":
            return True
        return row.steer and (self.policy.scope == "sentence" or not row.ids)

    def _draw(self, logits: Tensor, slot: int) -> None:
        if not bool(torch.isfinite(logits.amax(-1)).all()) or bool(torch.isnan(logits).any()):
            raise NumericalError(
                "logits hold NaN or infinity; weaken the edit (alpha), or use an intact model"
            )
        places = [row.accepted + len(row.ids) for row in self.rows]
        numbers = [
            row.numbers[row.attempt, min(place, self.config.max_new_tokens - 1)]
            for row, place in zip(self.rows, places, strict=True)
        ]
        drawn = choose(
            logits, torch.tensor(numbers, dtype=torch.float64, device=logits.device), self.config
        ).tolist()
        entropies = token_entropy(logits, self.config.entropy, self.config.entropy_k).tolist()
        for i, row in enumerate(self.rows):
            if row.restoring is not None:
                begun = row.restoring[2]
                self.mask[i, begun + 1 : slot] = 1  # the sentence again; its edited first place stays out
                row.restoring = None
            elif not row.done:
                self._take(row, i, drawn[i], entropies[i])

    def _take(self, row: _Row, i: int, token: int, entropy: float) -> None:
        row.ids.append(token)
        row.entropies.append(entropy)
        row.text += self.texts[token]
        row.pending, row.position = token, row.position + 1
        ended = token in self.ends or (
            self.stop is not None and self.stop.search(row.said + row.text) is not None
        )
        full = row.accepted + len(row.ids) >= self.config.max_new_tokens
        if not (
            ended
            or full
            or len(row.ids) >= self.config.max_sentence_tokens
            or self.delimiter.search(row.text)
        ):
            return
        mean = float(np.mean(row.entropies))
        number = len(row.decoded.sentences) + 1
        if row.attempt == FIRST and self.policy.opens(mean, number):
            row.triggered = True
            if self.policy.rollback:
                row.lookahead, row.discarded = mean, len(row.ids)
                row.pending, row.position, begun = row.start
                self.mask[i, begun : self.slots] = 0
                row.attempt, row.steer = AGAIN, True
                row.begin(self.slots)
                return
            row.steer_next = True
        self._accept(row, mean, ended, full)

    def _accept(self, row: _Row, entropy: float, ended: bool, full: bool) -> None:
        lookahead = row.lookahead if row.attempt == AGAIN else entropy
        row.decoded.sentences.append(
            Sentence(tuple(row.ids), entropy, lookahead, row.triggered, row.discarded)
        )
        row.accepted += len(row.ids)
        row.said = (row.said + row.text)[-SAID:]
        row.decoded.finished = ended
        row.done = ended or full or len(row.decoded.sentences) == self.sentences
        if self.policy.restore and row.attempt == AGAIN and self.policy.edit is not None and not row.done:
            row.restoring = row.start
        row.attempt, row.steer, row.steer_next = FIRST, row.steer_next, False
        row.triggered, row.discarded = False, 0
        # A restored position takes one place before the next sentence begins.
        row.begin(self.slots + (row.restoring is not None))

    def _drop_finished(self) -> None:
        active = [i for i, row in enumerate(self.rows) if not row.done]
        if not active:
            self.rows = []
        elif 2 * len(active) <= len(self.rows):
            kept = torch.tensor(active)
            self.cache.batch_select_indices(kept.to(self.model.device))
            self.mask = self.mask[kept]
            self.rows = [self.rows[i] for i in active]
