"""The residual block of every scheme, around any attention and any feed-forward module.

Notation: X enters block l of L, A is the attention, F the feed-forward module, N a norm with a gain of its own each
time it is written.

    span       Y = N(X + A(a)),  X' = N(X + F(Y));   a = X, in the first block a = N(X)
    aggregate  Y = N(X + A(a)),  X' = N(X + A(a) + F(Y));  another reading of the abstract, for ablation only
    prenorm    Y = X + A(N X),   X' = Y + F(N Y)
    postnorm   Y = N(X + A X),   X' = N(Y + F Y)
    deepnorm   Y = N(c X + A X), X' = N(c Y + F Y);  c = (2 L)^(1/4)
    sandwich   Y = X + N(A(N X)), X' = Y + N(F(N Y))
    lns        prenorm with each norm's output times 1 / sqrt(l + 1)
    hybrid     Y = N(X + A X), X' = Y + F(Y);  A norms queries, keys and values of each head
    siamese    two streams P and U, for A and then F: O = G(N(P + N U)), P' = N(P + O / sqrt(l + 1)), U' = U + O;
               the last block returns P + N(U)

The skip of F in `span` is X, the block's input: with Y it would be PostNorm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from methods.common.errors import ConfigError
from methods.span_norm.schemes import block_rule, deepnorm_alpha

Span = Literal["ffn", "aggregate"]
_HALF = (torch.float16, torch.bfloat16)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * gain over the last dimension; the statistics of half precision are float32.

    Args:
        dim: size of the last dimension.
        eps: inside the root.
    """

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype in _HALF or self.weight.dtype in _HALF:
            normed = functional.rms_norm(x.float(), x.shape[-1:], None, self.eps)
            return (normed * self.weight.float()).to(self.weight.dtype)
        return functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.eps}"


