"""The configuration of a SpanNorm language model; importing it imports transformers."""

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig

from methods.common.errors import ConfigError
from methods.span_norm.schemes import SCHEMES, canonical, residual_factor

# What decides which function the weights compute: weights of one value are no weights of another.
FUNCTION = (
    "norm_scheme",
    "span",
    "first_block_input_norm",
    "final_norm",
    "norm",
    "mix_share",
    "mup_base_width",
)


@strict
class SpanNormConfig(LlamaConfig):
    """A Llama configuration with the norm placement as a setting.

    Args (beside LlamaConfig's):
        norm_scheme: span, prenorm, postnorm, deepnorm, sandwich (or peri), mix_ln, lns, hybrid, hybrid_star, siamese.
        residual_init: factor on W_O and W_down at the start: inv_sqrt_depth (1 / sqrt(L)), inv_sqrt_2depth, inv_depth,
            deepnorm, none, or a number above 0. None takes what the scheme's authors use (span: inv_sqrt_depth).
        init: `fan_in`, N(0, 1 / fan_in) for matrices, N(0, 1) for embeddings, N(0, 1 / d) for the head; or `gpt`,
            N(0, initializer_range^2) for all. At small widths `gpt` makes every branch tiny (at d = 64 and 0.02 its
            gain is 0.16) and hides the difference between the schemes.
        span: `ffn` as in the paper, or `aggregate`, another reading of the abstract, for ablation only.
        first_block_input_norm: norm the first attention's input (`span`).
        final_norm: a norm before the head. None: as the scheme has it (none for span, postnorm, deepnorm, hybrid).
        norm: `rmsnorm` or `layernorm`; eps is `rms_norm_eps`.
        mix_share: share of the blocks, from the first, that `mix_ln` makes PostNorm.
        mup_base_width: width at which the learning rate was tuned. Wider models then take the rate of hidden matrices
            times base / width (`parameter_groups`) and logits times base / width. None turns the rule off.
        num_experts: 0 for a dense model, else the experts of each feed-forward layer.
        num_experts_per_tok: experts that a token visits; their gates sum to 1.
        shared_expert: one more expert that every token visits.
        moe_variance_match: divide the experts' sum by the root of E[sum g^2], measured on one batch by
            `match_moe_variance`.
        router_aux_loss_coef: of the load-balancing loss (Switch form).
        router_z_loss_coef: of the mean squared log-partition of the router.

    Raises:
        ConfigError (a ValueError): naming the field, its value and what would be right.
    """

    model_type = "spannorm"
    base_model_tp_plan = None  # type: ignore[assignment]
    base_model_pp_plan = None  # type: ignore[assignment]

    norm_scheme: str = "span"
    residual_init: str | float | int | None = None
    init: str = "fan_in"
    span: str = "ffn"
    first_block_input_norm: bool = True
    final_norm: bool | None = None
    norm: str = "rmsnorm"
    mix_share: float | int = 0.25
    mup_base_width: int | None = None
    num_experts: int = 0
    num_experts_per_tok: int = 2
    shared_expert: bool = False
    moe_variance_match: bool = False
    router_aux_loss_coef: float | int = 0.01
    router_z_loss_coef: float | int = 0.001
    output_router_logits: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        self.norm_scheme = canonical(self.norm_scheme)
        scheme = SCHEMES[self.norm_scheme]
        if self.residual_init is None:
            self.residual_init = scheme.residual_init
        if self.final_norm is None:
            self.final_norm = scheme.final_norm
        self._check()
        super().__post_init__(**kwargs)

    def _check(self) -> None:
        residual_factor(self.residual_init, self.num_hidden_layers)  # type: ignore[arg-type]
        choices = {"init": ("fan_in", "gpt"), "span": ("ffn", "aggregate"), "norm": ("rmsnorm", "layernorm")}
        for field, allowed in choices.items():
            if getattr(self, field) not in allowed:
                raise ConfigError(f"{field}={getattr(self, field)!r}: choose one of {', '.join(allowed)}")
        if self.num_attention_heads < 1 or self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads}: does not divide hidden_size={self.hidden_size}; "
                "give a divisor"
            )
        groups = self.num_key_value_heads
        if groups is not None and (groups < 1 or self.num_attention_heads % groups):
            raise ConfigError(
                f"num_key_value_heads={groups}: does not divide num_attention_heads={self.num_attention_heads}; "
                "give a divisor"
            )
        if self.num_experts < 0:
            raise ConfigError(f"num_experts={self.num_experts}: give 0 for a dense model, or how many")
        if self.num_experts and not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ConfigError(
                f"num_experts_per_tok={self.num_experts_per_tok}: give 1 to num_experts={self.num_experts}"
            )
        if not 0 <= self.mix_share <= 1:
            raise ConfigError(f"mix_share={self.mix_share}: give a share between 0 and 1")
        if self.mup_base_width is not None and self.mup_base_width < 1:
            raise ConfigError(
                f"mup_base_width={self.mup_base_width}: give the width that was tuned, at least 1"
            )

    @property
    def width_factor(self) -> float:
        """Base width over width; 1 without the width rule."""
        return self.mup_base_width / self.hidden_size if self.mup_base_width else 1.0


def from_llama_config(config: LlamaConfig, norm_scheme: str = "span", **changes: Any) -> SpanNormConfig:
    """A SpanNorm configuration of the same shape as a Llama one, with a scheme.

    Args:
        config: gives widths, depth, heads, vocabulary, RoPE.
        norm_scheme: where the norms go.
        changes: further fields of SpanNormConfig.
    """
    values = config.to_dict()
    for name in ("model_type", "architectures", "transformers_version", "_name_or_path"):
        values.pop(name, None)
    return SpanNormConfig(**{**values, "norm_scheme": norm_scheme, **changes})
