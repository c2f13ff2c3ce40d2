"""The residual stream of a model at chosen tokens: before, between and after each block's sublayers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError, DataError
from methods.common.hooks import BlockCall, block_calls
from methods.common.sublayers import blocks_of, first_inputs, is_parallel, layout_of, without_sublayer

Probed = Literal["attn", "mlp", "block"]


def check_probed(sublayer: Any) -> Probed:
    """Refuse a name that is none of a sublayer. Raises ConfigError."""
    if sublayer not in ("attn", "mlp", "block"):
        raise ConfigError(f"sublayer {sublayer!r}: give 'attn', 'mlp' or 'block'")
    return sublayer


@dataclass(frozen=True)
class Stream:
    """States of one block, each [tokens, width] in the model's number format.

    Attributes:
        before: entering the block.
        between: after the attention; None where both sublayers read `before` (parallel).
        after: leaving the block.
        attention: what the attention adds, for parallel blocks.
        mlp: what the MLP adds, for parallel blocks.
    """

    before: Tensor
    between: Tensor | None
    after: Tensor
    attention: Tensor | None = None
    mlp: Tensor | None = None

    def pair(self, sublayer: Probed) -> tuple[Tensor, Tensor]:
        """The state with a sublayer's output, and the same without it."""
        if sublayer == "block":
            return self.after, self.before
        if self.between is not None:
            return (self.between, self.before) if sublayer == "attn" else (self.after, self.between)
        added = self.attention if sublayer == "attn" else self.mlp
        assert added is not None
        return self.after, self.after - added


@torch.no_grad()
def streams(model: nn.Module, input_ids: Tensor, picked: Tensor | None = None) -> list[Stream]:
    """One forward pass; the stream of every block.

    Args:
        model: a causal language model of a known architecture.
        input_ids: [batch, length], no padding.
        picked: flat positions (row * length + place) to keep; None keeps all, as [batch * length, width].
    """
    layout, blocks, parallel = layout_of(model), blocks_of(model), is_parallel(model)
    seen: list[dict[str, Tensor]] = [{} for _ in blocks]

    def keep(index: int, name: str, value: Tensor) -> None:
        flat = value.detach().reshape(-1, value.shape[-1])
        seen[index][name] = flat.clone() if picked is None else flat[picked.to(flat.device)]

    with ExitStack() as stack:
        for index, block in enumerate(blocks):

            def after(_m: Any, _args: Any, output: Any, index: int = index) -> None:
                keep(index, "after", output[0] if isinstance(output, tuple) else output)

            stack.callback(block.register_forward_hook(after).remove)
            stack.enter_context(first_inputs({block: lambda x, i=index: keep(i, "before", x)}))  # type: ignore[misc]
            if parallel:
                for name, place in (("attention", layout.attention[0]), ("mlp", layout.mlp[0])):

                    def added(_m: Any, _args: Any, output: Any, i: int = index, n: str = name) -> None:
                        keep(i, n, output[0] if isinstance(output, tuple) else output)

                    stack.callback(block.get_submodule(place).register_forward_hook(added).remove)
            else:
                entry = block.get_submodule(layout.mlp_entry)
                stack.enter_context(first_inputs({entry: lambda x, i=index: keep(i, "between", x)}))  # type: ignore[misc]
        # The body alone: the head's logits of all positions are not needed.
        body = getattr(model, str(getattr(model, "base_model_prefix", "")), model)
        body(input_ids=input_ids, use_cache=False)
    return [Stream(s["before"], s.get("between"), s["after"], s.get("attention"), s.get("mlp")) for s in seen]


class Counterfactual:
    """What another model's sublayers make of the dense model's states.

    Args:
        other: a compressed version of the dense model, of the same width; blocks that it lost (its configuration's
            `kept_blocks`) count as dropped.
        dense: the dense model.

    Raises:
        DataError: the widths or architectures differ, or the blocks cannot be matched.
    """

    def __init__(self, other: nn.Module, dense: nn.Module) -> None:
        widths = [int(model.config.hidden_size) for model in (dense, other)]  # type: ignore[union-attr, arg-type]
        if widths[0] != widths[1]:
            raise DataError(
                f"hidden sizes differ: {widths[0]} and {widths[1]}; give a compressed version of it"
            )
        self.other, self.layout = other, layout_of(other)
        if self.layout != layout_of(dense):
            raise DataError(
                f"architectures differ: {dense.config.model_type} and {other.config.model_type}; give a compressed "  # type: ignore[union-attr]
                "version of the dense model"
            )
        self.blocks = blocks_of(other)
        names = [_names(model) for model in (dense, other)]
        if not set(names[1]) <= set(names[0]):
            raise DataError(
                f"the models have {len(names[0])} and {len(names[1])} blocks that do not correspond; give a "
                "compressed version of the dense model"
            )
        self._place = {names[0].index(name): place for place, name in enumerate(names[1])}

    @torch.no_grad()
    def pairs(
        self, input_ids: Tensor, dense: list[Stream], sublayer: Probed, picked: Tensor
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Block, dense state and changed state [tokens, width], each from the same dense input.

        Args:
            input_ids: [batch, length].
            dense: the dense model's streams at all positions.
            sublayer: what is replaced.
            picked: flat positions to return.
        """
        _, calls = block_calls(self.other, self.blocks, input_ids)
        shape = (*input_ids.shape, -1)
        for index, stream in enumerate(dense):
            own = self._place.get(index)
            whole, without = stream.pair(sublayer)
            changed = without
            if own is not None:
                changed = self._run(self.blocks[own], calls[own], stream, sublayer, shape)
            yield index, whole[picked], changed.reshape(-1, changed.shape[-1])[picked].to(whole.dtype)

    def _run(
        self, block: nn.Module, call: BlockCall, stream: Stream, sublayer: Probed, shape: tuple[int, ...]
    ) -> Tensor:
        weight = next(iter(block.parameters()))
        before = stream.before.reshape(shape).to(weight.dtype)
        if sublayer == "block":
            return call.run(block, before)
        rest: Literal["attn", "mlp"] = "mlp" if sublayer == "attn" else "attn"
        start = before
        if stream.between is not None and sublayer == "mlp":
            start = stream.between.reshape(shape).to(weight.dtype)
        with without_sublayer(block, self.layout, rest):
            made = call.run(block, start)
        if stream.between is None:  # parallel: the dense model's other sublayer is added back
            added = stream.mlp if sublayer == "attn" else stream.attention
            assert added is not None
            made = made + added.reshape(shape).to(made.dtype)
        return made


def _names(model: nn.Module) -> list[int]:
    """What the original dense model called this one's blocks."""
    kept = getattr(model.config, "kept_blocks", None)
    return list(kept) if kept else list(range(len(blocks_of(model))))
