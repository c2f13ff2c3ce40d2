"""Mixture of experts: one expert is the dense model, gates, losses, the variance match, half precision."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from methods.common.errors import ConfigError
from methods.span_norm import (
    MoE,
    SpanNormForCausalLM,
    balance_loss,
    load_variation,
    match_moe_variance,
    z_loss,
)
from tests.methods.span_norm.tiny import config, ids, model


@pytest.mark.parametrize("scheme", ["span", "prenorm"])
def test_one_expert_is_the_dense_model(scheme: str) -> None:
    dense = model(scheme, 3)
    routed = SpanNormForCausalLM(config(scheme, 3, num_experts=1, num_experts_per_tok=1)).eval()
    weights = {}
    for name, value in dense.state_dict().items():
        weights[name.replace(".mlp.", ".mlp.experts.0.")] = value
    missing = routed.load_state_dict(weights, strict=False)
    assert all("router" in name for name in missing.missing_keys)
    assert not missing.unexpected_keys
    with torch.no_grad():
        assert (routed(ids()).logits - dense(ids()).logits).abs().max() <= 1e-6


def test_the_layer_is_its_equation() -> None:
    """Against a loop over tokens, written from F(Y) = sum over top k of g_e(Y) E_e(Y) + shared(Y)."""
    torch.manual_seed(0)
    layer = MoE(8, lambda: nn.Linear(8, 8), experts=4, top_k=2, shared=True).double()
    x = torch.randn(2, 5, 8).double()
    wanted = torch.zeros_like(x)
    for row in range(2):
        for place in range(5):
            y = x[row, place]
            share = [math.exp(v) for v in (layer.router.proj.weight @ y).tolist()]
            best = sorted(range(4), key=lambda e: -share[e])[:2]
            total = sum(share[e] for e in best)
            wanted[row, place] = sum(share[e] / total * layer.experts[e](y) for e in best) + layer.shared(y)
    assert torch.allclose(layer(x), wanted, atol=1e-12)


def test_every_expert_starts_scaled() -> None:
    made = model("span", 4, num_experts=3)
    for expert in made.model.layers[2].mlp.experts:
        assert expert.down_proj.weight.std().item() == pytest.approx(0.5 * 172**-0.5, rel=0.05)
    assert made.model.layers[2].mlp.router.proj.weight.std().item() == pytest.approx(1 / 8, rel=0.2)


def test_the_balance_loss_is_switchs() -> None:
    """experts x sum of (share of assignments) x (mean probability), tokens of padding left out; 1 when balanced."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(10, 4, generator=draw)
    shares = logits.softmax(-1)
    counts = one_hot(shares.topk(2).indices, 4).sum(1).float()
    wanted = 4 * ((counts.sum(0) / 20) * shares.mean(0)).sum()
    assert balance_loss([logits], 2) == pytest.approx(float(wanted), rel=1e-6)
    mask = torch.tensor([[1] * 6 + [0] * 4])
    assert balance_loss([logits], 2, mask) == pytest.approx(float(balance_loss([logits[:6]], 2)), rel=1e-6)
    even = torch.eye(4).repeat(3, 1) * 1e-4
    assert balance_loss([even], 1) == pytest.approx(1.0, abs=1e-3)
    assert balance_loss([torch.tensor([[9.0, 0, 0, 0]] * 5)], 1) > 3.9
    assert z_loss([logits]) == pytest.approx(float(logits.logsumexp(-1).square().mean()), rel=1e-6)


def test_the_balance_loss_is_also_the_librarys() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    layers = tuple(torch.randn(12, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    # The library sums hits over k and pools the layers first; with one layer only the factor k differs.
    assert balance_loss(layers[:1], 2) == pytest.approx(
        float(load_balancing_loss_func(layers[:1], 4, 2)) / 2, rel=1e-6
    )


def test_the_losses_are_in_the_loss() -> None:
    made = model("span", 2, num_experts=4, router_aux_loss_coef=0.5, router_z_loss_coef=0.25)
    with torch.no_grad():
        out = made(ids(), labels=ids(), output_router_logits=True)
        made.config.router_aux_loss_coef = made.config.router_z_loss_coef = 0.0
        plain = made(ids(), labels=ids())
    assert len(out.router_logits) == 2
    added = 0.5 * out.aux_loss + 0.25 * z_loss(out.router_logits)
    assert out.loss.item() == pytest.approx((plain.loss + added).item(), rel=1e-5)
    assert plain.router_logits is None


def test_variance_match() -> None:
    made = model("span", 3, num_experts=4, moe_variance_match=True)
    factors = match_moe_variance(made, {"input_ids": ids(4, 16)})
    assert len(factors) == 3
    assert all(1.0 < factor <= math.sqrt(2) + 1e-6 for factor in factors)  # 1 / sqrt(E[sum g^2]), k = 2
    gates: list[Tensor] = []
    handle = made.model.layers[1].mlp.router.register_forward_hook(lambda *a: gates.append(a[2][1]))
    with torch.no_grad():
        made(ids(4, 16))
    handle.remove()
    assert factors[1] == pytest.approx(float(gates[0].square().sum(-1).mean()) ** -0.5, rel=1e-5)
    with pytest.raises(ConfigError, match="set num_experts and moe_variance_match=True"):
        match_moe_variance(model("span", 2, num_experts=4), {"input_ids": ids()})
    with pytest.raises(ConfigError, match="the model is dense"):
        match_moe_variance(model("span", 2), {"input_ids": ids()})


def test_the_matched_factor_is_saved(tmp_path: object) -> None:
    made = model("span", 2, num_experts=4, moe_variance_match=True)
    match_moe_variance(made, {"input_ids": ids()})
    made.save_pretrained(str(tmp_path))
    loaded = SpanNormForCausalLM.from_pretrained(str(tmp_path))
    with torch.no_grad():
        assert torch.equal(loaded(ids()).logits, made(ids()).logits)


@pytest.mark.parametrize("autocast", [False, True])
def test_training_stays_finite_and_spreads_the_load(autocast: bool) -> None:
    made = model("span", 4, num_experts=4, router_aux_loss_coef=0.1).train()
    optimiser = torch.optim.AdamW(made.parameters(), lr=3e-3)
    batch = ids(8, 32)
    for _ in range(15):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = made(batch, labels=batch).loss
        loss.backward()
        assert loss.isfinite()
        assert all(p.grad.isfinite().all() for p in made.parameters() if p.grad is not None)
        optimiser.step()
        optimiser.zero_grad()
    with torch.no_grad():
        logits = made.eval()(batch, output_router_logits=True).router_logits
    assert load_variation(logits, 2) < 0.5


def test_load_variation() -> None:
    even = torch.eye(4).repeat(5, 1)
    assert load_variation([even], 1) == pytest.approx(0.0)
    assert load_variation([torch.tensor([[9.0, 0, 0, 0]] * 5)], 1) == pytest.approx(math.sqrt(3))


def test_generation_with_a_cache_and_router_logits() -> None:
    made = model("span", 2, num_experts=4, output_router_logits=True)
    mask = torch.tensor([[0] * 2 + [1] * 6, [1] * 8])
    found = made.generate(ids(2, 8), attention_mask=mask, max_new_tokens=5, do_sample=False)
    assert found.shape == (2, 13)
