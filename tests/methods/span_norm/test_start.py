"""Signals and gradients at the start of training: the laws that the scaling is for, and their failure without it."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError, DataError
from methods.span_norm import (
    NormResidualBlock,
    RMSNorm,
    apply_residual_init,
    diagnose,
    residual_factor,
    token_cosine,
)
from tests.methods.span_norm.tiny import ids, model


@cache
def at_start(scheme: str, layers: int, rule: str) -> dict[str, Any]:
    return diagnose(model(scheme, layers, residual_init=rule), ids(2, 32))


def gradient_growth(scheme: str, layers: int, rule: str) -> float:
    """ln(|dL/dX_1| / |dL/dX_L|)."""
    gradients = at_start(scheme, layers, rule)["grad_norm"]
    return math.log(gradients[1] / gradients[-1])


@pytest.mark.parametrize("layers", [6, 24, 96, 192])
def test_with_the_scaling_the_gradient_is_as_large_at_every_depth(layers: int) -> None:
    assert abs(gradient_growth("span", layers, "inv_sqrt_depth")) <= 0.35


def test_without_the_scaling_the_gradient_grows_exponentially() -> None:
    depths = [6, 24, 48, 96]
    growth = [gradient_growth("span", layers, "none") for layers in depths]
    slope, start = np.polyfit(depths, growth, 1)
    rest = np.asarray(growth) - (slope * np.asarray(depths) + start)
    assert slope >= 0.08
    assert 1 - rest.var() / np.var(growth) > 0.98


def test_hidden_size_is_bounded_and_prenorms_grows_with_the_root_of_depth() -> None:
    for layers in (6, 24, 96):
        sizes = at_start("span", layers, "inv_sqrt_depth")["hidden_rms"]
        assert min(sizes) >= 0.9
        assert max(sizes) <= 1.1
    depths = [6, 24, 96, 192]
    sizes = [at_start("prenorm", layers, "none")["hidden_rms"][-1] for layers in depths]
    exponent = np.polyfit(np.log(depths), np.log(sizes), 1)[0]
    assert abs(exponent - 0.5) <= 0.1


@pytest.mark.parametrize(
    ("scheme", "rule", "low", "high"),
    [
        ("span", "inv_sqrt_depth", -1, 0.10),
        ("prenorm", "none", 0.5, 1),
        ("postnorm", "none", 0.95, 1.001),
        ("hybrid", "none", 0.95, 1.001),
        # Scaling explains most of it: with it PreNorm and PostNorm do not collapse either.
        ("prenorm", "inv_sqrt_depth", -1, 0.2),
        ("postnorm", "inv_sqrt_depth", -1, 0.3),
    ],
)
def test_tokens_do_not_become_alike(scheme: str, rule: str, low: float, high: float) -> None:
    assert low <= at_start(scheme, 96, rule)["token_cosine"][-1] <= high


def test_a_vacuously_small_start_is_told_from_the_default() -> None:
    """GPT's 0.02 at width 64 makes the branches tiny: even unscaled, the gradient hardly grows."""
    tiny = diagnose(model("span", 24, residual_init="none", init="gpt"), ids(2, 32))
    assert tiny["ffn_ratio"][3] < 0.05
    assert at_start("span", 24, "none")["ffn_ratio"][3] > 0.2


# -- the rules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("inv_sqrt_depth", 16**-0.5),
        ("inv_sqrt_2depth", 32**-0.5),
        ("inv_depth", 1 / 16),
        ("deepnorm", 128**-0.25),
        ("none", 1.0),
        (0.3, 0.3),
    ],
)
def test_factors(rule: str | float, wanted: float) -> None:
    assert residual_factor(rule, 16) == pytest.approx(wanted)


