"""The strength of an edit, heads as captured against attention written out, and what an edit may change."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.common.errors import DataError
from methods.dynasteer import HeadEdit, ResidualEdit
from methods.dynasteer.edits import edit_strength
from methods.dynasteer.forks import ForkSet
from methods.dynasteer.heads import UnknownArchitectureError, capture_heads, head_layout
from tests.methods.dynasteer.tiny import KINDS, TOKENIZER, prompts, random_edit, tiny_model

finite = st.floats(-100, 100)


@settings(max_examples=200, deadline=None)
@given(finite, finite, st.floats(0, 10), st.floats(0, 20), st.sampled_from(["raw", "sigma"]))
def test_strength_is_zero_at_the_truth_mean_and_never_reaches_alpha(
    projection: float, mu: float, sigma: float, alpha: float, unit: Any
) -> None:
    values = torch.tensor([projection, projection - 1.0, mu, mu + 1.0], dtype=torch.float64)
    eta = edit_strength(
        values, torch.tensor(mu, dtype=torch.float64), torch.tensor(sigma, dtype=torch.float64), alpha, unit
    )
    assert torch.isfinite(eta).all()
    assert eta[2] == 0
    assert eta[3] == 0
    assert eta[1] >= eta[0]
    scale = max(sigma, 1e-6) if unit == "sigma" else 1.0
    assert (eta >= 0).all()
    assert (eta <= alpha * scale).all()
    if projection >= mu:
        assert eta[0] == 0


def test_strength_is_the_equation() -> None:
    eta = edit_strength(torch.tensor(0.2), torch.tensor(0.8), torch.tensor(0.5), 3.0, "raw")
    assert float(eta) == pytest.approx(3 * np.tanh(1.2), rel=1e-6)


def test_a_head_at_the_truth_mean_stays_bit_for_bit_and_others_move_along_their_directions() -> None:
    edit = random_edit(tiny_model("llama"), patterns=1)
    d = edit.directions
    z = torch.randn(5, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z[:, 1] = d.w[1, 0] * (d.mu[1, 0] + 0.5) + z[:, 1] - (z[:, 1] @ d.w[1, 0])[:, None] * d.w[1, 0]
    moved = edit.edited(z)
    assert torch.equal(moved[:, 1], z[:, 1])
    steps = moved - z
    along = torch.einsum("nkd,kd->nk", steps, d.w[:, 0])
    torch.testing.assert_close(steps, along[..., None] * d.w[:, 0])
    torch.testing.assert_close(along, edit.strength(z)[..., 0])


def test_nearest_adds_only_the_pattern_that_asks_for_most() -> None:
    summed = random_edit(tiny_model("llama"), patterns=3)
    nearest = HeadEdit(summed.directions, summed.alpha, cluster="nearest")
    z = torch.randn(20, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    every, one = summed.strength(z), nearest.strength(z)
    assert ((one > 0).sum(-1) <= 1).all()
    torch.testing.assert_close(one.amax(-1), every.amax(-1))


@pytest.mark.parametrize("kind", KINDS)
def test_captured_heads_are_attention_written_out(kind: str) -> None:
    model = tiny_model(kind)
    layout = head_layout(model)
    sets = [ForkSet(0, 1, 0.0, prompt, [[7, 3], [8, 9, 3]], [2, 0], 2) for prompt in prompts(3)]
    found = capture_heads(model, TOKENIZER, sets, batch_size=4, hidden=True)
    for i, (prefix, fork) in enumerate((s.prefix, fork) for s in sets for fork in s.forks):
        out = model(torch.tensor([prefix + fork]), output_attentions=True, output_hidden_states=True)
        for layer in range(2):
            hidden = out.hidden_states[layer]
            if kind == "gpt2":
                block = model.transformer.h[layer]
                values = block.attn.c_attn(block.ln_1(hidden)).chunk(3, -1)[2].unflatten(-1, (4, -1))
            else:
                block = model.model.layers[layer]
                values = block.self_attn.v_proj(block.input_layernorm(hidden)).unflatten(-1, (2, -1))
                values = values.repeat_interleave(2, dim=2)  # query heads 2k and 2k + 1 share values
            z = torch.einsum("hs,shd->hd", out.attentions[layer][0, :, -1], values[0])
            torch.testing.assert_close(found.z[i, layer].double(), z, atol=1e-5, rtol=1e-5)
            if layer == 0:
                torch.testing.assert_close(
                    found.hidden[i, layer].double(), out.hidden_states[1][0, -1], atol=1e-5, rtol=1e-5
                )
    assert found.z.shape == (6, 2, 4, layout.head_dim)
    assert found.labels.tolist() == [1, 0] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_of_one_head_changes_only_that_position_and_later_layers(kind: str) -> None:
    model = tiny_model(kind)
    edit = random_edit(model, heads=2, seed=3)
    layer = 1
    chosen = edit.directions.take((edit.directions.layers == layer).nonzero()[:, 0])
    only = HeadEdit(replace(chosen, mu=chosen.mu + 10), 5.0)
    ids = torch.tensor([[9, 12, 4, 5, 6]])
    plain = model(ids, output_hidden_states=True)
    with only.attached(model, every=True):
        steered = model(ids, output_hidden_states=True)
    for before in range(layer + 1):
        assert torch.equal(plain.hidden_states[before], steered.hidden_states[before])
    assert torch.equal(plain.logits[:, :-1], steered.logits[:, :-1])
    assert not torch.equal(plain.logits[:, -1], steered.logits[:, -1])
    assert torch.equal(model(ids).logits, plain.logits)


def test_a_residual_edit_adds_its_vector_after_its_block() -> None:
    model = tiny_model("gpt2")
    v = torch.randn(1, 32, dtype=torch.float64)
    ids = torch.tensor([[5, 6, 7]])
    seen: list[torch.Tensor] = []
    model.transformer.h[1].register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    model(ids)
    with ResidualEdit(torch.tensor([0]), v, 2.0).attached(model, every=True):
        model(ids)
    plain, steered = seen
    torch.testing.assert_close(steered[0, -1], plain[0, -1] + 2 * v[0])
    assert torch.equal(steered[0, :-1], plain[0, :-1])


def test_hooks_are_taken_off_whatever_happens() -> None:
    model = tiny_model("llama")
    ids = torch.tensor([[5, 6, 7]])
    plain = model(ids).logits
    edit = random_edit(model)
    with pytest.raises(KeyboardInterrupt), edit.attached(model, every=True):
        raise KeyboardInterrupt
    assert torch.equal(model(ids).logits, plain)
    wrong = HeadEdit(random_edit(tiny_model("qwen3")).directions, 1.0)
    with (
        pytest.raises(DataError, match="head_dim 16 of the steering is not the model's 8"),
        wrong.attached(model),
    ):
        pass
    assert not any(p._forward_pre_hooks for p in head_layout(model).projections)


def test_an_unknown_architecture_is_named() -> None:
    from transformers import OPTConfig, OPTForCausalLM

    model = OPTForCausalLM(
        OPTConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16)
    )
    with pytest.raises(UnknownArchitectureError, match="opt"):
        head_layout(model)
