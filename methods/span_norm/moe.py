"""Mixture-of-experts feed-forward layer: F(Y) = sum over the top k of g_e(Y) E_e(Y), gates summing to 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class Router(nn.Module):
    """Softmax over experts in float32, the top k renormalised.

    Shapes: (..., dim) to logits (tokens, experts), gates (tokens, k) and experts' indices (tokens, k).
    """

    def __init__(self, dim: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, experts, bias=False)
        self.top_k = top_k

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.proj(x.reshape(-1, x.shape[-1]))
        # float32 at least: float64 stays what it is.
        shares = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(dim=-1)
        gates, chosen = shares.topk(self.top_k, dim=-1)
        return logits, gates / gates.sum(dim=-1, keepdim=True), chosen


class MoE(nn.Module):
    """Experts behind a router.

    With unit-variance experts the sum's variance is E[sum g^2], between 1 / k and 1; `variance_match` divides by its
    root, measured on one batch (`calibrating`), so that the branch starts like a dense one.

    Args:
        dim: width.
        make_expert: makes one feed-forward module.
        experts: how many. top_k: how many a token visits.
        shared: one more expert for every token.
        variance_match: keep a factor `variance_scale` for the routed sum.
    """

    def __init__(
        self,
        dim: int,
        make_expert: Callable[[], nn.Module],
        experts: int,
        top_k: int,
        *,
        shared: bool = False,
        variance_match: bool = False,
    ) -> None:
        super().__init__()
        self.router = Router(dim, experts, top_k)
        self.experts = nn.ModuleList(make_expert() for _ in range(experts))
        self.shared = make_expert() if shared else None
        self.variance_scale: Tensor | None
        self.register_buffer("variance_scale", torch.ones(()) if variance_match else None)
        self.calibrating = False

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        _, gates, chosen = self.router(flat)
        if self.calibrating and self.variance_scale is not None:
            self.variance_scale.copy_(gates.square().sum(dim=-1).mean().rsqrt())
        out: Tensor | None = None
        for index, expert in enumerate(self.experts):
            token, slot = (chosen == index).nonzero(as_tuple=True)
            if not len(token):
                continue
            part = expert(flat[token]) * gates[token, slot, None]
            if out is None:
                out = part.new_zeros(flat.shape)
            out = out.index_add(0, token, part)
        if out is None:
            out = torch.zeros_like(flat)
        if self.variance_scale is not None:
            out = out * self.variance_scale.to(out.dtype)
        if self.shared is not None:
            out = out + self.shared(flat)
        return out.reshape(x.shape).to(x.dtype)


def balance_loss(logits: Sequence[Tensor], top_k: int, mask: Tensor | None = None) -> Tensor:
    """Switch's load-balancing loss: experts times sum over experts of (share of assignments / k) (mean probability).

    Args:
        logits: one (tokens, experts) a layer. mask: (batch, length), 0 at padding.

    Returns: mean over the layers; 1 when tokens and probability are spread evenly.
    """
    weight = _weights(logits[0], mask)
    losses = []
    for layer in logits:
        shares = layer.float().softmax(dim=-1)
        chosen = shares.topk(top_k, dim=-1).indices
        hits = torch.zeros_like(shares).scatter_(1, chosen, 1.0)
        load = (hits * weight[:, None]).sum(dim=0) / (top_k * weight.sum())
        mean = (shares * weight[:, None]).sum(dim=0) / weight.sum()
        losses.append(layer.shape[-1] * (load * mean).sum())
    return torch.stack(losses).mean()


def z_loss(logits: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
    """Mean over tokens and layers of the squared log-partition of the router (ST-MoE, arXiv 2202.08906, eq. 5)."""
    weight = _weights(logits[0], mask)
    parts = [(layer.float().logsumexp(dim=-1).square() * weight).sum() / weight.sum() for layer in logits]
    return torch.stack(parts).mean()


def load_variation(logits: Sequence[Tensor], top_k: int) -> float:
    """Standard deviation over mean of the experts' loads, the mean over layers; 0 when all work alike."""
    found = []
    for layer in logits:
        chosen = layer.topk(top_k, dim=-1).indices
        load = torch.bincount(chosen.reshape(-1), minlength=layer.shape[-1]).float()
        found.append(float(load.std(unbiased=False) / load.mean()))
    return math.fsum(found) / len(found)


def _weights(layer: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.ones(layer.shape[0], device=layer.device)
    return mask.reshape(-1).to(device=layer.device, dtype=torch.float32)
