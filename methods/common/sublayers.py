"""The two halves of a residual block, attention and MLP, in each known architecture.

Where they are, what leads into them, and how the model turns its residual stream into logits. One entry of
`SUBLAYERS` beside the one in `methods.common.linear_layers.BLOCKS` adds an architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.common.errors import DataError
from methods.common.linear_layers import UnknownArchitectureError, residual_blocks

Sublayer = Literal["attn", "mlp"]


@dataclass(frozen=True)
class Layout:
    """Where a block keeps its sublayers; names are relative to the block, the last one to the model.

    Attributes:
        attention: modules that compute the attention; the first returns a tuple.
        attention_norms: norms that only the attention uses.
        mlp: modules that compute the MLP.
        mlp_norms: norms that only the MLP uses.
        mlp_entry: the module whose first input is the residual stream after the attention.
        final_norm: the norm before the output head; empty for an encoder, which has none.
    """

    attention: tuple[str, ...]
    attention_norms: tuple[str, ...]
    mlp: tuple[str, ...]
    mlp_norms: tuple[str, ...]
    mlp_entry: str
    final_norm: str

    def modules(self, sublayer: Sublayer) -> tuple[str, ...]:
        """What computes a sublayer."""
        return self.attention if sublayer == "attn" else self.mlp

    def norms(self, sublayer: Sublayer) -> tuple[str, ...]:
        """What is of no use without it."""
        return self.attention_norms if sublayer == "attn" else self.mlp_norms


_LLAMA = Layout(
    attention=("self_attn",),
    attention_norms=("input_layernorm",),
    mlp=("mlp",),
    mlp_norms=("post_attention_layernorm",),
    mlp_entry="post_attention_layernorm",
    final_norm="model.norm",
)
# Norms on both sides of each sublayer.
_GEMMA2 = Layout(
    attention=("self_attn",),
    attention_norms=("input_layernorm", "post_attention_layernorm"),
    mlp=("mlp",),
    mlp_norms=("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    mlp_entry="pre_feedforward_layernorm",
    final_norm="model.norm",
)
_OLMO2 = Layout(
    attention=("self_attn",),
    attention_norms=("post_attention_layernorm",),
    mlp=("mlp",),
    mlp_norms=("post_feedforward_layernorm",),
    mlp_entry="mlp",
    final_norm="model.norm",
)
_GPT2 = Layout(
    attention=("attn",),
    attention_norms=("ln_1",),
    mlp=("mlp",),
    mlp_norms=("ln_2",),
    mlp_entry="ln_2",
    final_norm="transformer.ln_f",
)
_NEOX = Layout(
    attention=("attention",),
    attention_norms=("input_layernorm",),
    mlp=("mlp",),
    mlp_norms=("post_attention_layernorm",),
    mlp_entry="post_attention_layernorm",
    final_norm="gpt_neox.final_layer_norm",
)
# The norm follows the residual sum and stays: LayerNorm(x + 0).
_BERT = Layout(
    attention=("attention.self", "attention.output.dense"),
    attention_norms=(),
    mlp=("intermediate", "output.dense"),
    mlp_norms=(),
    mlp_entry="intermediate",
    final_norm="",
)

SUBLAYERS: dict[str, Layout] = {
    "bert": _BERT,
    "gemma": _LLAMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA2,
    "gpt2": _GPT2,
    "gpt_neox": _NEOX,
    "granite": _LLAMA,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "olmo2": _OLMO2,
    "phi3": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "smollm3": _LLAMA,
}


def require_layout(model_type: str) -> Layout:
    """The layout of a model type.

    Raises:
        UnknownArchitectureError: naming the type, the known ones and what to write.
    """
    if model_type not in SUBLAYERS:
        raise UnknownArchitectureError(
            f"model_type {model_type!r} has no known attention and MLP sublayers; known are "
            f"{', '.join(sorted(SUBLAYERS))} (an entry in methods.common.sublayers.SUBLAYERS adds one)"
        )
    return SUBLAYERS[model_type]


def layout_of(model: nn.Module) -> Layout:
    """The layout of a model. Raises UnknownArchitectureError."""
    return require_layout(str(getattr(getattr(model, "config", None), "model_type", type(model).__name__)))


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The residual blocks of a causal language model, or of an encoder without a head. UnknownArchitectureError."""
    if getattr(getattr(model, "config", None), "model_type", "") == "bert":
        encoder = getattr(model, "bert", model)
        return list(attrgetter("encoder.layer")(encoder))
    return residual_blocks(model)


