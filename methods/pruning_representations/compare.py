"""All numbers of one comparison of states, in one pass: what the tables' columns are."""

from __future__ import annotations

import torch
from torch import Tensor

from methods.pruning_representations.second_order import angular, check_temperature

# What `compare_logits` gives, and so what a column of a table means; each a number a token.
LOGIT_COLUMNS = {
    "cos_z": "cosine of the logits",
    "cos_p": "cosine of the probabilities",
    "kl": "KL(dense || changed), nats",
    "kl_reverse": "KL(changed || dense), nats",
    "kl_estimate": "second-order estimate of kl (theorem 3)",
    "cos_p_estimate": "second-order estimate of 1 - cos_p (theorem 2)",
    "cos_z_estimate": "second-order estimate of 1 - cos_z (theorem 1)",
    "third_order": "next term of kl's expansion: where it rivals kl_estimate, the estimate is not valid",
    "alpha_z": "<dz, z> / ||z||^2",
    "beta_z": "part of dz across z, over ||z||",
    "var_dz": "variance of dz over the vocabulary, all tokens alike",
    "rms_dz": "root mean square of dz",
}
STATE_COLUMNS = {
    "cos_h": "cosine of the states",
    "cos_h_estimate": "second-order estimate of 1 - cos_h (theorem 1)",
    "cos_h_corrected": "the same with the part along h",
    "alpha_h": "<dh, h> / ||h||^2",
    "beta_h": "part of dh across h, over ||h||",
}


def compare_states(h: Tensor, h2: Tensor) -> dict[str, Tensor]:
    """The columns `STATE_COLUMNS` of states [tokens, width], each [tokens]."""
    parts = angular(h, h2)
    return {
        "cos_h": parts.cosine,
        "cos_h_estimate": parts.first,
        "cos_h_corrected": parts.corrected,
        "alpha_h": parts.alpha,
        "beta_h": parts.beta,
    }


def compare_logits(z: Tensor, z2: Tensor, T: float = 1.0) -> dict[str, Tensor]:
    """The columns `LOGIT_COLUMNS` of logits [tokens, vocabulary], each [tokens], computed in at least float32.

    The functions of `second_order` give the same one by one; here the softmaxes are computed once.
    """
    check_temperature(T)
    z, z2 = (
        z.to(torch.promote_types(z.dtype, torch.float32)),
        z2.to(torch.promote_types(z2.dtype, torch.float32)),
    )
    dz = z2 - z
    logp, logq = (z / T).log_softmax(-1), (z2 / T).log_softmax(-1)
    p, q = logp.exp(), logq.exp()
    difference, gap = logp - logq, q - p
    forward = (p * difference + gap).sum(-1)
    backward = (-q * difference - gap).sum(-1)
    norm_p, norm_q = p.square().sum(-1), q.square().sum(-1)
    cos_p = (p * q).sum(-1) / (norm_p * norm_q).sqrt()
    del logp, logq, q, difference, gap
    centred = dz - (p * dz).sum(-1, keepdim=True)
    squared = centred.square()
    variance = (p * squared).sum(-1)
    third = (p * squared * centred).sum(-1)
    # Weights p^2 / ||p||^2; the variance is the same about any centre but for the mean's own square.
    weights = p.square_().div_(norm_p[:, None])
    shift = (weights * centred).sum(-1)
    variance_r = (weights * squared).sum(-1) - shift.square()
    parts = angular(z, z2)
    return {
        "cos_z": parts.cosine,
        "cos_p": cos_p,
        "kl": forward,
        "kl_reverse": backward,
        "kl_estimate": variance / (2 * T * T),
        "cos_p_estimate": variance_r / (2 * T * T),
        "cos_z_estimate": parts.first,
        "third_order": third / (6 * T**3),
        "alpha_z": parts.alpha,
        "beta_z": parts.beta,
        "var_dz": dz.var(-1, correction=0),
        "rms_dz": dz.square().mean(-1).sqrt(),
    }


def compare_top(z: Tensor, z2: Tensor, T: float = 1.0) -> dict[str, Tensor]:
    """What the change does to the dense model's most probable tokens, each [tokens].

    `top5_variance`, `top10_variance`: of dz among them, all alike; `top5_l1`, `top5_l2`: distance of their
    probabilities.
    """
    z, z2 = z.float(), z2.float()
    _, order = z.topk(min(10, z.shape[-1]), -1)
    dz = (z2 - z).gather(-1, order)
    five = order[..., :5]
    p, q = ((values / T).softmax(-1).gather(-1, five) for values in (z, z2))
    return {
        "top5_variance": dz[..., :5].var(-1, correction=0),
        "top10_variance": dz.var(-1, correction=0),
        "top5_l1": (p - q).abs().sum(-1),
        "top5_l2": (p - q).square().sum(-1).sqrt(),
    }
