"""SpanNorm language models for transformers: its attention, RoPE, cache, masks and loss around the norm schemes.

Dense and mixture-of-experts; `generate`, `Trainer`, `save_pretrained`, the Auto classes, PEFT, gradient checkpointing
and the attention kernels work as for any other model of the library.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, LlamaConfig, PreTrainedModel, initialization
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import MoeCausalLMOutputWithPast, MoeModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, slice_logits_to_keep
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    eager_attention_forward,
)
from transformers.utils import can_return_tuple
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from methods.common.errors import ConfigError, DataError
from methods.span_norm.block import LayerNorm, NormResidualBlock, RMSNorm
from methods.span_norm.config import FUNCTION, SpanNormConfig, from_llama_config
from methods.span_norm.moe import MoE, Router, balance_loss, z_loss
from methods.span_norm.residual_init import DEEPNORM_OTHERS
from methods.span_norm.schemes import QKV_NORM, canonical, residual_factor


def make_norm(config: SpanNormConfig, dim: int | None = None) -> nn.Module:
    """A norm of the configuration's kind, of the model's width unless `dim` is given."""
    kind = RMSNorm if config.norm == "rmsnorm" else LayerNorm
    return kind(dim or config.hidden_size, eps=config.rms_norm_eps)


class QKVNormAttention(LlamaAttention):
    """Llama's attention with queries, keys and values of each head normed, as HybridNorm has it."""

    def __init__(self, config: SpanNormConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.q_norm, self.k_norm, self.v_norm = (make_norm(config, self.head_dim) for _ in range(3))

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        places = hidden_states.shape[:-1]
        shape = (*places, -1, self.head_dim)
        query = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
        key = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
        value = self.v_norm(self.v_proj(hidden_states).view(shape)).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        out, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.o_proj(out.reshape(*places, -1)), weights


class SpanNormDecoderLayer(GradientCheckpointingLayer, NormResidualBlock):
    """One block of the model."""

    def __init__(self, config: SpanNormConfig, layer_idx: int) -> None:
        attention = QKVNormAttention if config.norm_scheme in QKV_NORM else LlamaAttention
        make_ffn = functools.partial(LlamaMLP, config)
        ffn: nn.Module = make_ffn()
        if config.num_experts:
            ffn = MoE(
                config.hidden_size,
                make_ffn,
                config.num_experts,
                config.num_experts_per_tok,
                shared=config.shared_expert,
                variance_match=config.moe_variance_match,
            )
        super().__init__(
            attention(config, layer_idx),
            ffn,
            config.hidden_size,
            config.norm_scheme,
            layer_idx,
            config.num_hidden_layers,
            functools.partial(_norm_of, config),
            span=config.span,  # type: ignore[arg-type]
            first_block_input_norm=config.first_block_input_norm,
            mix_share=config.mix_share,
        )
        factors = residual_factors(config)
        for name, module in self.named_modules():
            if (factor := factors.get(name.rpartition(".")[2])) is not None:
                module.init_factor = factor


def _norm_of(config: SpanNormConfig, dim: int) -> nn.Module:
    return make_norm(config, dim)


def residual_factors(config: SpanNormConfig) -> dict[str, float]:
    """Factor of the initial standard deviation by the projection's name; absent means 1."""
    rule: Any = config.residual_init
    factor = residual_factor(rule, config.num_hidden_layers)
    others = DEEPNORM_OTHERS if rule == "deepnorm" else ()
    return dict.fromkeys(("o_proj", "down_proj", *others), factor)


class SpanNormPreTrainedModel(PreTrainedModel):
    """What the model and its head share: initialisation and what the library may ask for."""

    config_class = SpanNormConfig
    config: SpanNormConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SpanNormDecoderLayer"]  # noqa: RUF012 (the library copies it)
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {  # noqa: RUF012
        "router_logits": OutputRecorder(Router, index=0),
        "hidden_states": SpanNormDecoderLayer,
        "attentions": LlamaAttention,
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        plain = self.config.initializer_range if self.config.init == "gpt" else None
        if isinstance(module, nn.Linear):
            factor: Any = getattr(module, "init_factor", 1.0)
            initialization.normal_(module.weight, std=factor * (plain or module.in_features**-0.5))
            if module.bias is not None:
                initialization.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            tied = self.config.hidden_size**-0.5 if self.config.tie_word_embeddings else 1.0
            initialization.normal_(module.weight, std=plain or tied)
        elif isinstance(module, RMSNorm | LayerNorm):
            initialization.ones_(module.weight)
            if isinstance(module, LayerNorm):
                initialization.zeros_(module.bias)
        elif isinstance(module, MoE) and module.variance_scale is not None:
            initialization.ones_(module.variance_scale)
        else:
            super()._init_weights(module)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, source: Any, *args: Any, allow_mismatch: bool = False, **kwargs: Any
    ) -> Any:
        """As transformers has it; weights of another norm placement are refused unless `allow_mismatch`.

        A Llama folder loads with `norm_scheme="prenorm"`: its norms' gains are taken over by their names here.

        Raises:
            ConfigError: the folder's weights belong to another function than the configuration asked for.
        """
        if source is None:  # weights are given as a state dict
            return super().from_pretrained(source, *args, **kwargs)
        stored = _stored_function(source, kwargs)
        if not allow_mismatch:
            refuse_mismatch(stored, _asked_function(kwargs))
        kwargs = _with_config(source, kwargs)
        if stored.get("model_type") is None:
            return super().from_pretrained(source, *args, **kwargs)
        found = super().from_pretrained(source, *args, **{"key_mapping": LLAMA_NAMES, **kwargs})
        model = found[0] if isinstance(found, tuple) else found
        model._weight_conversions = None  # else saving would write Llama's names under this model's type
        return found


class SpanNormModel(SpanNormPreTrainedModel):
    """Embedding, blocks and, for schemes that have one, the final norm."""

    def __init__(self, config: SpanNormConfig) -> None:
        super().__init__(config)
        self.padding_idx = config.pad_token_id
        self.vocab_size = config.vocab_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(SpanNormDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = make_norm(config) if config.final_norm else nn.Identity()
        self.rotary_emb = LlamaRotaryEmbedding(config=config)
        self.gradient_checkpointing = False
        self.post_init()

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> MoeModelOutputWithPast:
        """Hidden states (batch, tokens, width) of token ids or embeddings.

        Raises:
            DataError: both or neither of ids and embeddings, or a row that is padding throughout.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise DataError("give exactly one of input_ids and inputs_embeds")
        refuse_empty_rows(attention_mask)
        hidden: Any = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if not hidden.shape[0] or not hidden.shape[1]:  # the library's attention cannot reshape nothing
            return MoeModelOutputWithPast(last_hidden_state=hidden, cache=cache)
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        if position_ids is None:
            seen = cache.get_seq_length() if cache is not None else 0
            position_ids = (torch.arange(hidden.shape[1], device=hidden.device) + seen).unsqueeze(0)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden,
            attention_mask=attention_mask,
            cache=cache,
            position_ids=position_ids,
        )
        places = self.rotary_emb(hidden, position_ids=position_ids)
        for layer in self.layers[: self.config.num_hidden_layers]:
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_embeddings=places,
                position_ids=position_ids,
                cache=cache,
                use_cache=use_cache,
                **kwargs,
            )
        return MoeModelOutputWithPast(last_hidden_state=self.norm(hidden), cache=cache)


class SpanNormForCausalLM(SpanNormPreTrainedModel, GenerationMixin):
    """A causal language model with the norm placement as a setting."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: SpanNormConfig) -> None:
        super().__init__(config)
        self.model = SpanNormModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_router_logits: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> MoeCausalLMOutputWithPast:
        """Logits (batch, tokens, vocabulary), and the loss when labels (the ids themselves, -100 left out) are given.

        A mixture of experts adds the weighted balance and z losses to it and returns the balance loss as `aux_loss`.
        """
        config = self.config
        if output_router_logits is None:
            output_router_logits = config.output_router_logits
        routed = bool(config.num_experts) and (labels is not None or output_router_logits)
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_router_logits=routed,
            **kwargs,
        )
        hidden = slice_logits_to_keep(out.last_hidden_state, logits_to_keep)
        logits = self.lm_head(hidden.to(self.lm_head.weight.dtype))
        if config.mup_base_width:
            logits = logits * config.width_factor
        loss = aux = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=config.vocab_size, **kwargs)
        if routed and out.router_logits:
            _refuse_lost_gradients(self, out.router_logits[0])
            mask = attention_mask
            if mask is not None and mask.numel() != out.router_logits[0].shape[0]:
                mask = None  # with a cache the mask covers tokens that were routed before
            aux = balance_loss(out.router_logits, config.num_experts_per_tok, mask)
            if loss is not None:
                loss = loss + config.router_aux_loss_coef * aux
                loss = loss + config.router_z_loss_coef * z_loss(out.router_logits, mask)
        return MoeCausalLMOutputWithPast(
            loss=loss,
            aux_loss=aux,
            logits=logits,
            cache=out.cache,
            hidden_states=out.hidden_states,
            attentions=out.attentions,
            router_logits=out.router_logits if output_router_logits else None,
        )


