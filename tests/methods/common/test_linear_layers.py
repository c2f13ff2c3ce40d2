"""The walk over linear layers and the calls of blocks, on a tiny model of every known architecture."""

import pytest
import torch
from torch import nn

from methods.common.hooks import block_calls, inputs_observed
from methods.common.linear_layers import (
    BLOCKS,
    UnknownArchitectureError,
    linear_layers,
    register_architecture,
    residual_blocks,
)
from tests.methods.pruning_representations.tiny import tiny, tokens


@pytest.mark.parametrize("model_type", sorted(BLOCKS))
def test_walk_finds_all_linear_layers_of_the_blocks_and_no_other(model_type: str) -> None:
    model = tiny(model_type)
    found = {layer.parameter_name for layer in linear_layers(model)}
    # All two-dimensional parameters are linear weights, except embeddings and the head.
    expected = {
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and not any(part in name for part in ("embed", "wte", "wpe", "lm_head"))
    }
    assert found == expected
    assert len(found) % len(residual_blocks(model)) == 0


@pytest.mark.parametrize("model_type", sorted(BLOCKS))
def test_weight_is_a_view_as_outputs_by_inputs(model_type: str) -> None:
    model = tiny(model_type)
    for layer in linear_layers(model, block=1):
        x = torch.randn(3, layer.weight.shape[1])
        bias = layer.module.bias if layer.module.bias is not None else 0
        torch.testing.assert_close(layer.module(x), x @ layer.weight.T + bias)
        layer.weight[0, 0] = 77
        assert (layer.module.weight == 77).sum() == 1


@pytest.mark.parametrize("model_type", sorted(BLOCKS))
def test_blocks_called_one_by_one_give_what_the_model_gives(model_type: str) -> None:
    model, ids = tiny(model_type), tokens()
    blocks = residual_blocks(model)
    outputs: list[torch.Tensor] = []
    handle = blocks[-1].register_forward_hook(lambda _m, _i, output: outputs.append(output))
    with torch.no_grad():
        model(input_ids=ids)
        handle.remove()
        hidden, calls = block_calls(model, blocks, ids)
        for block, call in zip(blocks, calls, strict=True):
            hidden = call.run(block, hidden)
    torch.testing.assert_close(hidden, outputs[0], rtol=0, atol=0)


def test_forward_is_itself_again_after_the_calls_were_recorded_or_failed() -> None:
    model, ids = tiny(), tokens()
    before = model(input_ids=ids).logits
    block_calls(model, residual_blocks(model), ids)
    with pytest.raises(IndexError):
        block_calls(model, residual_blocks(model), ids + 1000)
    assert "forward" not in vars(residual_blocks(model)[0])
    torch.testing.assert_close(model(input_ids=ids).logits, before, rtol=0, atol=0)


def test_observers_are_taken_off_after_an_exception() -> None:
    layer, seen = nn.Linear(4, 2), []

    def fail_while_watching() -> None:
        with inputs_observed({layer: seen.append}):
            layer(torch.ones(2, 3, 4))
            layer(torch.ones(2, 3, 5))

    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        fail_while_watching()
    layer(torch.ones(1, 4))
    assert [x.shape for x in seen] == [(6, 4), (6, 5)]


def test_unknown_architecture_is_refused_by_name_and_can_be_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny()
    model.config.model_type = "brand_new"
    with pytest.raises(
        UnknownArchitectureError, match=r"'brand_new' has no known linear layers; known are .*llama"
    ):
        list(linear_layers(model))
    monkeypatch.setitem(BLOCKS, "brand_new", "")  # undone after the test
    register_architecture("brand_new", "model.layers")
    assert len(list(linear_layers(model))) == 21
    register_architecture("brand_new", "not.there")
    with pytest.raises(UnknownArchitectureError, match=r"has no not\.there"):
        residual_blocks(model)


def test_a_model_without_its_head_is_refused() -> None:
    with pytest.raises(UnknownArchitectureError, match=r"LlamaModel has no model\.layers"):
        residual_blocks(tiny().model)