@pytest.mark.parametrize("rule", ["inv_sqrt_depth", "deepnorm"])
def test_the_model_starts_scaled_and_only_there(rule: str) -> None:
    made, plain = (model("span", 4, residual_init=r, hidden_size=128) for r in (rule, "none"))
    factor = residual_factor(rule, 4)
    scaled = {"o_proj", "down_proj"} | ({"v_proj", "gate_proj", "up_proj"} if rule == "deepnorm" else set())
    for (name, mine), (_, other) in zip(made.named_parameters(), plain.named_parameters(), strict=True):
        wanted = factor if name.split(".")[-2] in scaled else 1.0
        assert torch.allclose(mine, other * wanted, rtol=1e-5), name
    head = plain.lm_head.weight.std().item()
    assert head == pytest.approx(128**-0.5, rel=0.05)
    assert plain.model.embed_tokens.weight.std().item() == pytest.approx(1.0, rel=0.05)
    assert plain.model.layers[1].mlp.down_proj.weight.std().item() == pytest.approx(172**-0.5, rel=0.05)


class Own(nn.Module):
    """Blocks around modules of one's own."""

    def __init__(self, output: str = "out_proj") -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        for place in range(4):
            attention, feed = nn.Module(), nn.Module()
            attention.q = nn.Linear(8, 8)
            setattr(attention, output, nn.Linear(8, 8))
            setattr(feed, "fc2" if output == "out_proj" else "other", nn.Linear(8, 8))
            self.blocks.append(NormResidualBlock(attention, feed, 8, "span", place, 4))


def test_apply_residual_init_on_own_modules() -> None:
    made = Own()
    before = {name: value.clone() for name, value in made.state_dict().items()}
    assert apply_residual_init(made, "inv_sqrt_depth") == 8
    for name, value in made.state_dict().items():
        output = name.endswith(("out_proj.weight", "fc2.weight"))
        assert torch.allclose(value, before[name] * (0.5 if output else 1.0)), name


def test_apply_residual_init_is_the_models_own_start() -> None:
    plain, made = model("span", 4, residual_init="none"), model("span", 4)
    apply_residual_init(plain, "inv_sqrt_depth")
    assert plain.config.residual_init == "inv_sqrt_depth"
    for mine, other in zip(plain.parameters(), made.parameters(), strict=True):
        assert torch.allclose(mine, other, rtol=1e-6)


def test_apply_residual_init_takes_the_depth_that_the_blocks_were_made_for() -> None:
    """A part of a model, such as a stage of a pipeline, is scaled for the whole."""
    made = Own()
    before = made.blocks[0].mlp.fc2.weight.clone()
    made.blocks = made.blocks[:2]
    apply_residual_init(made)
    assert torch.allclose(made.blocks[0].mlp.fc2.weight, before / 2)


def test_apply_residual_init_refuses() -> None:
    made = Own()
    apply_residual_init(made)
    with pytest.raises(ConfigError, match="starts scaled already"):
        apply_residual_init(made)
    half = Own()
    half.blocks[1].mlp = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    first = half.blocks[0].mlp.fc2.weight.clone()
    with pytest.raises(DataError, match="block 1: its feed-forward module has no output projection"):
        apply_residual_init(half)
    assert torch.equal(half.blocks[0].mlp.fc2.weight, first)
    with pytest.raises(ConfigError, match="starts scaled already"):
        apply_residual_init(model("span"), "inv_sqrt_depth")
    with pytest.raises(DataError, match="holds no NormResidualBlock"):
        apply_residual_init(nn.Linear(2, 2))
    with pytest.raises(DataError, match="block 0: its attention has no output projection"):
        apply_residual_init(Own("result"))
    with pytest.raises(ConfigError, match="residual_init=-1"):
        apply_residual_init(Own(), -1.0)


# -- diagnose -------------------------------------------------------------------------------------------------------


def test_token_cosine_is_the_mean_over_pairs() -> None:
    hidden = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
    pairs = [
        float(torch.cosine_similarity(row[i], row[j], dim=0))
        for row in hidden
        for i in range(5)
        for j in range(5)
        if i != j
    ]
    assert token_cosine(hidden) == pytest.approx(np.mean(pairs), abs=1e-6)
    mask = torch.tensor([[1, 1, 1, 0, 0]] * 3)
    assert token_cosine(hidden, mask) == pytest.approx(token_cosine(hidden[:, :3]), abs=1e-6)


