"""SpanNorm: language models with the placement of their norms as a setting, trained from scratch.

"SpanNorm: Reconciling Training Stability and Performance in Deep Transformers", ICML 2026 (arXiv 2601.22580). One
residual spans the whole block, attention and feed-forward module, and the sum is normed:

    Y = N(X + A(X)),   X' = N(X + F(Y)),   with W_O and W_down started 1 / sqrt(L) smaller for L blocks

`NormResidualBlock` has this and nine other placements around any attention and feed-forward module;
`SpanNormForCausalLM` is a whole model that transformers' Auto classes load once `register` was called, or any name
of this package that needs transformers was used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from methods.span_norm.block import LayerNorm, NormResidualBlock, RMSNorm
from methods.span_norm.diagnose import diagnose, token_cosine
from methods.span_norm.moe import MoE, balance_loss, load_variation, z_loss
from methods.span_norm.parameter_groups import parameter_groups
from methods.span_norm.residual_init import apply_residual_init
from methods.span_norm.schemes import SCHEMES, residual_factor

if TYPE_CHECKING:
    from methods.span_norm.config import SpanNormConfig, from_llama_config
    from methods.span_norm.modeling import SpanNormForCausalLM, match_moe_variance

# These need transformers, which importing the package must not.
_LAZY = {
    "SpanNormConfig": "config",
    "from_llama_config": "config",
    "SpanNormForCausalLM": "modeling",
    "match_moe_variance": "modeling",
}


def register() -> None:
    """Teach transformers' Auto classes and the walk over blocks the type `spannorm`; a second call changes nothing."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    from methods.common.linear_layers import register_architecture
    from methods.span_norm.config import SpanNormConfig
    from methods.span_norm.modeling import SpanNormForCausalLM, SpanNormModel

    register_architecture("spannorm", "model.layers")
    AutoConfig.register("spannorm", SpanNormConfig, exist_ok=True)
    AutoModel.register(SpanNormConfig, SpanNormModel, exist_ok=True)
    AutoModelForCausalLM.register(SpanNormConfig, SpanNormForCausalLM, exist_ok=True)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    register()
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


__all__ = [
    "SCHEMES",
    "LayerNorm",
    "MoE",
    "NormResidualBlock",
    "RMSNorm",
    "SpanNormConfig",
    "SpanNormForCausalLM",
    "apply_residual_init",
    "balance_loss",
    "diagnose",
    "from_llama_config",
    "load_variation",
    "match_moe_variance",
    "parameter_groups",
    "register",
    "residual_factor",
    "token_cosine",
    "z_loss",
]
