"""Magnitude and Wanda on whole models, against a second implementation in numpy."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.common.linear_layers import BLOCKS, UnknownArchitectureError, linear_layers
from methods.pruning_representations import (
    InputNorm,
    keep_mask,
    magnitude,
    sample_sequences,
    wanda,
    wanda_scores,
)
from tests.methods.pruning_representations.tiny import tiny, tokens


def state(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


def oracle(weight: np.ndarray, inputs: np.ndarray, remove: int) -> np.ndarray:
    """Wanda's mask of one layer: score |W_ij| * ||X_j||_2, the lowest of each row removed."""
    keep = np.ones(weight.shape, dtype=bool)
    for i in range(weight.shape[0]):
        scores = [abs(weight[i, j]) * np.sqrt((inputs[:, j] ** 2).sum()) for j in range(weight.shape[1])]
        keep[i, np.argsort(scores, kind="stable")[:remove]] = False
    return keep


def test_layer_scores_and_mask_equal_the_oracle() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        weight = rng.standard_normal((16, 32)).astype(np.float32)
        inputs = (rng.standard_normal((40, 32)) * rng.uniform(0.1, 3, 32)).astype(np.float32)
        norm = InputNorm()
        for part in np.array_split(inputs, 3):
            norm.add(torch.from_numpy(part))
        keep = keep_mask(wanda_scores(torch.from_numpy(weight), norm.value), sparsity=0.5)
        np.testing.assert_array_equal(keep.numpy(), oracle(weight.astype(float), inputs.astype(float), 16))


def inputs_of(model: Any, block: int, ids: torch.Tensor) -> dict[str, np.ndarray]:
    """The inputs [tokens, features] of a block's linear layers in a plain run of the model."""
    seen: dict[str, np.ndarray] = {}
    for layer in linear_layers(model, block):

        def keep_input(_module: Any, inputs: Any, name: str = layer.name) -> None:
            seen[name] = inputs[0].reshape(-1, inputs[0].shape[-1]).numpy()

        layer.module.register_forward_pre_hook(keep_input)
    with torch.no_grad():
        model(input_ids=ids)
    return seen


