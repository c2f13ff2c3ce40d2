"""Torch language models as predictors: with a key-value cache, or by computing the whole window at each step."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError
from methods.pmatic.predictor import Predictor, digest16, next_window

WINDOW = 1024
BLOCK = 128


class _Torch(Predictor):
    """What both kinds of models share: windows, number formats, fingerprints.

    The context of a token is the start token and all tokens of its text before it, up to `window` positions; there
    the context starts anew with the last `overlap` tokens.
    """

    def __init__(
        self,
        model: nn.Module,
        vocabulary: int,
        start_token: int,
        window: int,
        overlap: int | None,
        block: int,
        autocast: torch.dtype | None,
        name: str,
    ) -> None:
        kept = window // 2 if overlap is None else overlap
        if window < 2 or not 0 <= kept < window - 1:
            raise ConfigError(
                f"window = {window}, overlap = {kept}: the overlap must leave room for new tokens"
            )
        if block < 1:
            raise ConfigError(f"block = {block}: give at least 1")
        if not 0 <= start_token < vocabulary:
            raise ConfigError(f"start token {start_token} is outside 0 to {vocabulary - 1}")
        self.model = model.eval()
        self.vocabulary, self.start_token = vocabulary, start_token
        self.window, self.overlap, self.block, self.autocast, self.name = window, kept, block, autocast, name

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _format(self) -> AbstractContextManager[Any]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.autocast)

    def _ids(self, tokens: np.ndarray) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(tokens), dtype=torch.long, device=self.device)

    def _begin(self, rows: int, kept: np.ndarray) -> np.ndarray:
        """Start token and kept tokens: (rows, 1 + kept)."""
        return np.concatenate([np.full((rows, 1), self.start_token), kept], axis=1)

    def windows(self, tokens: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        """The inputs that together predict each token of one text: (inputs, how many of the last ones count)."""
        count = len(tokens)
        at = 0
        while at < count:
            kept = next_window(at, self.window, self.overlap)
            new = min(self.window - kept, count - at)
            yield self._begin(1, tokens[None, at - kept : at + new - 1])[0], new
            at += new

    @cached_property
    def fingerprint(self) -> bytes:
        """Over names, shapes and weights rounded to bfloat16: the same in every number format."""
        parts = [f"{self.window}/{self.overlap}/{self.start_token}".encode()]
        for name, value in sorted(self.model.named_parameters()):
            data = value.detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy()
            parts.append(f"{name}{tuple(value.shape)}".encode())
            parts.append(data.tobytes())
        return digest16(*parts)


class HFCausalLM(_Torch):
    """A causal language model of transformers.

    Args:
        model: with `logits` and `past_key_values` in its output.
        tokenizer: gives the start token, and the fingerprint of what tokens stand for.
        window: positions; None takes the model's own, at most 1024.
        overlap: tokens that stay when the window is full; None: half of it.
        block: tokens of one cached forward pass of `score`; at least `window` is one parallel pass.
        autocast: number format of the computation, e.g. torch.bfloat16; None: that of the weights.
        start_token: None: the tokenizer's or the model's begin-of-text token, else its end-of-text token, else 0.

    Raises:
        ConfigError: a window that is longer than the model's, an overlap that leaves no room.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        window: int | None = None,
        overlap: int | None = None,
        block: int = BLOCK,
        autocast: torch.dtype | None = None,
        start_token: int | None = None,
        name: str = "",
    ) -> None:
        config = model.config
        longest = getattr(config, "max_position_embeddings", None) or WINDOW
        if window is not None and window > longest:
            raise ConfigError(f"window = {window}: the model has {longest} positions")
        chosen = start_token
        for owner in (tokenizer, config):
            for field in ("bos_token_id", "eos_token_id"):
                value = getattr(owner, field, None)
                if chosen is None and isinstance(value, int):
                    chosen = value
        super().__init__(
            model,
            int(config.vocab_size),
            chosen or 0,
            min(WINDOW, longest) if window is None else window,
            overlap,
            block,
            autocast,
            name or str(getattr(config, "_name_or_path", "")).rpartition("/")[2] or type(model).__name__,
        )
        self.tokenizer = tokenizer
        # transformers renames the argument; models of one's own have the older name.
        named = inspect.signature(model.forward).parameters
        self._cache = "cache" if "cache" in named else "past_key_values"

    @torch.inference_mode()
    def _forward(self, state: dict[str, Any], tokens: np.ndarray, keep: int) -> Tensor:
        """Feed tokens (rows, n) and keep the logits of the last `keep` positions: (rows, keep, V)."""
        with self._format():
            out = self.model(
                input_ids=self._ids(tokens),
                use_cache=True,
                logits_to_keep=keep,
                **{self._cache: state.get("cache")},
            )
        state["cache"] = out[self._cache]
        found: Tensor = out.logits[:, -keep:]
        return found

    def start(self, rows: int = 1) -> dict[str, Any]:
        state: dict[str, Any] = {"rows": rows, "tokens": np.empty((rows, 0), dtype=np.int64)}
        state["logits"] = self._forward(state, self._begin(rows, state["tokens"]), 1)[:, -1]
        return state

    def logits(self, state: dict[str, Any]) -> np.ndarray:
        return as_float64(state["logits"])

    def push(self, state: dict[str, Any], tokens: np.ndarray) -> None:
        row = np.asarray(tokens, dtype=np.int64)[:, None]
        # The context that the next token has, and how many tokens the text has had so far.
        state["tokens"] = np.concatenate([state["tokens"], row], axis=1)[:, -self.window :]
        state["count"] = state.get("count", 0) + 1
        kept = next_window(state["count"], self.window, self.overlap)
        fresh = state["count"] >= self.window and kept == self.overlap
        if fresh:
            state.pop("cache")
            start = state["tokens"].shape[1] - kept
            row = self._begin(state["rows"], state["tokens"][:, start:])
        state["logits"] = self._forward(state, row, 1)[:, -1]

    def score(self, tokens: np.ndarray) -> Iterator[np.ndarray]:
        for inputs, new in self.windows(np.asarray(tokens, dtype=np.int64)):
            state: dict[str, Any] = {}
            skipped = len(inputs) - new
            for at in range(0, len(inputs), self.block):
                part = inputs[None, at : at + self.block]
                logits = self._forward(state, part, part.shape[1])[0]
                counted = logits[max(0, skipped - at) :]
                if len(counted):
                    yield as_float64(counted)

    @cached_property
    def tokenizer_fingerprint(self) -> bytes:
        return bytes(16) if self.tokenizer is None else tokenizer_digest(self.tokenizer)


