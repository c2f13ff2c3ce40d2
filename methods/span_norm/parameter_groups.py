"""The optimiser's groups: what decays, and the width rule on learning rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def parameter_groups(
    model: nn.Module, learning_rate: float, weight_decay: float = 0.1
) -> list[dict[str, Any]]:
    """Groups for AdamW: no decay on gains, biases and embeddings; the width rule on the rate of hidden matrices.

    With `mup_base_width` the rate of every hidden matrix is `learning_rate` times base / width; embeddings, the head
    (whose logits carry the factor) and gains keep the rate (section 2.2, width rule).
    """
    config = getattr(model, "config", None)
    factor: float = getattr(config, "width_factor", 1.0)
    outer = {id(parameter) for module in _outer(model) for parameter in module.parameters()}
    embedded = {
        id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()
    }
    groups: dict[str, dict[str, Any]] = {
        "hidden": {"params": [], "lr": learning_rate * factor, "weight_decay": weight_decay},
        "head": {"params": [], "lr": learning_rate, "weight_decay": weight_decay},
        "plain": {"params": [], "lr": learning_rate, "weight_decay": 0.0},
    }
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim < 2 or id(parameter) in embedded:
            groups["plain"]["params"].append(parameter)
        else:
            groups["head" if id(parameter) in outer else "hidden"]["params"].append(parameter)
    return [group for group in groups.values() if group["params"]]


def _outer(model: nn.Module) -> list[nn.Module]:
    find: Callable[[], nn.Module | None] = getattr(model, "get_output_embeddings", lambda: None)
    head = find()
    return [] if head is None else [head]
