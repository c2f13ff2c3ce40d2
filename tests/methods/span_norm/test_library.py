"""The model as a citizen of transformers: cache, folders, Auto classes, checkpointing, half precision, PEFT."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from methods.common.errors import ConfigError, DataError
from methods.span_norm import (
    SCHEMES,
    SpanNormConfig,
    SpanNormForCausalLM,
    from_llama_config,
    parameter_groups,
)
from tests.methods.span_norm.tiny import config, ids, model, with_random_gains


@pytest.mark.parametrize("scheme", SCHEMES)
def test_generation_with_cache_is_full_recomputation(scheme: str) -> None:
    made = with_random_gains(model(scheme, 3, num_key_value_heads=2))
    start, grown = ids(2, 8), ids(2, 8)
    with torch.no_grad():
        out = made.generate(
            start, max_new_tokens=64, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        for _ in range(64):
            grown = torch.cat((grown, made(grown).logits[:, -1].argmax(-1, keepdim=True)), dim=1)
        assert torch.equal(out.sequences, grown)
        whole = made(grown).logits[:, 7:-1]
    assert (torch.stack(out.logits, dim=1) - whole).abs().max() <= 1e-5 * whole.abs().max()


def test_padding_on_the_left_changes_nothing() -> None:
    made = model("span", 3)
    row = ids(1, 6)
    padded = torch.cat((torch.zeros(1, 3, dtype=torch.long), row), dim=1)
    mask = torch.tensor([[0] * 3 + [1] * 6])
    places = torch.tensor([[0] * 3 + list(range(6))])
    with torch.no_grad():
        alone = made(row).logits
        beside = made(padded, attention_mask=mask, position_ids=places).logits[:, 3:]
    assert torch.allclose(alone, beside, atol=1e-5)


@pytest.mark.parametrize("scheme", ["span", "siamese", "hybrid_star"])
def test_save_and_load_with_the_auto_classes(scheme: str, tmp_path: Path) -> None:
    made = model(scheme, 3, residual_init=0.4)
    made.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).to_dict()["norm_scheme"] == scheme
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is SpanNormForCausalLM
    assert loaded.config.residual_init == 0.4
    for (name, mine), (other_name, other) in zip(
        made.state_dict().items(), loaded.state_dict().items(), strict=True
    ):
        assert name == other_name
        assert torch.equal(mine, other)
    with torch.no_grad():
        assert torch.equal(made(ids()).logits, loaded(ids()).logits)


@pytest.mark.parametrize("experts", [0, 2])
@pytest.mark.parametrize("scheme", ["span", "siamese"])
def test_gradient_checkpointing_gives_the_same_gradients(scheme: str, experts: int) -> None:
    made = model(scheme, 3, num_experts=experts).train()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            made.gradient_checkpointing_enable()
        made.zero_grad()
        made(ids(), labels=ids()).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None})
    assert made.model.layers[0].gradient_checkpointing
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert (gradient - gradients[1][name]).abs().max() <= 1e-6, name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_half_precision(scheme: str) -> None:
    made = model(scheme, 6)
    with torch.no_grad():
        wanted = made(ids()).logits
        with torch.autocast("cpu", torch.bfloat16):
            mixed = made(ids(), labels=ids())
        half = made.bfloat16()(ids()).logits
    assert mixed.loss.isfinite()
    assert half.dtype == torch.bfloat16
    size = wanted.square().mean().sqrt()
    for found in (mixed.logits, half):
        assert (found.float() - wanted).square().mean().sqrt() / size < 0.1


def test_half_precision_keeps_small_branches() -> None:
    """The residual sum is float32: 200 branches of 1/1000 are not rounded away from a bfloat16 stream."""
    from torch import Tensor, nn

    from methods.span_norm import NormResidualBlock

    class Small(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.full_like(x, 1e-3)

    x = torch.ones(1, 1, 8, dtype=torch.bfloat16)
    for layer in range(100):
        x = NormResidualBlock(Small(), Small(), 8, "prenorm", layer, 100).bfloat16()(x)
    assert x.mean().item() == pytest.approx(1.2, abs=0.01)


def test_one_token_and_an_empty_batch() -> None:
    for scheme in SCHEMES:
        for experts in (0, 2):
            made = model(scheme, 2, num_experts=experts)
            with torch.no_grad():
                assert made(ids(2, 1)).logits.shape == (2, 1, 64)
                assert made(ids(0, 5)).logits.shape == (0, 5, 64)


def test_hidden_states_and_attentions_can_be_asked_for() -> None:
    made = model("span", 3)
    out = made(ids(), output_hidden_states=True)
    assert len(out.hidden_states) == 4
    assert torch.equal(out.hidden_states[0], made.model.embed_tokens(ids()))
    made.set_attn_implementation("eager")
    assert len(made(ids(), output_attentions=True).attentions) == 3


def test_the_loss_learns_and_lora_fits() -> None:
    from peft import LoraConfig, get_peft_model

    made = get_peft_model(
        model("span", 2), LoraConfig(target_modules="all-linear", r=4, task_type="CAUSAL_LM")
    ).train()
    optimiser = torch.optim.AdamW((p for p in made.parameters() if p.requires_grad), lr=1e-2)
    losses = []
    for _ in range(12):
        loss = made(input_ids=ids(), labels=ids()).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5


# -- other weights --------------------------------------------------------------------------------------------------


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    shape = config("prenorm", 2)
    made = LlamaForCausalLM(
        LlamaConfig(
            **{
                name: getattr(shape, name)
                for name in (
                    "vocab_size",
                    "hidden_size",
                    "intermediate_size",
                    "num_hidden_layers",
                    "num_attention_heads",
                    "num_key_value_heads",
                    "max_position_embeddings",
                )
            }
        )
    )
    made.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_prenorm_weights_are_refused_for_another_scheme(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"llama weights are PreNorm.*another function.*allow_mismatch=True"
    ):
        SpanNormForCausalLM.from_pretrained(llama)
    model("prenorm", 2).save_pretrained(tmp_path / "pre")
    with pytest.raises(
        ConfigError, match="norm_scheme='span': the weights were trained with norm_scheme='prenorm'"
    ):
        SpanNormForCausalLM.from_pretrained(tmp_path / "pre", norm_scheme="span")
    with pytest.raises(ConfigError, match="norm_scheme='span'"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "pre", norm_scheme="span")
    with pytest.raises(ConfigError, match="norm_scheme='postnorm'"):
        SpanNormForCausalLM.from_pretrained(tmp_path / "pre", config=config("postnorm", 2))
    forced = SpanNormForCausalLM.from_pretrained(
        tmp_path / "pre", norm_scheme="span", final_norm=False, allow_mismatch=True
    )
    assert forced.config.norm_scheme == "span"
    same = SpanNormForCausalLM.from_pretrained(tmp_path / "pre", norm_scheme="prenorm")
    assert same.config.norm_scheme == "prenorm"


def test_a_llama_shape_becomes_a_span_shape() -> None:
    shape = LlamaConfig(hidden_size=96, num_hidden_layers=3, num_attention_heads=6, intermediate_size=256)
    made = from_llama_config(shape, residual_init="inv_depth")
    assert (made.hidden_size, made.num_hidden_layers, made.norm_scheme) == (96, 3, "span")
    assert made.residual_init == "inv_depth"
    assert made.model_type == "spannorm"


# -- the width rule -------------------------------------------------------------------------------------------------


def test_the_width_rule() -> None:
    plain, wide = model("span", 2), model("span", 2, mup_base_width=16)
    with torch.no_grad():
        assert torch.allclose(wide(ids()).logits, plain(ids()).logits / 4, atol=1e-6)
    groups = parameter_groups(wide, 1e-3, weight_decay=0.1)
    names = {id(p): n for n, p in wide.named_parameters()}
    for group in groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            plainly = "norm" in name or "embed" in name
            hidden = not plainly and "lm_head" not in name
            assert group["lr"] == pytest.approx(2.5e-4 if hidden else 1e-3), name
            assert group["weight_decay"] == (0.0 if plainly else 0.1), name
    assert sum(len(g["params"]) for g in groups) == len(names)
    assert {g["lr"] for g in parameter_groups(plain, 1e-3)} == {1e-3}


def test_with_the_width_rule_one_step_moves_the_logits_alike_at_every_width() -> None:
    """One Adam step changes the logits by about the same at 64 and 256; without the rule by far more at 256."""
    moved = {}
    for base in (None, 64):
        for width in (64, 256):
            made = model("span", 2, hidden_size=width, intermediate_size=2 * width, mup_base_width=base)
            optimiser = torch.optim.Adam(parameter_groups(made, 1e-2))
            before = made(ids(4, 32)).logits.detach()
            made(ids(4, 32), labels=ids(4, 32)).loss.backward()
            optimiser.step()
            after = made(ids(4, 32)).logits.detach()
            moved[base, width] = float((after - before).square().mean().sqrt())
    assert moved[64, 256] / moved[64, 64] < 0.75 * moved[None, 256] / moved[None, 64]


# -- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"norm_scheme": "middle"}, "norm_scheme='middle': choose one of span, prenorm, postnorm, deepnorm"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0: give at least 1"),
        ({"num_attention_heads": 5}, "num_attention_heads=5: does not divide hidden_size=64"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3: does not divide num_attention_heads=4"),
        ({"num_experts": 2, "num_experts_per_tok": 3}, "num_experts_per_tok=3: give 1 to num_experts=2"),
        ({"residual_init": 0.0}, "residual_init=0.0: give a number above 0"),
        ({"residual_init": -1.0}, "residual_init=-1.0"),
        ({"residual_init": "half"}, "residual_init='half': choose one of inv_sqrt_depth"),
        ({"init": "zeros"}, "init='zeros': choose one of fan_in, gpt"),
        ({"span": "both"}, "span='both': choose one of ffn, aggregate"),
        ({"norm": "batch"}, "norm='batch': choose one of rmsnorm, layernorm"),
        ({"mix_share": 1.5}, "mix_share=1.5"),
        ({"mup_base_width": 0}, "mup_base_width=0"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        config(**changes)


def test_a_row_of_padding_is_refused() -> None:
    mask = torch.tensor([[1] * 12, [0] * 12])
    with pytest.raises(DataError, match="row 1 is padding throughout"):
        model()(ids(), attention_mask=mask)
    with pytest.raises(DataError, match="exactly one of input_ids and inputs_embeds"):
        model()()


def test_peri_is_another_name_for_sandwich() -> None:
    assert config("peri").norm_scheme == "sandwich"
    assert SpanNormConfig().residual_init == "inv_sqrt_depth"


def test_compression_walks_the_blocks() -> None:
    """Called one by one the blocks give what the model gives, and every matrix in them is found."""
    from methods.common.hooks import block_calls
    from methods.common.linear_layers import linear_layers, residual_blocks

    for scheme in ("span", "siamese"):
        made = model(scheme, 3)
        names = {layer.parameter_name for layer in linear_layers(made)}
        assert names == {n for n, p in made.named_parameters() if p.ndim == 2 and ".layers." in n}
        blocks = residual_blocks(made)
        with torch.no_grad():
            hidden, calls = block_calls(made, blocks, ids())
            for block, call in zip(blocks, calls, strict=True):
                hidden = call.run(block, hidden)
            assert torch.equal(made.model.norm(hidden), made.model(ids()).last_hidden_state)