class BytePredictor(_Torch):
    """Any module that maps (rows, n) ids to (rows, n, V) logits, without a cache: each step computes the window anew.

    Args:
        model: causal; its output may be a tensor or have `logits`.
        vocabulary: tokens that it knows; 256 for bytes.
        window, overlap: as for `HFCausalLM`. start_token: what stands before the first token.
    """

    def __init__(
        self,
        model: nn.Module,
        vocabulary: int = 256,
        *,
        window: int = 256,
        overlap: int | None = None,
        start_token: int = 0,
        autocast: torch.dtype | None = None,
        name: str = "",
    ) -> None:
        super().__init__(
            model, vocabulary, start_token, window, overlap, window, autocast, name or type(model).__name__
        )

    @torch.inference_mode()
    def _forward(self, tokens: np.ndarray) -> Tensor:
        with self._format():
            out = self.model(self._ids(tokens))
        found: Tensor = getattr(out, "logits", out)
        return found

    def start(self, rows: int = 1) -> dict[str, Any]:
        return {"rows": rows, "tokens": np.empty((rows, 0), dtype=np.int64), "count": 0}

    def logits(self, state: dict[str, Any]) -> np.ndarray:
        kept = next_window(state["count"], self.window, self.overlap)
        tokens = state["tokens"][:, state["tokens"].shape[1] - kept :]
        return as_float64(self._forward(self._begin(state["rows"], tokens))[:, -1])

    def push(self, state: dict[str, Any], tokens: np.ndarray) -> None:
        row = np.asarray(tokens, dtype=np.int64)[:, None]
        state["tokens"] = np.concatenate([state["tokens"], row], axis=1)[:, -self.window :]
        state["count"] += 1

    def score(self, tokens: np.ndarray) -> Iterator[np.ndarray]:
        for inputs, new in self.windows(np.asarray(tokens, dtype=np.int64)):
            yield as_float64(self._forward(inputs[None])[0, -new:])


def as_float64(logits: Tensor) -> np.ndarray:
    """Logits of any number format on any device, exactly."""
    return np.asarray(logits.float().cpu().numpy(), dtype=np.float64)


def tokenizer_digest(tokenizer: Any) -> bytes:
    """What decides which text token ids stand for; padding and truncation settings are no part of it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        whole = json.loads(backend.to_str())
        parts = {
            name: whole.get(name)
            for name in ("model", "normalizer", "pre_tokenizer", "decoder", "added_tokens")
        }
    else:
        parts = {"vocabulary": tokenizer.get_vocab()}
    return digest16(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode())
