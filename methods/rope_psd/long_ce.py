"""LongCE, the long-context re-weighting: tokens that a long context helps to predict weigh more.

"What is Wrong with Perplexity for Long-context Language Modeling?" (PKU-ML/LongPPL): w = min(exp(loss with a context
cut to K tokens - loss with all of it), 5). The short contexts are windows of K tokens that move by a stride, so that a
token has between K - stride and K tokens before it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError
from methods.rope_psd.kl import precise
from methods.rope_psd.rope_models import head_of, run_body

LARGEST = 5.0


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """(rows, length) next-token losses in nats, at the place of the token; 0 for the first and for ignored ones.

    Args:
        logits: (rows, length, vocabulary). labels: (rows, length), -100 where ignored.
    """
    wanted = labels[:, 1:]
    scores = nn.functional.cross_entropy(
        precise(logits[:, :-1]).transpose(1, 2), wanted, reduction="none", ignore_index=-100
    )
    return nn.functional.pad(scores, (1, 0))


@torch.no_grad()
def long_ce_weights(
    model: nn.Module, input_ids: Tensor, labels: Tensor, full: Tensor, context: int, stride: int
) -> Tensor:
    """The weight of each token.

    Args:
        model: the model that is trained, as it is now.
        input_ids, labels: (rows, length).
        full: (rows, length) losses with all of the context, from `token_losses`.
        context: K, tokens of the short context.
        stride: tokens by which the short window moves; fewer than K.

    Returns:
        (rows, length); 1 for tokens that have fewer than K tokens before them.

    Raises:
        ConfigError: stride outside 1 .. K - 1.
    """
    if not 1 <= stride < context:
        raise ConfigError(
            f"long_ce_stride={stride}: give at least 1, and fewer than long_ce_context={context}"
        )
    weights = torch.ones_like(full)
    head = head_of(model)
    for start in range(stride, input_ids.shape[1] - context + stride, stride):
        window = slice(start, start + context)
        ids = input_ids[:, window]
        # A stretch of the window: each of its tokens but the last stretch's has K - stride tokens or more before it.
        new = slice(start + context - stride, min(start + context, input_ids.shape[1]))
        if new.start >= input_ids.shape[1]:
            break
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        hidden = run_body(model, ids, torch.ones_like(ids), places)[:, new.start - start - 1 :]
        short = token_losses(head(hidden), labels[:, new.start - 1 : new.stop])[:, 1:]
        weights[:, new] = (short - full[:, new]).exp().clamp(max=LARGEST).to(weights.dtype)
    return weights


def long_ce(losses: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Mean over valid targets of weight x loss."""
    valid = labels[:, 1:] != -100
    return (losses[:, 1:] * weights[:, 1:] * valid).sum() / valid.sum().clamp(min=1)
