"""What happens to signals and gradients along the blocks, for one batch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from methods.common.errors import DataError
from methods.span_norm.block import NormResidualBlock


def diagnose(model: nn.Module, batch: Mapping[str, Tensor] | Tensor) -> dict[str, Any]:
    """Hidden size, gradients, similarity and branch sizes by block, from one forward and backward pass.

    Args:
        model: a language model whose blocks are `NormResidualBlock`s, called with the batch's entries. Its gradients
            are cleared before and after; its mode is kept.
        batch: `input_ids` (batch, tokens) and optionally `labels` and `attention_mask`; or the ids alone. Without
            labels the ids are their own.

    Returns:
        loss, and lists:
        hidden_rms: root mean square of X_0 ... X_L (L + 1 values; of both streams together for siamese).
        grad_norm: norm of dLoss / dX_l for X_0 ... X_L.
        adjacent_cosine: mean over tokens of cos(X_l, X_l+1).
        token_cosine: mean over pairs of different tokens of a row of cos(X_l[i], X_l[j]), for X_0 ... X_L. 1 means
            that all tokens look alike (collapse).
        attn_ratio, ffn_ratio: RMS of what attention and feed-forward module add, over the RMS of X_l.

    Raises:
        DataError: no such block, fewer than 2 tokens a row, or a row of padding.
    """
    inputs: dict[str, Tensor] = {"input_ids": batch} if isinstance(batch, Tensor) else dict(batch)
    inputs.setdefault("labels", inputs["input_ids"])
    blocks = [module for module in model.modules() if isinstance(module, NormResidualBlock)]
    if not blocks:
        raise DataError(f"{type(model).__name__} holds no NormResidualBlock")
    if inputs["input_ids"].shape[1] < 2 or not inputs["input_ids"].shape[0]:
        raise DataError("input_ids: give at least one row of 2 tokens")
    states: list[Tensor] = []
    branches: dict[str, list[float]] = {"attn": [], "ffn": []}

    def entering(_module: nn.Module, arguments: tuple[Any, ...]) -> None:
        _keep(states, arguments[0])

    def leaving(_module: nn.Module, _arguments: Any, out: Tensor) -> None:
        _keep(states, out)

    def branch(kind: str) -> Any:
        def seen(_module: nn.Module, _arguments: Any, out: Any) -> None:
            branches[kind].append(_rms(out[0] if isinstance(out, tuple) else out))

        return seen

    handles = [block.register_forward_pre_hook(entering) for block in blocks]
    handles.append(blocks[-1].register_forward_hook(leaving))
    for block in blocks:
        handles += [
            block.self_attn.register_forward_hook(branch("attn")),
            block.mlp.register_forward_hook(branch("ffn")),
        ]
    model.zero_grad(set_to_none=True)
    try:
        loss = model(**inputs).loss
        loss.backward()
    finally:
        for handle in handles:
            handle.remove()
    gradients = [0.0 if state.grad is None else float(state.grad.norm()) for state in states]
    model.zero_grad(set_to_none=True)
    mask = inputs.get("attention_mask")
    sizes = [_rms(state) for state in states]
    return {
        "loss": float(loss.detach()),
        "hidden_rms": sizes,
        "grad_norm": gradients,
        "adjacent_cosine": [
            float(torch.cosine_similarity(a, b, dim=-1).mean().detach())
            for a, b in itertools.pairwise(states)
            if a.shape == b.shape
        ],
        "token_cosine": [token_cosine(state.detach(), mask) for state in states],
        "attn_ratio": [part / size for part, size in zip(branches["attn"], sizes, strict=False)],
        "ffn_ratio": [part / size for part, size in zip(branches["ffn"], sizes, strict=False)],
    }


def token_cosine(hidden: Tensor, mask: Tensor | None = None) -> float:
    """Mean cosine over pairs of different tokens of the same row; `hidden` (batch, tokens, width)."""
    unit = nn.functional.normalize(hidden.float(), dim=-1)
    weight = torch.ones(unit.shape[:2], device=unit.device) if mask is None else mask.to(unit)
    weighted = unit * weight[..., None]
    # |sum of unit vectors|^2 counts every ordered pair and each token with itself.
    pairs = weighted.sum(dim=1).square().sum(dim=-1) - weight.square().sum(dim=1)
    counts = weight.sum(dim=1).square() - weight.square().sum(dim=1)
    return float((pairs / counts).mean())


def _keep(states: list[Tensor], state: Tensor) -> None:
    if not state.requires_grad:
        state.requires_grad_()
    state.retain_grad()
    states.append(state)


def _rms(state: Tensor) -> float:
    return float(state.detach().float().square().mean().sqrt())
