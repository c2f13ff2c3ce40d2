"""How much task vectors get in each other's way (section 2.4).

For experts i < j, over all coordinates k of the merged tensors:
    cosine                    <tau_i, tau_j> / (||tau_i|| ||tau_j||)
    sign conflict             #{k: tau_ik tau_jk < 0} / #{k: tau_ik tau_jk != 0}
    weighted sign conflict    sum_k m_k [tau_ik tau_jk < 0] / sum_k m_k, m_k = min(|tau_ik|, |tau_jk|)
and for all together
    keep rate                 sum_k |sum_t tau_tk| / sum_k sum_t |tau_tk|
A quotient without a denominator (zero vectors) is 0; the keep rate of nothing is 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from methods.common.errors import ConfigError
from methods.merge_early_stop.adapters import inner_product
from methods.merge_early_stop.operators import InMemory, StateDict, TaskVectors


@dataclass(frozen=True)
class Interference:
    """What `interference` found among T experts, float64.

    `norms` [T]; `cosine`, `sign_conflict`, `weighted_sign_conflict` [T, T] symmetric; `keep_rate` in [0, 1].
    """

    experts: tuple[str, ...]
    norms: Tensor
    cosine: Tensor
    sign_conflict: Tensor
    weighted_sign_conflict: Tensor
    keep_rate: float

    def means(self) -> dict[str, float]:
        """Means over the pairs i < j (0 for a single expert), the mean norm, and the keep rate."""
        rows, columns = torch.triu_indices(len(self.experts), len(self.experts), 1)

        def mean(matrix: Tensor) -> float:
            return float(matrix[rows, columns].mean()) if len(rows) else 0.0

        return {
            "norm": float(self.norms.mean()), "cosine": mean(self.cosine), "sign_conflict": mean(self.sign_conflict),
            "weighted_sign_conflict": mean(self.weighted_sign_conflict), "keep_rate": self.keep_rate,
        }  # fmt: skip


def interference(taus: Sequence[StateDict] | TaskVectors, names: Sequence[str] | None = None) -> Interference:
    """The metrics of task vectors held in memory or streamed.

    Errors: `ConfigError` for no expert or differing shapes.
    """
    stream: TaskVectors = InMemory(taus, names) if isinstance(taus, Sequence) else taus
    count = len(stream.experts)
    if not count:
        raise ConfigError("the list of experts is empty; give at least one")
    gram = torch.zeros(count, count, dtype=torch.float64)
    opposite, both, weight, against = (torch.zeros(count, count, dtype=torch.float64) for _ in range(4))
    kept = total = 0.0
    for name in stream.names:
        for piece in stream.pieces(name):
            wide = piece.double()
            gram += wide @ wide.T
            size = piece.abs()
            kept += float(wide.sum(dim=0).abs().sum())
            total += float(size.sum(dtype=torch.float64))
            sign = piece.sign()
            for i, j in combinations(range(count), 2):
                smaller = torch.minimum(size[i], size[j])
                conflict = sign[i] * sign[j] < 0
                opposite[i, j] += float(conflict.sum())
                both[i, j] += float((smaller > 0).sum())
                weight[i, j] += float(smaller.sum(dtype=torch.float64))
                against[i, j] += float(smaller[conflict].sum(dtype=torch.float64))
    norms = gram.diagonal().sqrt()
    scale = norms[:, None] * norms[None]
    cosine = torch.where(scale > 0, gram / scale.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
    return Interference(
        tuple(stream.experts), norms, cosine.clamp(-1, 1), _symmetric(opposite, both), _symmetric(against, weight),
        kept / total if total else 1.0,
    )  # fmt: skip


def _symmetric(top: Tensor, bottom: Tensor) -> Tensor:
    ratio = torch.where(bottom > 0, top / bottom.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
    return ratio + ratio.T


def increments(late: Sequence[StateDict], early: Sequence[StateDict]) -> list[dict[str, Tensor]]:
    """tau_t(s2) - tau_t(s1) of each expert: what the steps between s1 and s2 did."""
    if len(late) != len(early):
        raise ConfigError(f"{len(late)} late and {len(early)} early task vectors; give the same experts")
    return [{n: b[n] - a[n] for n in b} for a, b in zip(early, late, strict=True)]


def lora_gram(adapters: Sequence[Mapping[str, tuple[Tensor, Tensor, float]]]) -> Tensor:
    """Inner products `[T, T]` of LoRA task vectors without ever forming them (float64).

    `adapters[t][module] = (B [out, r], A [r, in], s)`; modules that one of the two lacks contribute nothing.
    Per module <dW_i, dW_j> = s_i s_j tr((B_i^T B_j)(A_j A_i^T)).
    """
    count = len(adapters)
    gram = torch.zeros(count, count, dtype=torch.float64)
    for i in range(count):
        for j in range(i, count):
            for module in adapters[i].keys() & adapters[j].keys():
                (b1, a1, s1), (b2, a2, s2) = adapters[i][module], adapters[j][module]
                gram[i, j] += inner_product((b1.double(), a1.double(), s1), (b2.double(), a2.double(), s2))
            gram[j, i] = gram[i, j]
    return gram


def lora_cosine(adapters: Sequence[Mapping[str, tuple[Tensor, Tensor, float]]]) -> Tensor:
    """Cosines `[T, T]` of LoRA task vectors; 0 with a zero vector."""
    gram = lora_gram(adapters)
    norms = gram.diagonal().sqrt()
    scale = norms[:, None] * norms[None]
    return torch.where(scale > 0, gram / scale.clamp_min(torch.finfo(torch.float64).tiny), 0.0).clamp(-1, 1)
