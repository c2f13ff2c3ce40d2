"""The configuration of a SpanNorm language model; importing it imports transformers."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig
from transformers.activations import ACT2FN

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


# Fields and what they take, in words; the library checks the types of its own fields only.
COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
SWITCHES = (
    "first_block_input_norm",
    "final_norm",
    "shared_expert",
    "moe_variance_match",
    "output_router_logits",
)
CHOICES = {"init": ("fan_in", "gpt"), "span": ("ffn", "aggregate"), "norm": ("rmsnorm", "layernorm")}


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
        _refuse_misspelt(kwargs)
        self.norm_scheme = canonical(self.norm_scheme)
        scheme = SCHEMES[self.norm_scheme]
        if self.residual_init is None:
            self.residual_init = scheme.residual_init
        if self.final_norm is None:
            self.final_norm = scheme.final_norm
        self._check()
        super().__post_init__(**kwargs)

    def _check(self) -> None:
        self._check_values()
        residual_factor(self.residual_init, self.num_hidden_layers)  # type: ignore[arg-type]
        self._check_heads()
        self._check_experts()
        if self.span == "aggregate" and self.norm_scheme != "span":
            raise ConfigError(
                f"span='aggregate': is a variant of norm_scheme='span', not of {self.norm_scheme!r}"
            )

    def _check_values(self) -> None:
        for field in COUNTS:
            _whole(field, getattr(self, field), least=1)
        for field in SWITCHES:
            if not isinstance(getattr(self, field), bool):
                raise ConfigError(f"{field}={getattr(self, field)!r}: give True or False")
        for field, allowed in CHOICES.items():
            if getattr(self, field) not in allowed:
                raise ConfigError(f"{field}={getattr(self, field)!r}: choose one of {', '.join(allowed)}")
        if self.mup_base_width is not None:
            _whole("mup_base_width", self.mup_base_width, least=1)
        for field in ("router_aux_loss_coef", "router_z_loss_coef"):
            _between(field, getattr(self, field), 0, math.inf)
        _between("mix_share", self.mix_share, 0, 1)
        _between("attention_dropout", self.attention_dropout, 0, 1)
        if self.hidden_act not in ACT2FN:
            raise ConfigError(f"hidden_act={self.hidden_act!r}: choose one of {', '.join(ACT2FN)}")
        if not 0 < self.rms_norm_eps < 1:
            raise ConfigError(f"rms_norm_eps={self.rms_norm_eps}: give a small number above 0, e.g. 1e-6")
        if self.init == "gpt" and not self.initializer_range > 0:
            raise ConfigError(f"initializer_range={self.initializer_range}: give a number above 0, e.g. 0.02")

    def _check_heads(self) -> None:
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        if self.head_dim is None and self.hidden_size % heads:
            raise ConfigError(
                f"num_attention_heads={heads}: does not divide hidden_size={self.hidden_size}; give a divisor"
            )
        size = self.hidden_size // heads if self.head_dim is None else self.head_dim
        if size < 2 or size % 2:
            raise ConfigError(
                f"num_attention_heads={heads}: makes heads of size {size}, and rotary positions need an even one; "
                "change it, hidden_size or head_dim"
            )
        if groups is not None and (groups < 1 or heads % groups):
            raise ConfigError(
                f"num_key_value_heads={groups}: does not divide num_attention_heads={heads}; give a divisor"
            )

    def _check_experts(self) -> None:
        _whole("num_experts", self.num_experts, least=0, remedy="0 for a dense model, or how many")
        if not self.num_experts:
            for field in ("shared_expert", "moe_variance_match"):
                if getattr(self, field):
                    raise ConfigError(f"{field}=True: needs experts; set num_experts, or leave it out")
            return
        _whole("num_experts_per_tok", self.num_experts_per_tok, least=1)
        if self.num_experts_per_tok > self.num_experts:
            raise ConfigError(
                f"num_experts_per_tok={self.num_experts_per_tok}: give 1 to num_experts={self.num_experts}"
            )

    @property
    def width_factor(self) -> float:
        """Base width over width; 1 without the width rule."""
        return self.mup_base_width / self.hidden_size if self.mup_base_width else 1.0


def _whole(field: str, value: Any, least: int, remedy: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{field}={value!r}: give {remedy or f'a whole number, at least {least}'}")


def _between(field: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        bounds = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
        raise ConfigError(f"{field}={value!r}: give a number {bounds}")


def _refuse_misspelt(others: Mapping[str, Any]) -> None:
    """The library keeps what it does not know; a misspelt setting of ours would be ignored without a word."""
    own = list(SpanNormConfig.__annotations__)
    for name in others:
        if near := difflib.get_close_matches(name, own, n=1, cutoff=0.85):
            raise ConfigError(f"{name} is not a setting; did you mean {near[0]}?")


def from_llama_config(config: LlamaConfig, norm_scheme: str = "span", **changes: Any) -> SpanNormConfig:
    """A SpanNorm configuration of the same shape as a Llama one, with a scheme.

    Args:
        config: gives widths, depth, heads, vocabulary, RoPE; of a SpanNormConfig also the rest, without what follows
            from its scheme.
        norm_scheme: where the norms go.
        changes: further fields of SpanNormConfig.

    Raises:
        ConfigError: `config` is no Llama configuration, or a field does not fit.
    """
    if not isinstance(config, LlamaConfig):
        raise ConfigError(
            f"config={type(config).__name__}: give a LlamaConfig; other models compute other blocks"
        )
    values = config.to_dict()
    dropped = ["model_type", "architectures", "transformers_version", "_name_or_path"]
    if canonical(norm_scheme) != values.get("norm_scheme"):
        dropped += ["final_norm", "residual_init", "span"]
    for name in dropped:
        values.pop(name, None)
    return SpanNormConfig(**{**values, "norm_scheme": norm_scheme, **changes})
