"""What happens to signals and gradients along the blocks, for one batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from methods.common.errors import DataError
from methods.span_norm.block import NormResidualBlock

IGNORED = -100  # the label of a token that no loss counts


def diagnose(model: nn.Module, batch: Mapping[str, Tensor] | Tensor) -> dict[str, Any]:
    """Hidden size, gradients, similarity and branch sizes by block, from one forward and backward pass.

    Padding counts nowhere. Gradient checkpointing is off meanwhile, and gradients are recorded whatever the caller's
    mode: each state is seen once, with its gradient.

    Args:
        model: a language model whose blocks are `NormResidualBlock`s, called with the batch's entries. Its gradients
            are cleared before and after; its mode is kept.
        batch: `input_ids` (batch, tokens) and optionally `labels` and `attention_mask` (batch, tokens); or the ids
            alone. Without labels the ids are their own.

    Returns:
        loss, and lists:
        hidden_rms: root mean square of X_0 ... X_L (L + 1 values; of both streams together for siamese).
        grad_norm: norm of dLoss / dX_l for X_0 ... X_L.
        adjacent_cosine: mean over tokens of cos(X_l, X_l+1).
        token_cosine: mean over pairs of different tokens of a row of cos(X_l[i], X_l[j]), for X_0 ... X_L. 1 means
            that all tokens look alike (collapse).
        attn_ratio, ffn_ratio: RMS of what attention and feed-forward module add, over the RMS of X_l.

    Raises:
        DataError: no such block, no ids of two dimensions, or no row with 2 tokens beside padding.
    """
    inputs = _inputs(batch)
    blocks = [module for module in model.modules() if isinstance(module, NormResidualBlock)]
    if not blocks:
        raise DataError(f"{type(model).__name__} holds no NormResidualBlock")
    seen = _Seen()
    model.zero_grad(set_to_none=True)
    with torch.enable_grad(), _no_checkpointing(model), seen.watch(blocks):
        loss = model(**inputs).loss
        loss.backward()
    states = seen.states
    gradients = [0.0 if state.grad is None else float(state.grad.norm()) for state in states]
    model.zero_grad(set_to_none=True)
    mask = inputs.get("attention_mask")
    sizes = [_rms(state, mask) for state in states]
    return {
        "loss": float(loss.detach()),
        "hidden_rms": sizes,
        "grad_norm": gradients,
        "adjacent_cosine": [
            _mean(torch.cosine_similarity(a, b, dim=-1).detach(), mask)
            for a, b in itertools.pairwise(states)
            if a.shape == b.shape
        ],
        "token_cosine": [token_cosine(state.detach(), mask) for state in states],
        **{
            f"{kind}_ratio": [_rms(part, mask) / size for part, size in zip(parts, sizes, strict=False)]
            for kind, parts in seen.branches.items()
        },
    }


def token_cosine(hidden: Tensor, mask: Tensor | None = None) -> float:
    """Mean cosine over pairs of different tokens of the same row; rows with fewer than 2 tokens have no pair.

    Args:
        hidden: (batch, tokens, width). mask: (batch, tokens), 0 at padding.
    """
    unit = nn.functional.normalize(hidden.float(), dim=-1)
    weight = torch.ones(unit.shape[:2], device=unit.device) if mask is None else mask.to(unit)
    weighted = unit * weight[..., None]
    # |sum of unit vectors|^2 counts every ordered pair and each token with itself.
    pairs = weighted.sum(dim=1).square().sum(dim=-1) - weight.square().sum(dim=1)
    counts = weight.sum(dim=1).square() - weight.square().sum(dim=1)
    return float((pairs / counts)[counts > 0].mean())


def _inputs(batch: Mapping[str, Tensor] | Tensor) -> dict[str, Any]:
    """The model's keywords, checked; labels without padding are added where there are none."""
    inputs: dict[str, Any] = {"input_ids": batch} if not isinstance(batch, Mapping) else dict(batch)
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if not isinstance(ids, Tensor) or ids.ndim != 2:
        raise DataError("input_ids: give a tensor of token ids (batch, tokens), alone or in a mapping")
    if mask is not None and mask.shape != ids.shape:
        raise DataError(
            f"attention_mask: has the shape {tuple(mask.shape)}; give that of the ids, {tuple(ids.shape)}"
        )
    lengths = torch.full(ids.shape[:1], ids.shape[1]) if mask is None else mask.bool().sum(dim=1)
    if not bool((lengths >= 2).any()):
        raise DataError("input_ids: give at least one row of 2 tokens")
    if inputs.get("labels") is None:
        inputs["labels"] = ids if mask is None else ids.masked_fill(~mask.bool(), IGNORED)
    return inputs


class _Seen:
    """The states between the blocks and what the branches gave, in one forward pass."""

    def __init__(self) -> None:
        self.states: list[Tensor] = []
        self.branches: dict[str, list[Tensor]] = {"attn": [], "ffn": []}

    @contextmanager
    def watch(self, blocks: list[NormResidualBlock]) -> Iterator[None]:
        with ExitStack() as stack:
            for block in blocks:
                _hook(stack, block.register_forward_pre_hook(lambda _, given: self._keep(given[0])))
                for kind, branch in (("attn", block.self_attn), ("ffn", block.mlp)):
                    _hook(stack, branch.register_forward_hook(self._branch(kind)))
            _hook(stack, blocks[-1].register_forward_hook(lambda _, given, out: self._keep(out)))
            yield

    def _keep(self, state: Tensor) -> None:
        if not state.requires_grad:
            state.requires_grad_()
        state.retain_grad()
        self.states.append(state)

    def _branch(self, kind: str) -> Any:
        def seen(_module: nn.Module, _given: Any, out: Any) -> None:
            self.branches[kind].append((out[0] if isinstance(out, tuple) else out).detach())

        return seen


def _hook(stack: ExitStack, handle: Any) -> None:
    stack.callback(handle.remove)


@contextmanager
def _no_checkpointing(model: nn.Module) -> Iterator[None]:
    """Without gradient checkpointing, which would run each block a second time."""
    changed: list[Any] = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False) is True]
    try:
        for module in changed:
            module.gradient_checkpointing = False
        yield
    finally:
        for module in changed:
            module.gradient_checkpointing = True


def _mean(values: Tensor, mask: Tensor | None) -> float:
    """Mean of (batch, tokens) over what is no padding."""
    return float(values.float().mean() if mask is None else values.float()[mask.bool()].mean())


def _rms(state: Tensor, mask: Tensor | None) -> float:
    return _mean(state.detach().float().square().mean(dim=-1), mask) ** 0.5