def is_parallel(model: nn.Module) -> bool:
    """Whether attention and MLP both read the block's input (GPT-NeoX's default)."""
    config: Any = model.config
    return config.model_type == "gpt_neox" and bool(config.use_parallel_residual)


class NoSublayer(nn.Module):
    """Stands where a sublayer was: nothing is computed, nothing is cached, nothing is added to the stream."""

    def __init__(self, returns_tuple: bool = False) -> None:
        super().__init__()
        self.returns_tuple = returns_tuple

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        nothing = hidden.new_zeros(()).expand_as(hidden)
        return (nothing, None) if self.returns_tuple else nothing


def remove_sublayer(block: nn.Module, layout: Layout, sublayer: Sublayer) -> None:
    """Take a sublayer and its norms out of a block, for good."""
    for number, place in enumerate(layout.modules(sublayer)):
        block.set_submodule(place, NoSublayer(returns_tuple=sublayer == "attn" and number == 0))
    for place in layout.norms(sublayer):
        block.set_submodule(place, nn.Identity())


def is_removed(block: nn.Module, layout: Layout, sublayer: Sublayer) -> bool:
    """Whether the sublayer was taken out."""
    return isinstance(block.get_submodule(layout.modules(sublayer)[0]), NoSublayer)


@contextmanager
def without_sublayer(block: nn.Module, layout: Layout, sublayer: Sublayer) -> Iterator[None]:
    """Run a block without a sublayer for a while; put back whatever happens."""
    with ExitStack() as stack:
        for number, place in enumerate(layout.modules(sublayer)):
            module = block.get_submodule(place)
            empty = NoSublayer(returns_tuple=sublayer == "attn" and number == 0)
            module.forward = empty.forward
            stack.callback(module.__dict__.pop, "forward", None)
        # A norm between the sublayer and the stream may have a bias of its own.
        for place in layout.norms(sublayer):
            module = block.get_submodule(place)
            if place != layout.mlp_entry:
                module.forward = nn.Identity().forward
                stack.callback(module.__dict__.pop, "forward", None)
        yield


def output_head(model: nn.Module) -> nn.Module:
    """The projection to the vocabulary. DataError: the model has none."""
    find: Any = getattr(model, "get_output_embeddings", None)
    head = find() if find is not None else None
    if head is None:
        raise DataError(f"{type(model).__name__} has no output head; give a causal language model")
    assert isinstance(head, nn.Module)
    return head


def final_norm_of(model: nn.Module) -> nn.Module:
    """The norm between the last block and the head."""
    found = attrgetter(layout_of(model).final_norm)(model)
    assert isinstance(found, nn.Module)
    return found


def logits_of(model: nn.Module, hidden: Tensor, final_norm: bool = True) -> Tensor:
    """Logits [..., vocabulary] of residual-stream states [..., width], as the model computes its own.

    Args:
        model: a causal language model.
        hidden: states before the final norm.
        final_norm: whether to apply it.
    """
    head = output_head(model)
    weight = head.weight
    assert isinstance(weight, Tensor)
    hidden = hidden.to(weight.dtype)
    logits = head(final_norm_of(model)(hidden) if final_norm else hidden)
    config: Any = model.config
    if scale := getattr(config, "logits_scaling", None):
        logits = logits / scale
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = torch.tanh(logits / cap) * cap
    assert isinstance(logits, Tensor)
    return logits


@contextmanager
def first_inputs(watched: dict[nn.Module, Callable[[Tensor], None]]) -> Iterator[None]:
    """Show each module's first input [batch, length, width] to its observer."""

    def watch(observer: Callable[[Tensor], None]) -> Callable[..., None]:
        return lambda _module, args, kwargs: observer(args[0] if args else kwargs["hidden_states"])

    handles = [
        module.register_forward_pre_hook(watch(observer), with_kwargs=True)
        for module, observer in watched.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
