"""SparseGPT against optimal brain surgery done column by column with every inverse computed anew."""

import copy

import pytest
import torch
from torch import Tensor

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.common.linear_layers import linear_layers
from methods.pruning_representations.sparsegpt import InputSecondMoment, prune_layer, sparsegpt
from methods.pruning_representations.wanda import wanda
from tests.methods.pruning_representations.tiny import tiny, tokens


def surgery(weight: Tensor, hessian: Tensor, sparsity: float, pattern: tuple[int, int] | None) -> Tensor:
    """The same walk without a Cholesky factor: H is inverted again before each column."""
    w = weight.double().clone()
    h = hessian.double()
    rows, width = w.shape
    inverses = [torch.linalg.inv(h[j:, j:]) for j in range(width)]
    group = pattern[1] if pattern else width
    for start in range(0, width, group):
        scores = torch.stack([w[:, j] ** 2 / inverses[j][0, 0] for j in range(start, start + group)], 1)
        if pattern:
            order = scores.argsort(1)[:, : pattern[1] - pattern[0]]
            gone = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order, True)
        else:
            order = scores.flatten().argsort()[: round(sparsity * scores.numel())]
            gone = torch.zeros(scores.numel(), dtype=torch.bool)
            gone[order] = True
            gone = gone.reshape(scores.shape)
        for offset in range(group):
            j = start + offset
            for i in range(rows):
                if gone[i, offset]:
                    w[i, j:] -= w[i, j] / inverses[j][0, 0] * inverses[j][0]
                    w[i, j] = 0
    return w


@pytest.mark.parametrize("pattern", [None, (2, 4)])
def test_equals_surgery_with_every_inverse_recomputed(pattern: tuple[int, int] | None) -> None:
    rng = torch.Generator().manual_seed(0)
    weight, x = torch.randn(6, 8, generator=rng), torch.randn(64, 8, generator=rng)
    hessian = 2 * x.T @ x / 64
    mine = prune_layer(weight, hessian, sparsity=0.5, pattern=pattern, damping=0)
    exact = surgery(weight, hessian, 0.5, pattern)
    torch.testing.assert_close(mine, exact.float(), rtol=0, atol=1e-5)
    assert int((mine == 0).sum()) == 24
    # Compensation pays: the layer's output changes less than by zeros alone.
    plain = weight * (mine != 0)
    assert ((mine - weight) @ x.T).norm() < ((plain - weight) @ x.T).norm()


@pytest.mark.parametrize("pattern", [None, (2, 4), (4, 8)])
def test_blocks_of_columns_count_exactly(pattern: tuple[int, int] | None) -> None:
    rng = torch.Generator().manual_seed(1)
    weight, x = torch.randn(6, 24, generator=rng), torch.randn(99, 24, generator=rng)
    w = prune_layer(weight, x.T @ x, sparsity=0.5, pattern=pattern, block_size=10)
    assert int((w == 0).sum()) == 72
    if pattern:
        assert ((w.reshape(6, -1, pattern[1]) == 0).sum(-1) == pattern[1] - pattern[0]).all()


def test_inputs_that_never_fire_lose_their_weights_first() -> None:
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    x[:, 3] = 0
    w = prune_layer(torch.ones(4, 8), x.T @ x, sparsity=0.125)
    assert (w[:, 3] == 0).all()
    assert int((w == 0).sum()) == 4


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gpt_neox", "gemma2"])
def test_whole_models_keep_their_exact_sparsity(model_type: str) -> None:
    model = sparsegpt(tiny(model_type), tokens(), pattern="2:4")
    for layer in linear_layers(model):
        width = layer.weight.shape[1]
        assert ((layer.weight.reshape(-1, width // 4, 4) == 0).sum(-1) == 2).all()


def test_the_model_changes_less_than_with_wanda() -> None:
    """What the compensation is for, on inputs that are correlated."""
    model, ids = tiny(hidden_size=32, intermediate_size=64, head_dim=16), tokens(24, 24)
    with torch.no_grad():
        dense = model(input_ids=ids).logits
        by_wanda = wanda(copy.deepcopy(model), ids)(input_ids=ids).logits
        by_sparsegpt = sparsegpt(copy.deepcopy(model), ids)(input_ids=ids).logits
    assert (by_sparsegpt - dense).norm() < (by_wanda - dense).norm()


def test_sparsity_zero_leaves_every_bit() -> None:
    model = tiny()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sparsegpt(model, tokens(), sparsity=0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_second_moment_is_twice_the_mean_over_batches() -> None:
    x = torch.randn(10, 4)
    moment = InputSecondMoment()
    moment.add(x[:3])
    moment.add(x[3:])
    torch.testing.assert_close(moment.value, 2 * x.T @ x / 10)


def test_bad_inputs() -> None:
    for field, value in (("sparsity", 1.0), ("sparsity", -0.1), ("damping", -1.0), ("block_size", 0)):
        with pytest.raises(ConfigError, match=field):
            sparsegpt(tiny(), tokens(), **{field: value})
    with pytest.raises(ConfigError, match="the 30 inputs of"):
        sparsegpt(tiny(intermediate_size=30), tokens(), pattern="2:4")
    with pytest.raises(DataError, match="calibration is empty"):
        sparsegpt(tiny(), torch.empty(0, 8, dtype=torch.long))
    with pytest.raises(NumericalError, match="singular at damping 0"):
        prune_layer(torch.ones(2, 4), torch.ones(4, 4), sparsity=0.5, damping=0)
    broken = tiny()
    with torch.no_grad():
        broken.model.layers[1].self_attn.v_proj.weight[0, 0] = float("inf")
    with pytest.raises(NumericalError, match=r"model\.layers\.1\.self_attn\.o_proj: calibration activations"):
        sparsegpt(broken, tokens())
