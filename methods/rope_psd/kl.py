"""The divergence between two views, in pieces of rows: extra memory grows with a piece, not with the sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Direction = Literal["reverse", "forward"]
CHUNK = 2048


class ViewKL(NamedTuple):
    """What `chunked_kl` returns; both are weighted sums over rows, in nats."""

    kl: Tensor
    student_ce: Tensor


class _Rows(torch.autograd.Function):
    """KL of each row of logits, with its gradient for the student alone.

    reverse: KL(p || t), gradient p * (log p - log t - KL). forward (ablation): KL(t || p), gradient p - t.
    """

    @staticmethod
    def forward(ctx: Any, student: Tensor, log_t: Tensor, targets: Tensor, direction: Direction) -> Any:
        # Three buffers of the piece's size at any time: the student's logits, `log_t` which is used up, and one more.
        log_p = precise(student).log_softmax(-1)
        chosen = -log_p.gather(-1, targets.clamp(min=0)[:, None])[:, 0]
        difference = torch.sub(log_p, log_t, out=log_t)
        p = log_p.exp_()
        if direction == "reverse":
            kl = torch.einsum("ij,ij->i", p, difference)  # vecdot would take a fourth
            ctx.save_for_backward(p, difference, kl)
        else:
            t = difference.neg().exp_().mul_(p)
            kl = -torch.einsum("ij,ij->i", t, difference)
            ctx.save_for_backward(p, t, kl)
        ctx.direction, ctx.dtype = direction, student.dtype
        ctx.mark_non_differentiable(chosen)
        return kl, chosen

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        p, other, kl = ctx.saved_tensors
        slope = (other - kl[:, None]).mul_(p) if ctx.direction == "reverse" else p - other
        return slope.mul_(gradients[0][:, None]).to(ctx.dtype), None, None, None


def precise(values: Tensor) -> Tensor:
    """Half precision in float32: a log-softmax in bfloat16 is off by 1e-3."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def chunked_kl(
    student: Tensor,
    head: Callable[[Tensor], Tensor],
    teacher: Tensor,
    rows: Tensor,
    targets: Tensor,
    weights: Tensor,
    direction: Direction = "reverse",
    chunk: int = CHUNK,
) -> ViewKL:
    """sum_i weights_i * KL(student_i || teacher_i), the section 2.2 term l_i in the reverse direction.

    Args:
        student: (n, width) last hidden states of the perturbed view; they get the gradient.
        head: hidden states -> logits; computed again in the backward pass, so that only one piece of logits exists.
        teacher: (all rows, vocabulary) logits of the standard view; never gets a gradient.
        rows: (n,) the teacher's row of each of the student's: a copy of its suffix would cost that memory again.
        targets: (n,) the next tokens, for the cross-entropy of the perturbed view, which is only told.
        weights: (n,) weight of each row.
        direction: "forward", KL(teacher || student), is an ablation.
        chunk: rows of a piece.
    """
    teacher = teacher.detach()

    def piece(hidden: Tensor, places: Tensor, wanted: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            log_t = precise(teacher[places])
            log_t.sub_(log_t.logsumexp(-1, keepdim=True))
        kl, ce = _Rows.apply(head(hidden), log_t, wanted, direction)
        return (kl * weight).sum(), (ce * weight).sum()

    kl = torch.zeros((), dtype=weights.dtype, device=student.device)
    ce = torch.zeros_like(kl)
    for start in range(0, len(student), chunk):
        part = slice(start, start + chunk)
        arguments = (student[part], rows[part], targets[part], weights[part])
        if torch.is_grad_enabled() and student.requires_grad:
            some, told = checkpoint(piece, *arguments, use_reentrant=False)
        else:
            some, told = piece(*arguments)
        kl, ce = kl + some, ce + told.detach()
    return ViewKL(kl, ce)
