"""Looking into a model while it runs: hooks that are always taken off again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class BlockCall:
    """What a block is given beside the hidden state: attention mask, position embeddings, ..."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, block: nn.Module, hidden: Tensor) -> Tensor:
        """The next hidden state; arguments follow the hidden state to its device, floats also to its type."""
        args = tuple(_like(value, hidden) for value in self.args)
        kwargs = {name: _like(value, hidden) for name, value in self.kwargs.items()}
        result = block(hidden, *args, **kwargs)
        output = result[0] if isinstance(result, tuple) else result
        assert isinstance(output, Tensor)
        return output


def _like(value: Any, hidden: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value.to(hidden.device, hidden.dtype if value.is_floating_point() else value.dtype)
    if isinstance(value, tuple):
        return tuple(_like(item, hidden) for item in value)
    return value


class _Reached(Exception):
    """The last block was reached: what follows (norm, head) is not needed."""


@torch.no_grad()
def block_calls(
    model: nn.Module, blocks: Sequence[nn.Module], input_ids: Tensor
) -> tuple[Tensor, list[BlockCall]]:
    """The first block's input [batch, length, width], and how the model calls each block.

    The model runs with its blocks replaced by the identity, so this costs an embedding look-up. Each block
    has a call of its own, because masks and position embeddings may differ from layer to layer (sliding
    windows).
    """
    first: list[Tensor] = []
    calls: list[BlockCall] = []

    def stand_in(hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not calls:
            first.append(hidden)
        calls.append(BlockCall(args, kwargs))
        if len(calls) == len(blocks):
            raise _Reached
        return hidden

    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(_forward_replaced(block, stand_in))
        try:
            model(input_ids=input_ids, use_cache=False)
        except _Reached:
            pass
        else:
            raise RuntimeError(f"{type(model).__name__} did not call its {len(blocks)} blocks")
    return first[0], calls


@contextmanager
def _forward_replaced(module: nn.Module, forward: Callable[..., Tensor]) -> Iterator[None]:
    own = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


@contextmanager
def inputs_observed(observers: Mapping[nn.Module, Callable[[Tensor], None]]) -> Iterator[None]:
    """Show each module's first input to its observer, as [tokens, features]."""

    def watch(observer: Callable[[Tensor], None]) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda _module, inputs: observer(inputs[0].reshape(-1, inputs[0].shape[-1]))

    handles = [module.register_forward_pre_hook(watch(observer)) for module, observer in observers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
