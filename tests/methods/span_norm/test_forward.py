"""Each scheme's forward pass against an independent oracle, x-transformers and transformers' own Llama."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from methods.span_norm import (
    SCHEMES,
    NormResidualBlock,
    RMSNorm,
    SpanNormForCausalLM,
    from_llama_config,
    match_moe_variance,
)
from tests.methods.span_norm import oracle
from tests.methods.span_norm.tiny import ids, model, with_random_gains


def oracle_logits(made: SpanNormForCausalLM, tokens: Tensor) -> Tensor:
    values = {name: value.detach() for name, value in made.state_dict().items()}
    config = made.config.to_dict() | {"rope_theta": made.config.rope_parameters["rope_theta"]}
    if made.config.span == "aggregate":
        config["norm_scheme"] = "aggregate"
    return oracle.logits(values, config, tokens)


VARIANTS: dict[str, dict[str, Any]] = {
    "grouped heads": {"num_key_value_heads": 2},
    "experts": {"num_experts": 4},
    "shared expert, variance, three of four": {
        "num_experts": 4,
        "num_experts_per_tok": 3,
        "shared_expert": True,
        "moe_variance_match": True,
    },
    "tied embedding, width rule": {"tie_word_embeddings": True, "mup_base_width": 32},
}


def made_variant(scheme: str, layers: int, variant: str) -> SpanNormForCausalLM:
    changes = dict(VARIANTS[variant])
    if scheme == "aggregate":
        scheme, changes["span"] = "span", "aggregate"
    made = with_random_gains(model(scheme, layers, **changes))
    if changes.get("moe_variance_match"):
        match_moe_variance(made, {"input_ids": ids()})
    return made


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("scheme", [*SCHEMES, "aggregate"])
def test_forward_is_the_oracles(scheme: str, layers: int, variant: str) -> None:
    made = made_variant(scheme, layers, variant).double()
    with torch.no_grad():
        assert (made(ids()).logits - oracle_logits(made, ids())).abs().max() <= 1e-12


def rounding(made: Any, tokens: Tensor) -> float:
    """How far float32 is from float64 with the same weights, relative to the logits' size."""
    with torch.no_grad():
        single = made.float()(tokens).logits
        double = made.double()(tokens).logits
        return float((single - double).abs().max() / double.square().mean().sqrt())


def test_float32_rounds_no_more_than_transformers_llama_does() -> None:
    """The least that float32 can do: the library's own blocks, of the same sizes, are as far from their float64."""
    found = []
    for seed in range(4):
        torch.manual_seed(seed)
        shape = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 172, "num_attention_heads": 4}
        llama = LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=5, initializer_range=64**-0.5))
        found.append(rounding(llama.eval(), ids()))
    bar = 1.1 * max(found)
    assert bar < 6e-6
    for scheme in [*SCHEMES, "aggregate"]:
        assert rounding(made_variant(scheme, 5, "grouped heads"), ids()) <= bar, scheme
    assert rounding(made_variant("span", 5, "experts"), ids()) <= bar


def test_a_norm_in_the_wrong_place_would_show() -> None:
    """The comparison is not vacuous: PostNorm's equations on SpanNorm's weights are far away."""
    made = with_random_gains(model("span", 2).double())
    values = made.state_dict()
    config = made.config.to_dict() | {"rope_theta": 10000.0, "norm_scheme": "postnorm"}
    with torch.no_grad():
        assert (made(ids()).logits - oracle.logits(values, config, ids())).abs().max() > 0.05


class Zero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@pytest.mark.parametrize(("scheme", "same"), [("span", True), ("postnorm", False)])
def test_the_skip_of_the_feed_forward_is_the_blocks_input(scheme: str, same: bool) -> None:
    """With F = 0 the block is N(X), whatever the attention does; PostNorm's is not."""
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    block = NormResidualBlock(nn.Linear(16, 16), Zero(), 16, scheme, layer_idx=1, num_layers=2)
    assert torch.allclose(block(x), RMSNorm(16)(x), atol=1e-6) is same


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scheme": "middle"}, "norm_scheme='middle': choose one of"),
        ({"num_layers": 0}, "num_layers=0: give at least 1"),
        ({"dim": 0}, "dim=0: give at least 1"),
        ({"layer_idx": 2}, "layer_idx=2: give 0 to 0"),
        ({"span": "both"}, "span='both': choose"),
        ({"mix_share": 3}, "mix_share=3: give a share"),
        ({"norm": "rms"}, "norm='rms': give what makes a norm"),
    ],
)
def test_wrong_arguments_of_a_block_are_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        NormResidualBlock(**{"attn": nn.Linear(4, 4), "ffn": Zero(), "dim": 4, **changes})