@pytest.mark.parametrize("model_type", sorted(BLOCKS))
def test_wanda_walks_through_the_pruned_prefix(model_type: str) -> None:
    """The mask of block b follows from the activations of a model whose blocks before b are pruned and b is dense."""
    dense, ids = tiny(model_type).double(), tokens()
    pruned = wanda(copy.deepcopy(dense), ids, sparsity=0.5, batch_size=2)
    for block in range(3):
        mixed = copy.deepcopy(dense)
        for layer, done in zip(linear_layers(mixed), linear_layers(pruned), strict=True):
            if layer.block < block:
                layer.weight.copy_(done.weight)
        seen = inputs_of(mixed, block, ids)
        for layer, done in zip(linear_layers(mixed, block), linear_layers(pruned, block), strict=True):
            expected = oracle(layer.weight.numpy(), seen[layer.name], layer.weight.shape[1] // 2)
            np.testing.assert_array_equal(done.weight.numpy() != 0, expected, err_msg=layer.name)
            np.testing.assert_array_equal(done.weight.numpy(), np.where(expected, layer.weight.numpy(), 0))


@pytest.mark.parametrize("pattern", ["unstructured", "2:4", "4:8"])
@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_only_linear_weights_of_the_blocks_change_and_half_of_them_go(model_type: str, pattern: str) -> None:
    for recipe in ("magnitude", "wanda"):
        model = tiny(model_type, tie_word_embeddings=True)
        before, names = state(model), {layer.parameter_name for layer in linear_layers(model)}
        if recipe == "wanda":
            wanda(model, tokens(), pattern=pattern)
        else:
            magnitude(model, pattern=pattern)
        assert changed(before, model.state_dict()) == names
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
        for layer in linear_layers(model):
            kept = layer.weight != 0
            assert kept.float().mean() == 0.5
            if pattern != "unstructured":
                n, m = (int(part) for part in pattern.split(":"))
                assert (kept.reshape(-1, m).sum(dim=1) == n).all()
            elif recipe == "wanda":
                assert (kept.sum(dim=1) == layer.weight.shape[1] // 2).all()


def test_wanda_with_equal_activations_is_magnitude_by_row() -> None:
    model = tiny()
    by_row = magnitude(copy.deepcopy(model), compare="row")
    for layer, expected in zip(linear_layers(model), linear_layers(by_row), strict=True):
        norm = InputNorm()
        norm.add(torch.eye(layer.weight.shape[1]))
        keep = keep_mask(wanda_scores(layer.weight, norm.value), sparsity=0.5)
        assert torch.equal(keep, expected.weight != 0)


def test_inputs_that_are_always_zero_go_first_in_the_order_of_their_index() -> None:
    weight = torch.arange(1.0, 9.0).repeat(2, 1)
    norm = InputNorm()
    norm.add(torch.tensor([[1.0, 0, 1, 0, 1, 1, 0, 0]] * 3))
    keep = keep_mask(wanda_scores(weight, norm.value), sparsity=0.5)
    assert keep[0].tolist() == [True, False, True, False, True, True, False, False]
    three = keep_mask(wanda_scores(weight, norm.value), sparsity=3 / 8)
    assert three[0].tolist() == [True, False, True, False, True, True, False, True]


@pytest.mark.parametrize("pattern", ["unstructured", "2:4"])
def test_sparsity_zero_leaves_every_bit(pattern: str) -> None:
    model = tiny()
    before = state(model)
    magnitude(model, sparsity=0, pattern=pattern)
    wanda(model, tokens(), sparsity=0, pattern=pattern)
    assert not changed(before, model.state_dict())


def test_same_inputs_same_bits_and_the_batch_size_does_not_matter() -> None:
    runs = [wanda(tiny(), tokens(), batch_size=size).state_dict() for size in (1, 2, 2, 8)]
    assert not changed(runs[1], runs[2])
    assert not changed(runs[0], runs[3])


def test_forward_in_bfloat16_keeps_the_weights_format_and_nearly_the_mask() -> None:
    model = tiny()
    exact = wanda(copy.deepcopy(model), tokens())
    fast = wanda(copy.deepcopy(model), tokens(), dtype=torch.bfloat16)
    same = [
        float(((a.weight != 0) == (b.weight != 0)).float().mean())
        for a, b in zip(linear_layers(exact), linear_layers(fast), strict=True)
    ]
    assert all(layer.weight.dtype == torch.float32 for layer in linear_layers(fast))
    assert min(same) > 0.95


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_forward_on_a_gpu_gives_nearly_the_mask_and_leaves_the_weights_where_they_are() -> None:
    model = tiny()
    here = wanda(copy.deepcopy(model), tokens())
    there = wanda(copy.deepcopy(model), tokens(), device="cuda")
    for a, b in zip(linear_layers(here), linear_layers(there), strict=True):
        assert b.weight.device.type == "cpu"
        assert float(((a.weight != 0) == (b.weight != 0)).float().mean()) > 0.95


def test_progress_and_the_training_flag() -> None:
    model, steps = tiny().train(), []
    wanda(model, tokens(), on_block=lambda done, total: steps.append((done, total)))
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert model.training


def test_pattern_that_does_not_fit_is_refused_before_a_weight_changes() -> None:
    model = tiny(intermediate_size=30)
    before = state(model)
    for run in (lambda: magnitude(model, pattern="2:4"), lambda: wanda(model, tokens(), pattern="2:4")):
        with pytest.raises(
            ConfigError, match=r"the 30 inputs of model\.layers\.0\.mlp\.down_proj are no multiple of 4"
        ):
            run()
    assert not changed(before, model.state_dict())


def test_bad_inputs() -> None:
    with pytest.raises(DataError, match=r"calibration is empty: its shape is \(0, 8\)"):
        wanda(tiny(), torch.empty(0, 8, dtype=torch.long))
    for calibration, message in (
        (tokens() + 1000, "other values than token ids of the model, 0 to 60"),
        (tokens(1, 65), "65 tokens a sequence, the model reads at most 64"),
    ):
        with pytest.raises(DataError, match=message):
            wanda(tiny(), calibration)
    with pytest.raises(ConfigError, match="batch_size 0: give an integer of at least 1"):
        wanda(tiny(), tokens(), batch_size=0)
    with pytest.raises(ConfigError, match="compare 'column': give 'layer' or 'row'"):
        magnitude(tiny(), compare="column")  # type: ignore[arg-type]
    with pytest.raises(UnknownArchitectureError, match="Linear"):
        magnitude(torch.nn.Linear(4, 4))
    broken = tiny()
    with torch.no_grad():
        broken.model.layers[1].self_attn.v_proj.weight[0, 0] = float("inf")
    with pytest.raises(
        NumericalError, match=r"model\.layers\.1\.self_attn\.o_proj: calibration activations are not"
    ):
        wanda(broken, tokens())


class Words:
    """A tokenizer of one token per word."""

    def __init__(self, bos: int | None, eos: int | None) -> None:
        self.bos_token_id, self.eos_token_id = bos, eos

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        opening = [self.bos_token_id] if add_special_tokens and self.bos_token_id is not None else []
        return {"input_ids": opening + [int(word) for word in text.split()]}


def test_sequences_are_cut_without_padding_and_open_as_the_tokenizer_does() -> None:
    texts = ["10 11 12 13", "20 21 22", "  "]
    plain = sample_sequences(texts, Words(None, 9), sequences=5, length=3, seed=0)
    assert plain.shape == (3, 3)
    assert sorted(plain.flatten().tolist()) == [9, 9, 10, 11, 12, 13, 20, 21, 22]
    opened = sample_sequences(texts, Words(1, 9), sequences=2, length=3, seed=0)
    assert opened[:, 0].tolist() == [1, 1]
    assert 1 not in opened[:, 1:]


def test_sequences_follow_the_seed() -> None:
    texts = [str(number) for number in range(100, 200)]
    first, again, other = (
        sample_sequences(texts, Words(None, None), sequences=4, length=5, seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_too_little_text() -> None:
    with pytest.raises(DataError, match="calibration text is empty"):
        sample_sequences(["", " \n"], Words(None, 9), sequences=1, length=4, seed=0)
    with pytest.raises(DataError, match="has 3 tokens, fewer than one sequence of 8"):
        sample_sequences(["1 2"], Words(None, 9), sequences=1, length=8, seed=0)
    with pytest.raises(ConfigError, match="0 sequences"):
        sample_sequences(["1 2"], Words(None, 9), sequences=0, length=8, seed=0)
