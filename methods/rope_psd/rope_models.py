"""What this method needs of a transformers model: its rotary embedding, its body, its output layer, and its cache.

Which models are refused, and why, stands in `check_rope`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError
from methods.common.packed_scoring import unwrapped

# Their frequencies depend on the largest index: the two views would be read with different ones.
MOVING = ("dynamic", "longrope")
FLASH = "flash"


def rotary_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that make the rotary tables, by name."""
    return [
        (name, m) for name, m in unwrapped(model).named_modules() if "RotaryEmbedding" in type(m).__name__
    ]


def rope_parameters(config: Any) -> list[dict[str, Any]]:
    """The rotary settings of a configuration: one set, or one a kind of layer."""
    found = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in found.values() if isinstance(value, dict)]
    return nested or [dict(found)]


def attention_of(model: nn.Module) -> str:
    """The name of the model's attention: sdpa, eager, flash_attention_2, ..."""
    return str(getattr(unwrapped(model).config, "_attn_implementation", ""))


def check_rope(model: nn.Module, mode: str = "skip") -> None:
    """Refuse models whose two views would differ in more than the indices.

    Raises:
        TypeError: no rotary embedding (GPT-2, OPT, ALiBi): indices mean something else there, or nothing.
        ConfigError: the frequencies depend on the largest index (rope_type dynamic, longrope), or flash attention,
            which takes an index 0 within a row for the start of another document, with a view that has one.
        NotImplementedError: several indices a token (M-RoPE).
    """
    inner = unwrapped(model)
    if not rotary_modules(inner):
        raise TypeError(
            f"{type(inner).__name__} has no rotary position embedding; give a RoPE model such as Llama or Qwen"
        )
    for found in rope_parameters(inner.config):
        kind = found.get("rope_type", "default")
        if kind in MOVING:
            raise ConfigError(
                f"rope_type={kind!r}: its frequencies depend on the largest index, so the two views would not share "
                "them; use 'default', 'linear', 'llama3' or 'yarn'"
            )
        if found.get("mrope_section"):
            raise NotImplementedError(
                "mrope_section: only one temporal index a token is supported, not M-RoPE"
            )
    attention = attention_of(inner)
    if FLASH in attention and mode not in ("skip", "none"):
        raise ConfigError(
            f"perturbation mode={mode!r} with {attention}: an index 0 within a row is taken for the start of another "
            "document there; use 'skip', or attn_implementation='sdpa'"
        )


def prefix_can_be_shared(model: nn.Module) -> bool:
    """Whether every layer keeps the keys of all tokens before (no sliding windows, no recurrent layers)."""
    config = unwrapped(model).config
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    slides = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return all(kind == "full_attention" for kind in kinds) and not slides


def body_of(model: nn.Module) -> nn.Module:
    """The model without its output layer."""
    inner = unwrapped(model)
    body: nn.Module = getattr(inner, inner.base_model_prefix)
    return body


def head_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Last hidden states -> logits, with the scalings that some architectures put behind their output layer."""
    inner = unwrapped(model)
    layer, config = inner.get_output_embeddings(), inner.config
    divisor = float(getattr(config, "logits_scaling", None) or 1.0)
    factor = float(getattr(config, "logit_scale", None) or 1.0) / divisor
    cap = getattr(config, "final_logit_softcapping", None)

    def head(hidden: Tensor) -> Tensor:
        logits: Tensor = layer(hidden)
        if factor != 1.0:
            logits = logits * factor
        return cap * torch.tanh(logits / cap) if cap else logits

    return head


def cache_name(module: nn.Module) -> str:
    """What the forward pass calls its cache: `past_key_values` until transformers 5, `cache` after."""
    names = inspect.signature(module.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


def new_cache() -> Any:
    """An empty cache that keeps every token's keys and values, gradients included."""
    from transformers import DynamicCache

    return DynamicCache()


def cut_cache(cache: Any, row: int, columns: int) -> Any:
    """The first `columns` keys and values of one row, as a cache of their own; they stay in the graph."""
    found = new_cache()
    for number, layer in enumerate(cache.layers):
        found.update(layer.keys[row : row + 1, :, :columns], layer.values[row : row + 1, :, :columns], number)
    return found


def run_body(
    model: nn.Module, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, cache: Any = None
) -> Tensor:
    """Last hidden states under given indices, always with an explicit mask.

    Without a mask and without a cache transformers takes a jump in the indices for the start of another document, and
    hides everything before it.

    Args:
        input_ids, position_ids: (rows, length).
        attention_mask: (rows, keys) with 1 for tokens, or (rows, 1, length, keys) as attention takes it.
        cache: keys and values of what stands before.

    Returns:
        (rows, length, width).
    """
    body = body_of(model)
    more = {"use_cache": False} if cache is None else {cache_name(body): cache, "use_cache": True}
    out: Any = body(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **more)
    hidden: Tensor = out.last_hidden_state
    return hidden


@torch.no_grad()
def sees_prefix(model: nn.Module) -> bool:
    """Whether a token behind a jump of the indices sees what stands before the jump; sixteen tokens are enough.

    This is what the installed transformers does with an explicit mask; should a version change it, the method would
    silently train something else.
    """
    inner = unwrapped(model)
    device = inner.get_input_embeddings().weight.device
    count = int(inner.get_input_embeddings().weight.shape[0])
    ids = (torch.arange(16, device=device) * 7 % count)[None]
    other = ids.clone()
    other[0, 1] = (ids[0, 1] + 1) % count
    places = torch.arange(16, device=device)[None] + 5 * (torch.arange(16, device=device) >= 8)
    was_training = inner.training
    inner.eval()
    try:
        first, second = (run_body(model, tokens, torch.ones_like(ids), places) for tokens in (ids, other))
    finally:
        inner.train(was_training)
    return not torch.equal(first[:, 8:], second[:, 8:])
