"""Calibration: token sequences from text, and the walk through a model that prunes block by block.

The walk is that of the Wanda and SparseGPT papers: a block sees the activations of the blocks before it as
they are *after* pruning; its layers' inputs are measured while the block is still dense; then it is pruned
and run again. Only one block is ever copied, so that memory stays near one model plus the hidden states of
the calibration tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError, DataError, at_least
from methods.common.hooks import block_calls, inputs_observed
from methods.common.linear_layers import LinearLayer, linear_layers, oriented_weight, residual_blocks
from methods.common.reading_limit import longest_input


class Observer(Protocol):
    """Gathers a statistic of a layer's inputs."""

    def add(self, inputs: Tensor) -> None:
        """Take inputs [tokens, features]."""


def sample_sequences(
    texts: Iterable[str], tokenizer: Any, *, sequences: int, length: int, seed: int
) -> Tensor:
    """Token ids [up to `sequences`, `length`], cut without padding from the documents in a shuffled order.

    Documents are joined by the end-of-text token; a tokenizer that opens a text with a special token opens
    each sequence with it. Fewer sequences come back when the text is used up.

    Raises:
        ConfigError: sequences < 1 or length < 2.
        DataError: the text does not fill one sequence.
    """
    if sequences < 1 or length < 2:
        raise ConfigError(
            f"calibration of {sequences} sequences of {length} tokens: give at least 1 of at least 2"
        )
    at_least("seed", seed, 0)
    if isinstance(texts, str):
        raise DataError("calibration text is one string; give a list of documents")
    documents = [text for text in texts if text.strip()]
    if not documents:
        raise DataError("calibration text is empty: give a text data set with at least one document")
    plain = {"add_special_tokens": False}
    opened = list(tokenizer(documents[0])["input_ids"])
    opening = opened[:1] if opened[:1] == [tokenizer.bos_token_id] else []
    closing = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    body = length - len(opening)
    stream: list[int] = []
    for index in np.random.default_rng(seed).permutation(len(documents)):
        stream += [*tokenizer(documents[index], **plain)["input_ids"], *closing]
        if len(stream) >= sequences * body:
            break
    count = min(sequences, len(stream) // body)
    if count == 0:
        raise DataError(
            f"calibration text has {len(stream)} tokens, fewer than one sequence of {length}; give more text or "
            "shorter sequences"
        )
    return torch.tensor([opening + stream[i * body : (i + 1) * body] for i in range(count)])


def check_tokens(input_ids: Tensor, model: nn.Module) -> None:
    """Refuse what is no batch of the model's token ids. Raises DataError."""
    if input_ids.ndim != 2 or input_ids.numel() == 0:
        raise DataError(
            f"calibration is empty: its shape is {tuple(input_ids.shape)}, not [sequences, length]"
        )
    config: Any = model.config
    size = getattr(config, "vocab_size", None)
    if input_ids.is_floating_point() or (size and not 0 <= input_ids.min() <= input_ids.max() < size):
        raise DataError(
            f"calibration: holds other values than token ids of the model, 0 to {(size or 1) - 1}"
        )
    limit = longest_input(config.to_dict())
    if limit is not None and input_ids.shape[1] > limit:
        raise DataError(
            f"calibration: {input_ids.shape[1]} tokens a sequence, the model reads at most {limit}; give shorter ones"
        )


@torch.no_grad()
def prune_blocks(
    model: nn.Module,
    input_ids: Tensor,
    *,
    observe: Callable[[LinearLayer], Observer],
    prune: Callable[[LinearLayer, Any], None],
    batch_size: int = 8,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    on_block: Callable[[int, int], None] | None = None,
) -> None:
    """Walk through the blocks; measure each dense block's layer inputs, prune its layers, pass its new
    outputs on.

    Args:
        model: a causal language model of a known architecture.
        input_ids: [sequences, length], no padding.
        observe: makes a layer's observer.
        prune: changes `layer.weight` in place from what the observer gathered.
        batch_size: sequences per forward pass.
        dtype: number format of the forward passes; None takes the model's own. Weights keep theirs.
        device: where the forward passes run, one block at a time; None takes the model's own. Weights stay where
            they are.
        on_block: progress.

    Raises:
        DataError: no calibration tokens, or tokens that the model does not have.
        ConfigError: batch_size < 1.
    """
    check_tokens(input_ids, model)
    at_least("batch_size", batch_size, 1)
    blocks = residual_blocks(model)
    training, home = model.training, next(model.parameters()).device
    model.eval()
    try:
        starts = [block_calls(model, blocks, batch) for batch in input_ids.to(home).split(batch_size)]
        hidden = [first.to(device or first.device, dtype or first.dtype) for first, _ in starts]
        calls = [call for _, call in starts]
        for index, block in enumerate(blocks):
            layers = list(linear_layers(model, index))
            runner = _runner(block, hidden[0])
            modules = dict(runner.named_modules())
            observers = {layer.local_name: observe(layer) for layer in layers}
            watched = {modules[name]: observer.add for name, observer in observers.items()}
            with inputs_observed(watched):
                for part, call in zip(hidden, calls, strict=True):
                    call[index].run(runner, part)
            for layer in layers:
                prune(layer, observers[layer.local_name])
                if runner is not block:
                    oriented_weight(modules[layer.local_name]).copy_(layer.weight)
            if index + 1 < len(blocks):
                hidden = [call[index].run(runner, part) for part, call in zip(hidden, calls, strict=True)]
            if on_block:
                on_block(index + 1, len(blocks))
    finally:
        model.train(training)


def _runner(block: nn.Module, hidden: Tensor) -> nn.Module:
    """The block itself when it fits the hidden state, else a copy of its type and on its device."""
    own = next(block.parameters())
    if (own.dtype, own.device) == (hidden.dtype, hidden.device):
        return block
    return copy.deepcopy(block).to(hidden.device, hidden.dtype)
