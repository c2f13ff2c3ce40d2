"""The model as a citizen of transformers: cache, folders, Auto classes, checkpointing, half precision, PEFT."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

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


def test_checkpointing_that_would_not_train_the_routers_is_refused() -> None:
    made = model("span", 2, num_experts=2).train()
    made.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ConfigError, match="use_reentrant=False"):
        made(ids(), labels=ids())
    made.eval()(ids(), labels=ids())


@pytest.mark.parametrize("scheme", ["span", "hybrid", "siamese"])
def test_a_batch_with_padding_on_the_left_generates_what_its_rows_do(scheme: str) -> None:
    made = with_random_gains(model(scheme, 3, num_key_value_heads=2, pad_token_id=0))
    short, long = ids(1, 5, seed=3), ids(1, 9, seed=4)
    batch = torch.cat((torch.cat((torch.zeros(1, 4, dtype=torch.long), short), dim=1), long))
    mask = torch.tensor([[0] * 4 + [1] * 5, [1] * 9])
    together = made.generate(batch, attention_mask=mask, max_new_tokens=16, do_sample=False)
    for row, alone in zip(together, (short, long), strict=True):
        wanted = made.generate(
            alone, attention_mask=torch.ones_like(alone), max_new_tokens=16, do_sample=False
        )
        assert torch.equal(row[9:], wanted[0, alone.shape[1] :])
    for cached in (True, False):
        beams = made.generate(long, max_new_tokens=8, num_beams=3, do_sample=False, use_cache=cached)
        assert torch.equal(beams, made.generate(long, max_new_tokens=8, num_beams=3, do_sample=False))


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
                assert made(ids(2, 0)).logits.shape == (2, 0, 64)


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
    changed = SpanNormForCausalLM.from_pretrained(tmp_path / "pre", norm_scheme="span", allow_mismatch=True)
    assert changed.config.final_norm is False  # what follows from the scheme follows it
    same = SpanNormForCausalLM.from_pretrained(tmp_path / "pre", norm_scheme="prenorm")
    assert same.config.norm_scheme == "prenorm"


def test_llama_weights_keep_their_gains(llama: Path, tmp_path: Path) -> None:
    """Norms have other names there: a gain left at 1 would be another function, without a word."""
    theirs = LlamaForCausalLM.from_pretrained(llama)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.ndim == 1:
                parameter.mul_(
                    1 + 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7))
                )
                assert "norm" in name
        wanted = theirs.eval()(ids()).logits
    theirs.save_pretrained(llama)
    mine, report = SpanNormForCausalLM.from_pretrained(llama, norm_scheme="prenorm", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        assert (mine.eval()(ids()).logits - wanted).abs().max() <= 1e-5
    other = SpanNormForCausalLM.from_pretrained(
        llama, norm_scheme="prenorm", rms_norm_eps=1e-5, dtype=torch.float32
    )
    assert (other.config.final_norm, other.config.rms_norm_eps) == (True, 1e-5)
    mine.save_pretrained(tmp_path / "mine")  # under this model's own names
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "mine")
    with torch.no_grad():
        assert torch.equal(again(ids()).logits, mine(ids()).logits)


def test_weights_of_other_architectures_are_refused(tmp_path: Path) -> None:
    from transformers import Qwen2Config

    Qwen2Config(hidden_size=64, num_attention_heads=4).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"those of a qwen2 model.*allow_mismatch=True"):
        SpanNormForCausalLM.from_pretrained(tmp_path, norm_scheme="prenorm")
    with pytest.raises(ConfigError, match="config=Qwen2Config: give a LlamaConfig"):
        from_llama_config(Qwen2Config())


def test_the_auto_class_of_the_bare_model(tmp_path: Path) -> None:
    made = model("span", 2)
    made.save_pretrained(tmp_path)
    bare = AutoModel.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(bare(ids()).last_hidden_state, made.model(ids()).last_hidden_state)
    with pytest.raises(ConfigError, match="norm_scheme='prenorm'"):
        AutoModel.from_pretrained(tmp_path, norm_scheme="prenorm")


def test_another_scheme_of_a_configuration_brings_its_own_start_and_final_norm() -> None:
    made = from_llama_config(config("prenorm", 3), "span")
    assert (made.final_norm, made.residual_init) == (False, "inv_sqrt_depth")
    kept = from_llama_config(config("prenorm", 3, residual_init=0.5), "prenorm", vocab_size=70)
    assert (kept.final_norm, kept.residual_init, kept.vocab_size) == (True, 0.5, 70)


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
        ({"num_hidden_layers": 0}, "num_hidden_layers=0: give a whole number, at least 1"),
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
        ({"mix_share": float("nan")}, "mix_share=nan"),
        ({"mup_base_width": 0}, "mup_base_width=0"),
        ({"mup_base_width": 1.5}, "mup_base_width=1.5: give a whole number"),
        ({"vocab_size": 0}, "vocab_size=0: give a whole number, at least 1"),
        ({"hidden_size": -64}, "hidden_size=-64"),
        ({"hidden_size": 20}, "num_attention_heads=4: makes heads of size 5.*even one"),
        ({"head_dim": 0}, "makes heads of size 0"),
        ({"intermediate_size": 0}, "intermediate_size=0"),
        ({"num_experts": -1}, "num_experts=-1: give 0 for a dense model"),
        ({"shared_expert": True}, "shared_expert=True: needs experts"),
        ({"moe_variance_match": True}, "moe_variance_match=True: needs experts"),
        ({"router_aux_loss_coef": -1.0}, "router_aux_loss_coef=-1.0: give a number at least 0"),
        ({"router_z_loss_coef": float("nan")}, "router_z_loss_coef=nan"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps=0.0: give a small number above 0"),
        ({"initializer_range": 0.0, "init": "gpt"}, "initializer_range=0.0"),
        ({"attention_dropout": 2.0}, "attention_dropout=2.0: give a number between 0 and 1"),
        ({"hidden_act": "step"}, "hidden_act='step': choose one of"),
        ({"final_norm": "no"}, "final_norm='no': give True or False"),
        ({"first_block_input_norm": 1}, "first_block_input_norm=1: give True or False"),
        ({"span": "aggregate", "scheme": "prenorm"}, "span='aggregate': is a variant of norm_scheme='span'"),
        ({"norm_schema": "prenorm"}, "norm_schema is not a setting; did you mean norm_scheme"),
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
