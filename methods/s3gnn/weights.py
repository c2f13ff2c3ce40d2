"""Weight matrices under a stability constraint: the paper's antisymmetric one and those it is compared with."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from methods.common.checks import check_choice, check_number, check_whole

Constraint = Literal[
    "antisymmetric", "identity", "orthogonal", "orthogonal_ste", "cayley", "doubly_stochastic"
]
SINKHORN_STEPS = 30


class ConstrainedWeight(nn.Module):
    """A `[d, d]` matrix What made of free parameters at each call.

    antisymmetric: What = U - U^T - g I with U strictly upper triangular (d(d-1)/2 parameters, all that is stored).
    identity: the free matrix. orthogonal: Q of its QR decomposition. orthogonal_ste: Q, with the gradient passed
    straight to the free matrix. cayley: (I + S)^-1 (I - S) with S antisymmetric. doubly_stochastic: Sinkhorn steps on
    exp(W), so that rows and columns sum to 1.

    Args:
        channels: d.
        constraint: one of those.
        dissipation: g >= 0 of the antisymmetric one.

    Raises:
        ConfigError: naming the setting.
    """

    upper: Tensor | None

    def __init__(
        self, channels: int, constraint: Constraint = "antisymmetric", dissipation: float = 0.05
    ) -> None:
        super().__init__()
        check_whole("channels", channels, 1)
        check_choice("weight_param", constraint, Constraint)
        check_number("dissipation", dissipation, least=0)
        self.channels, self.constraint, self.dissipation = channels, constraint, dissipation
        free = channels * (channels - 1) // 2 if self.is_skew else channels * channels
        self.free = nn.Parameter(torch.empty(free))
        self.register_buffer(
            "upper", torch.triu_indices(channels, channels, 1) if self.is_skew else None, persistent=False
        )
        self.reset_parameters()

    @property
    def is_skew(self) -> bool:
        """Whether only a strict upper triangle is stored."""
        return self.constraint in ("antisymmetric", "cayley")

    def reset_parameters(self) -> None:
        """Glorot's uniform law of a `[d, d]` matrix."""
        bound = math.sqrt(3.0 / self.channels)
        nn.init.uniform_(self.free, -bound, bound)

    def forward(self) -> Tensor:
        """What `[d, d]`; it acts on row vectors as x What^T."""
        if self.upper is None:
            free = self.free.view(self.channels, self.channels)
            return {
                "identity": lambda: free,
                "orthogonal": lambda: _q(free),
                "orthogonal_ste": lambda: free + (_q(free) - free).detach(),
                "doubly_stochastic": lambda: _sinkhorn(free),
            }[self.constraint]()
        rows, columns = self.upper
        skew = self.free.new_zeros(self.channels, self.channels).index_put((rows, columns), self.free)
        skew = skew - skew.T
        eye = torch.eye(self.channels, dtype=skew.dtype, device=skew.device)
        if self.constraint == "cayley":
            return torch.linalg.solve(eye + skew, eye - skew)
        return skew - self.dissipation * eye

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.constraint}"


def _q(matrix: Tensor) -> Tensor:
    q, r = torch.linalg.qr(matrix)
    return q * torch.where(torch.diagonal(r) < 0, -1.0, 1.0).to(
        q.dtype
    )  # the one with a positive diagonal of R


def _sinkhorn(matrix: Tensor) -> Tensor:
    logits = matrix
    for _ in range(SINKHORN_STEPS):
        logits = logits - logits.logsumexp(1, keepdim=True)
        logits = logits - logits.logsumexp(0, keepdim=True)
    return logits.exp()
