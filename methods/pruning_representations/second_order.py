"""How far two states are apart in embedding, logit and probability space, exactly and to second order.

The last dimension holds features or tokens; all others are kept. Dense first, changed second: KL is
KL(dense || changed). At temperature T, p = softmax(z / T). Estimates are local, so they are wrong where the
change is large; `third_order` says how wrong to expect.

For the log-partition A(z) = log sum exp(z / T), KL(p || p') = A(z') - A(z) - <grad A(z), z' - z>: a Bregman
divergence, whose Hessian (diag p - p p^T) / T^2 gives the variance in `second_order_kl`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from methods.common.errors import ConfigError, DataError, NumericalError


class Angular(NamedTuple):
    """The geometry of a change dh of h; each [...].

    Attributes:
        cosine: cos(h, h + dh).
        alpha: <dh, h> / ||h||^2, the change along h.
        beta: ||dh_perp|| / ||h||, the change across it.
        exact: the cosine from alpha and beta alone, (1 + a) / sqrt((1 + a)^2 + b^2).
        first: estimate of 1 - cosine, b^2 / 2 (the paper's first theorem).
        corrected: the same with the part along h, b^2 / (2 (1 + a)^2).
    """

    cosine: Tensor
    alpha: Tensor
    beta: Tensor
    exact: Tensor
    first: Tensor
    corrected: Tensor


def angular(h: Tensor, h2: Tensor) -> Angular:
    """Angle between states [..., features] and its estimates (theorem 1, any space)."""
    h, h2 = _floats(h, h2)
    dh = h2 - h
    norm2 = h.square().sum(-1).clamp_min(torch.finfo(h.dtype).tiny)
    alpha = (dh * h).sum(-1) / norm2
    across = (dh - alpha[..., None] * h).square().sum(-1)
    beta = (across / norm2).sqrt()
    # A state that becomes zero has no angle: its cosine counts as 0 in both forms.
    exact = (1 + alpha) / ((1 + alpha).square() + beta.square()).sqrt().clamp_min(torch.finfo(h.dtype).tiny)
    cosine = (h * h2).sum(-1) / (norm2.sqrt() * h2.square().sum(-1).sqrt()).clamp_min(
        torch.finfo(h.dtype).tiny
    )
    first = beta.square() / 2
    return Angular(cosine, alpha, beta, exact, first, first / (1 + alpha).square())


def second_order_kl(z: Tensor, z2: Tensor, T: float = 1.0) -> Tensor:
    """Estimate of KL(p || p') [...]: the variance of dz under p, over 2 T^2 (theorem 3)."""
    z, z2 = _logits(z, z2, T)
    return _variance((z / T).softmax(-1), z2 - z) / (2 * T * T)


def second_order_cos(z: Tensor, z2: Tensor, T: float = 1.0) -> Tensor:
    """Estimate of 1 - cos(p, p') [...]: the variance of dz under weights p_i^2 / ||p||^2, over 2 T^2 (theorem 2)."""
    z, z2 = _logits(z, z2, T)
    return _variance((2 * z / T).softmax(-1), z2 - z) / (2 * T * T)


def third_order(z: Tensor, z2: Tensor, T: float = 1.0) -> Tensor:
    """The next term of the expansion of KL [...]: the third cumulant of dz under p, over 6 T^3."""
    z, z2 = _logits(z, z2, T)
    p, dz = (z / T).softmax(-1), z2 - z
    centred = dz - (p * dz).sum(-1, keepdim=True)
    return (p * centred.pow(3)).sum(-1) / (6 * T**3)


def kl(z: Tensor, z2: Tensor, T: float = 1.0) -> Tensor:
    """KL(p || p') in nats [...], from log-softmaxes: no epsilon, finite where p' underflows."""
    z, z2 = _logits(z, z2, T)
    logp, logq = (z / T).log_softmax(-1), (z2 / T).log_softmax(-1)
    p, q = logp.exp(), logq.exp()
    # q - p sums to 0; with it every term is at least 0, so that rounding cannot make the sum clearly negative.
    return (p * (logp - logq) + (q - p)).sum(-1)


def kl_cumulant(z: Tensor, z2: Tensor, T: float = 1.0) -> Tensor:
    """KL(p || p') [...] in its other exact form, log E_p exp(dz / T) - E_p dz / T."""
    z, z2 = _logits(z, z2, T)
    logp, dz = (z / T).log_softmax(-1), (z2 - z) / T
    return (logp + dz).logsumexp(-1) - (logp.exp() * dz).sum(-1)


def cosine_of_probabilities(z: Tensor, z2: Tensor, T: float = 1.0) -> Tensor:
    """cos(p, p') [...]; computed from logits so that neither norm underflows."""
    z, z2 = _logits(z, z2, T)
    logp, logq = (z / T).log_softmax(-1), (z2 / T).log_softmax(-1)
    both = (logp + logq).logsumexp(-1)
    return (both - ((2 * logp).logsumexp(-1) + (2 * logq).logsumexp(-1)) / 2).exp()


def _variance(weights: Tensor, values: Tensor) -> Tensor:
    mean = (weights * values).sum(-1, keepdim=True)
    return (weights * (values - mean).square()).sum(-1)


def _floats(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the wider of their formats, at least float32.

    Raises:
        DataError: shapes differ.
        NumericalError: NaN or infinity.
    """
    if a.shape != b.shape or not a.ndim:
        raise DataError(
            f"the two states have shapes {list(a.shape)} and {list(b.shape)}; give equal ones, of models of one kind"
        )
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    for name, values in (("first", a), ("second", b)):
        if not bool(values.isfinite().all()):
            raise NumericalError(
                f"the {name} state holds NaN or infinity; the model's weights or activations are not finite"
            )
    return a.to(dtype), b.to(dtype)


def _logits(z: Tensor, z2: Tensor, T: float) -> tuple[Tensor, Tensor]:
    check_temperature(T)
    return _floats(z, z2)


def check_temperature(T: float) -> float:
    """Refuse a temperature that is not above 0. Raises ConfigError."""
    if not isinstance(T, int | float) or not 0 < T < math.inf:
        raise ConfigError(f"temperature {T!r}: give a finite number above 0")
    return T