def test_diagnose_measures_what_it_says() -> None:
    made, batch = model("span", 3), ids(2, 8)
    found = diagnose(made, batch)
    assert {name: len(v) for name, v in found.items() if isinstance(v, list)} == {
        "hidden_rms": 4,
        "grad_norm": 4,
        "adjacent_cosine": 3,
        "token_cosine": 4,
        "attn_ratio": 3,
        "ffn_ratio": 3,
    }
    assert all(parameter.grad is None for parameter in made.parameters())
    # The gradient of X_1, by perturbing the second block's input.
    block = made.model.layers[1]
    direction = torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(1))
    direction /= direction.norm()
    state = hidden_gradient(made, batch)
    made.double()

    def loss(step: float) -> float:
        handle = block.register_forward_pre_hook(lambda _, a: (a[0] + step * direction.double(),))
        value = made(batch, labels=batch).loss
        handle.remove()
        return float(value.detach())

    slope = (loss(0.02) - loss(-0.02)) / 0.04
    assert slope == pytest.approx(float((state * direction).sum()), rel=0.02)
    assert found["grad_norm"][1] == pytest.approx(float(state.norm()), rel=1e-5)


def hidden_gradient(made: Any, batch: Tensor) -> Tensor:
    kept: list[Tensor] = []

    def keep(_module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        arguments[0].retain_grad()
        kept.append(arguments[0])

    handle = made.model.layers[1].register_forward_pre_hook(keep)
    made(batch, labels=batch).loss.backward()
    handle.remove()
    made.zero_grad()
    assert kept[0].grad is not None
    return kept[0].grad


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value == pytest.approx(other[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("scheme", ["span", "siamese"])
def test_diagnose_does_not_count_padding(scheme: str) -> None:
    made, row = model(scheme, 3), ids(1, 6)
    padded = torch.cat((row, torch.zeros(1, 20, dtype=torch.long)), dim=1)
    mask = torch.tensor([[1] * 6 + [0] * 20])
    alone = diagnose(made, row)
    same(diagnose(made, {"input_ids": padded, "attention_mask": mask}), alone)
    short = torch.tensor([[1] + [0] * 25])  # no pair of tokens: it must not make the mean NaN
    both = diagnose(made, {"input_ids": padded.repeat(2, 1), "attention_mask": torch.cat((mask, short))})
    assert all(math.isfinite(value) for value in both["token_cosine"])


def test_diagnose_does_not_depend_on_the_callers_mode() -> None:
    wanted = diagnose(model("span", 3), ids())
    for reentrant in (True, False):
        made = model("span", 3).train()
        made.gradient_checkpointing_enable({"use_reentrant": reentrant})
        same(diagnose(made, ids()), wanted)
        assert made.model.layers[0].gradient_checkpointing
        assert made.training
    with torch.no_grad():
        same(diagnose(model("span", 3), ids()), wanted)
    same(diagnose(model("span", 3).requires_grad_(False), ids()), wanted)


@pytest.mark.parametrize("batch", ["text", {"labels": ids()}, ids()[0], {"input_ids": [[1, 2, 3]]}])
def test_diagnose_names_what_is_no_batch(batch: Any) -> None:
    with pytest.raises(DataError, match="input_ids: give a tensor of token ids"):
        diagnose(model(), batch)


def test_diagnose_refuses() -> None:
    with pytest.raises(DataError, match="holds no NormResidualBlock"):
        diagnose(nn.Linear(2, 2), ids())
    with pytest.raises(DataError, match=r"attention_mask: has the shape \(2, 3\)"):
        diagnose(model(), {"input_ids": ids(), "attention_mask": torch.ones(2, 3)})
    with pytest.raises(DataError, match="at least one row of 2 tokens"):
        diagnose(model(), ids(2, 1))


def test_norms_are_torchs() -> None:
    x = torch.randn(4, 16)
    assert torch.allclose(RMSNorm(16, eps=1e-6)(x), nn.RMSNorm(16, eps=1e-6)(x))