class LayerNorm(nn.LayerNorm):
    """torch's layer norm, with float32 statistics in half precision."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype in _HALF or self.weight.dtype in _HALF:
            normed = functional.layer_norm(
                x.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps
            )
            return normed.to(self.weight.dtype)
        return super().forward(x)


def residual_sum(x: Tensor, branch: Tensor) -> Tensor:
    """x + branch; the sum of half-precision tensors is kept in float32, so that depth does not round it away."""
    if x.dtype in _HALF or branch.dtype in _HALF:
        return x.float() + branch.float()
    return x + branch


class NormResidualBlock(nn.Module):
    """One block: attention and feed-forward module, with norms placed by a scheme.

    Args:
        attn: called with the (normed) state first and the block's keywords; returns a tensor, or a tuple that
            begins with it.
        ffn: maps a tensor to one of its shape.
        dim: width of the state.
        scheme: a name of `methods.span_norm.SCHEMES`.
        layer_idx: place of this block, from 0.
        num_layers: how many blocks the model has.
        norm: makes a norm of width `dim`.
        span: what `span` spans: `ffn` as in the paper, or `aggregate` for ablation.
        first_block_input_norm: norm the first attention's input (its skip stays raw).
        mix_share: share of the blocks, from the first, that Mix-LN makes PostNorm.

    Shapes: (..., tokens, dim) to the same; `siamese` passes (..., tokens, 2 dim) between its blocks.

    Raises:
        ConfigError: unknown scheme, `num_layers` or `dim` below 1, `layer_idx` outside of the layers, a `norm` that
            cannot be called, or a `mix_share` that is no share.
    """

    def __init__(
        self,
        attn: nn.Module,
        ffn: nn.Module,
        dim: int,
        scheme: str = "span",
        layer_idx: int = 0,
        num_layers: int = 1,
        norm: Callable[[int], nn.Module] = RMSNorm,
        *,
        span: Span = "ffn",
        first_block_input_norm: bool = True,
        mix_share: float = 0.25,
    ) -> None:
        super().__init__()
        for field, value in (("num_layers", num_layers), ("dim", dim)):
            if value < 1:
                raise ConfigError(f"{field}={value}: give at least 1")
        if not callable(norm):
            raise ConfigError(
                f"norm={norm!r}: give what makes a norm of a width, e.g. RMSNorm or nn.LayerNorm"
            )
        if not 0 <= layer_idx < num_layers:
            raise ConfigError(f"layer_idx={layer_idx}: give 0 to {num_layers - 1}")
        if span not in ("ffn", "aggregate"):
            raise ConfigError(f"span={span!r}: choose 'ffn' or 'aggregate'")
        self.rule = block_rule(scheme, layer_idx, num_layers, mix_share)
        if self.rule == "span" and span == "aggregate":
            self.rule = "aggregate"
        self.num_layers = num_layers
        self.residual_init: str | float = "none"  # what `apply_residual_init` did to it
        self.first, self.last, self.dim = layer_idx == 0, layer_idx == num_layers - 1, dim
        self.skip_scale = deepnorm_alpha(num_layers)
        self.depth_scale = 1 / math.sqrt(layer_idx + 1)
        self.self_attn, self.mlp = attn, ffn
        self.attn_norm = norm(dim)
        if self.rule != "hybrid":
            self.ffn_norm = norm(dim)
        if self.rule in ("span", "aggregate") and self.first and first_block_input_norm:
            self.input_norm = norm(dim)
        if self.rule == "sandwich":
            self.attn_out_norm, self.ffn_out_norm = norm(dim), norm(dim)
        if self.rule == "siamese":
            self.attn_in_norm, self.attn_stream_norm = norm(dim), norm(dim)
            self.ffn_in_norm, self.ffn_stream_norm = norm(dim), norm(dim)
            if self.last:
                self.out_norm = norm(dim)

    def forward(self, hidden_states: Tensor, **attn_arguments: Any) -> Tensor:
        """X' of X; the keywords go to the attention."""
        apply: Callable[..., Tensor] = getattr(self, f"_{self.rule}")
        return apply(hidden_states, attn_arguments)

    def _attend(self, x: Tensor, arguments: dict[str, Any]) -> Tensor:
        out = self.self_attn(x, **arguments)
        return out[0] if isinstance(out, tuple) else out

    def _span(self, x: Tensor, arguments: dict[str, Any]) -> Tensor:
        a = self.input_norm(x) if hasattr(self, "input_norm") else x
        y = self.attn_norm(residual_sum(x, self._attend(a, arguments)))
        return self.ffn_norm(residual_sum(x, self.mlp(y)))  # the skip is x, not y

    def _aggregate(self, x: Tensor, arguments: dict[str, Any]) -> Tensor:
        a = self.input_norm(x) if hasattr(self, "input_norm") else x
        gathered = residual_sum(x, self._attend(a, arguments))
        return self.ffn_norm(residual_sum(gathered, self.mlp(self.attn_norm(gathered))))

    def _prenorm(self, x: Tensor, arguments: dict[str, Any]) -> Tensor:
        y = residual_sum(x, self._attend(self.attn_norm(x), arguments))
        return residual_sum(y, self.mlp(self.ffn_norm(y)))

    def _lns(self, x: Tensor, arguments: dict[str, Any]) -> Tensor:
        y = residual_sum(x, self._attend(self.attn_norm(x) * self.depth_scale, arguments))
        return residual_sum(y, self.mlp(self.ffn_norm(y) * self.depth_scale))

    def _postnorm(self, x: Tensor, arguments: dict[str, Any]) -> Tensor:
        y = self.attn_norm(residual_sum(x, self._attend(x, arguments)))
        return self.ffn_norm(residual_sum(y, self.mlp(y)))

    def _deepnorm(self, x: Tensor, arguments: dict[str, Any]) -> Tensor:
        y = self.attn_norm(residual_sum(self.skip_scale * x, self._attend(x, arguments)))
        return self.ffn_norm(residual_sum(self.skip_scale * y, self.mlp(y)))

    def _sandwich(self, x: Tensor, arguments: dict[str, Any]) -> Tensor:
        y = residual_sum(x, self.attn_out_norm(self._attend(self.attn_norm(x), arguments)))
        return residual_sum(y, self.ffn_out_norm(self.mlp(self.ffn_norm(y))))

    def _hybrid(self, x: Tensor, arguments: dict[str, Any]) -> Tensor:
        y = self.attn_norm(
            residual_sum(x, self._attend(x.to(next(self.attn_norm.parameters()).dtype), arguments))
        )
        return residual_sum(y, self.mlp(y))

    def _hybrid_first(self, x: Tensor, arguments: dict[str, Any]) -> Tensor:
        """HybridNorm*: the first block norms what its attention reads, and its feed-forward skip is not normed."""
        y = residual_sum(x, self._attend(self.attn_norm(x), arguments))
        return residual_sum(y, self.mlp(self.ffn_norm(y)))

    def _siamese(self, x: Tensor, arguments: dict[str, Any]) -> Tensor:
        p, u = (x, x) if self.first else x.split(self.dim, dim=-1)
        out = self._attend(self.attn_in_norm(residual_sum(p, self.attn_stream_norm(u))), arguments)
        p, u = self.attn_norm(residual_sum(p, out * self.depth_scale)), residual_sum(u, out)
        out = self.mlp(self.ffn_in_norm(residual_sum(p, self.ffn_stream_norm(u))))
        p, u = self.ffn_norm(residual_sum(p, out * self.depth_scale)), residual_sum(u, out)
        if self.last:
            return residual_sum(p, self.out_norm(u))
        return torch.cat((p.to(u.dtype), u), dim=-1)