def test_any_attention_and_feed_forward_module_fits() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
            return self.inner(x, x, x, key_padding_mask=key_padding_mask)

    ffn = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    x = torch.randn(2, 5, 16)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    for scheme in set(SCHEMES) - {"siamese"}:
        block = NormResidualBlock(Attention(), ffn, 16, scheme, norm=nn.LayerNorm)
        assert block(x, key_padding_mask=mask).shape == x.shape
        assert not torch.equal(block(x), block(x, key_padding_mask=mask))


# -- peers ----------------------------------------------------------------------------------------------------------

X_SCHEMES = {
    "prenorm": {},
    "postnorm": {"pre_norm": False},
    "sandwich": {"sandwich_norm": True},
    "deepnorm": {"pre_norm": False, "scale_residual": True},
}


def x_transformers(made: SpanNormForCausalLM, scheme: str) -> nn.Module:
    """The peer's decoder with the model's weights."""
    from x_transformers import Decoder

    config = made.config
    options = dict(X_SCHEMES[scheme])
    if options.pop("scale_residual", False):
        options["scale_residual_constant"] = (2 * config.num_hidden_layers) ** 0.25
    decoder = Decoder(
        dim=config.hidden_size,
        depth=config.num_hidden_layers,
        heads=config.num_attention_heads,
        attn_dim_head=config.head_dim,
        use_rmsnorm=True,
        ff_glu=True,
        ff_swish=True,
        ff_no_bias=True,
        ff_mult=config.intermediate_size / config.hidden_size,
        **options,
    ).eval()
    norms = [m for m in decoder.modules() if type(m).__name__ == "RMSNorm"]
    ours = []
    for layer in made.model.layers:
        pre, post = [layer.attn_norm, layer.ffn_norm], [layer.attn_norm, layer.ffn_norm]
        if scheme == "sandwich":
            ours += [layer.attn_norm, layer.attn_out_norm, layer.ffn_norm, layer.ffn_out_norm]
        else:
            ours += pre if scheme == "prenorm" else post
    if made.config.final_norm:
        ours.append(made.model.norm)
    assert len(norms) == len(ours)
    for theirs, mine in zip(norms, ours, strict=True):
        (gain,) = list(theirs.parameters())
        gain.data = mine.weight.data - float(theirs.unit_offset)
    attentions = [m for m in decoder.modules() if type(m).__name__ == "Attention"]
    feeds = [m for m in decoder.modules() if type(m).__name__ == "FeedForward"]
    for layer, attention, feed in zip(made.model.layers, attentions, feeds, strict=True):
        a, f = layer.self_attn, layer.mlp
        for name, weight in (
            ("to_q", a.q_proj),
            ("to_k", a.k_proj),
            ("to_v", a.v_proj),
            ("to_out", a.o_proj),
        ):
            getattr(attention, name).weight.data = weight.weight.data.clone()
        first, *_, last = [m for m in feed.modules() if isinstance(m, nn.Linear)]
        # The peer multiplies the first half by the swish of the second.
        first.weight.data = torch.cat((f.up_proj.weight.data, f.gate_proj.weight.data))
        first.bias.data.zero_()
        last.weight.data = f.down_proj.weight.data.clone()
    return decoder


class NoRotation(nn.Module):
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones(1, x.shape[1], 16), torch.zeros(1, x.shape[1], 16)


@pytest.mark.parametrize("scheme", X_SCHEMES)
def test_x_transformers_computes_the_same(scheme: str) -> None:
    made = with_random_gains(model(scheme, 3))
    peer = x_transformers(made, scheme)
    state = torch.randn(2, 10, 64, generator=torch.Generator().manual_seed(3))
    made.model.rotary_emb = NoRotation()  # the peer is built without positions
    with torch.no_grad():
        mine = made.model(inputs_embeds=state)
        assert (mine.last_hidden_state - peer(state)).abs().max() <= 1e-5


def test_prenorm_is_transformers_llama() -> None:
    torch.manual_seed(0)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=64,
            intermediate_size=172,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    ).eval()
    mine = SpanNormForCausalLM(from_llama_config(llama.config, "prenorm")).eval()
    renamed = {
        name.replace("input_layernorm", "attn_norm").replace("post_attention_layernorm", "ffn_norm"): value
        for name, value in llama.state_dict().items()
    }
    mine.load_state_dict(renamed)
    with torch.no_grad():
        assert (mine(ids()).logits - llama(ids()).logits).abs().max() <= 1e-5


def test_span_and_prenorm_have_as_many_parameters() -> None:
    counts = {s: sum(p.numel() for p in model(s, 5).parameters()) for s in ("span", "prenorm")}
    assert counts["span"] == counts["prenorm"]