# What Llama calls the norms that stand where this model's stand in PreNorm.
LLAMA_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_WHERE = ("revision", "cache_dir", "subfolder", "local_files_only", "token")


def _stored_function(source: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What the folder's configuration says about the norms; a Llama folder is PreNorm."""
    values, _ = SpanNormConfig.get_config_dict(source, **{n: kwargs[n] for n in _WHERE if n in kwargs})
    if values.get("model_type") != "spannorm":
        return _function_of(SpanNormConfig(norm_scheme="prenorm")) | {"model_type": values.get("model_type")}
    return {name: values[name] for name in FUNCTION if name in values}


def _asked_function(kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the caller wants the weights to compute; None when nothing was said."""
    wanted = kwargs.get("config")
    asked = {name: kwargs[name] for name in FUNCTION if name in kwargs}
    if wanted is None and not asked:
        return None
    if wanted is not None:
        asked = _function_of(wanted) | asked
    if "norm_scheme" in asked and "final_norm" not in kwargs:
        asked.setdefault("final_norm", SpanNormConfig(norm_scheme=asked["norm_scheme"]).final_norm)
    return asked


def _with_config(source: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords with a configuration made for the asked function, where that is asked for by single fields.

    Set one by one on the stored configuration they would leave what follows from the scheme (its final norm) as it was.
    """
    asked = {name: kwargs[name] for name in FUNCTION if name in kwargs}
    if not asked or kwargs.get("config") is not None:
        return kwargs
    values, _ = SpanNormConfig.get_config_dict(source, **{n: kwargs[n] for n in _WHERE if n in kwargs})
    kind = SpanNormConfig if values.get("model_type") == "spannorm" else LlamaConfig
    stored: Any = kind.from_dict(values)
    # Other fields of the configuration go along: beside a whole one the library takes no single ones.
    fields = set(SpanNormConfig.__annotations__) | (set(LlamaConfig.__annotations__) - {"dtype"})
    asked |= {name: value for name, value in kwargs.items() if name in fields}
    scheme = asked.pop("norm_scheme", getattr(stored, "norm_scheme", "span"))
    rest = {name: value for name, value in kwargs.items() if name not in fields}
    return {**rest, "config": from_llama_config(stored, scheme, **asked)}


def _function_of(config: SpanNormConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in FUNCTION}


def refuse_mismatch(stored: Mapping[str, Any], asked: Mapping[str, Any] | None) -> None:
    """Weights compute the function that they were trained in.

    Raises:
        ConfigError: a stored and an asked value differ; None as `asked` means SpanNorm's defaults for foreign weights.
    """
    foreign = stored.get("model_type")
    if foreign and foreign != "llama":
        raise ConfigError(
            f"the weights are those of a {foreign} model: other blocks than the ones here; give a Llama or SpanNorm "
            "folder, or allow_mismatch=True to take what fits"
        )
    if asked is None:
        asked = {"norm_scheme": "span"} if foreign else {}
    for name, value in asked.items():
        value = canonical(value) if name == "norm_scheme" else value
        if name in stored and stored[name] != value:
            kind = f"the weights were trained with {name}={stored[name]!r}"
            if foreign:
                kind = f"{foreign} weights are PreNorm"
            raise ConfigError(
                f"{name}={value!r}: {kind}, and with another norm placement they compute another function; "
                "train on from them with allow_mismatch=True if that is wanted"
            )


def _refuse_lost_gradients(model: nn.Module, logits: Tensor) -> None:
    """Reentrant checkpointing cuts the routers' logits off: their losses would be added and train nothing."""
    routers = [module for module in model.modules() if isinstance(module, Router)]
    trained = any(router.proj.weight.requires_grad for router in routers)
    if model.training and trained and torch.is_grad_enabled() and not logits.requires_grad:
        raise ConfigError(
            "gradient_checkpointing_kwargs={'use_reentrant': True}: the experts' balance would not be trained; give "
            "use_reentrant=False"
        )


def refuse_empty_rows(attention_mask: Tensor | None) -> None:
    """Raises DataError (a ValueError) when a row of a (batch, tokens) mask is padding throughout."""
    if attention_mask is None or attention_mask.dim() != 2 or torch.compiler.is_compiling():
        return
    empty = ~attention_mask.bool().any(dim=-1)
    if bool(empty.any()):
        rows = empty.nonzero().flatten().tolist()
        raise DataError(
            f"attention_mask: row {rows[0]} is padding throughout; leave such rows out of the batch"
        )


@torch.no_grad()
def match_moe_variance(model: SpanNormForCausalLM, batch: Mapping[str, Tensor]) -> list[float]:
    """Set each layer's `variance_scale` from one batch at the start of training; the factors, by layer.

    Raises:
        ConfigError: the model has no experts, or was made without `moe_variance_match`.
    """
    layers = [module for module in model.modules() if isinstance(module, MoE)]
    if not layers or layers[0].variance_scale is None:
        raise ConfigError(
            "the model is dense or moe_variance_match is off; set num_experts and moe_variance_match=True"
        )
    for layer in layers:
        layer.calibrating = True
    try:
        # One pass: each layer measures and applies its factor before the next one reads the state.
        model(input_ids=batch["input_ids"], attention_mask=batch.get("attention_mask"), use_cache=False)
    finally:
        for layer in layers:
            layer.calibrating = False
    return [float(layer.variance_scale) for layer in layers if layer.variance_scale is not None]
