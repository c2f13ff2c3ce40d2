"""Dropped sublayers on every architecture: the right function, nothing left behind, the same model after loading."""

import json
import pickle
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, BertModel

from methods.common.errors import ConfigError
from methods.common.linear_layers import UnknownArchitectureError, linear_layers
from methods.common.sublayers import SUBLAYERS, blocks_of, layout_of, logits_of, without_sublayer
from methods.pruning_representations import drop_sublayers
from methods.pruning_representations.magnitude import magnitude
from tests.methods.pruning_representations.tiny import tiny, tokens

CAUSAL = sorted(kind for kind, layout in SUBLAYERS.items() if layout.final_norm)
CASES: tuple[dict[str, list[int]], ...] = (
    {"attn": [0]},
    {"attn": [0, 2], "mlp": [1]},
    {"blocks": [1]},
    {"blocks": [0], "attn": [1]},
)


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = model(input_ids=ids).logits
    return result


@torch.no_grad()
def zeroed(model: Any, ids: torch.Tensor, case: dict[str, list[int]]) -> torch.Tensor:
    """The dense model with the sublayers' outputs replaced by zeros."""
    layout = layout_of(model)
    with ExitStack() as stack:
        for index, block in enumerate(blocks_of(model)):
            for kind in ("attn", "mlp"):
                if index in case.get(kind, []) or index in case.get("blocks", []):
                    stack.enter_context(without_sublayer(block, layout, kind))
        return logits(model, ids)


# All cases where blocks differ in kind, the two that mix most on all.
@pytest.mark.parametrize(
    ("model_type", "case"),
    [
        (kind, case)
        for kind in CAUSAL
        for i, case in enumerate(CASES)
        if i in (1, 3) or kind in ("llama", "gemma3_text", "gpt2", "gpt_neox")
    ],
    ids=str,
)
def test_function_cache_and_round_trip(model_type: str, case: dict[str, list[int]], tmp_path: Path) -> None:
    model, ids = tiny(model_type), tokens()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    dense = logits(model, ids)
    dropped = drop_sublayers(model, **case)
    found = logits(dropped, ids)
    torch.testing.assert_close(found, zeroed(model, ids, case), rtol=0, atol=1e-5)
    assert not torch.allclose(found, dense, atol=1e-3)
    # The dense model is as it was, and shares nothing that a change could reach.
    assert torch.equal(logits(model, ids), dense)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not {id(module) for module in model.modules()} & {id(module) for module in dropped.modules()}

    # The cache keeps what the remaining attentions wrote, and nothing else.
    cache = dropped(input_ids=ids, use_cache=True).cache
    filled = [
        layer for layer in cache.layers if getattr(layer, "keys", None) is not None and layer.keys.numel()
    ]
    assert len(filled) == 3 - len({*case.get("attn", []), *case.get("blocks", [])})

    dropped.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, use_safetensors=True).eval()
    assert type(loaded) is type(dropped)
    assert loaded.state_dict().keys() == dropped.state_dict().keys()
    assert torch.equal(logits(loaded, ids), found)
    common: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    with_cache = loaded.generate(ids, use_cache=True, **common)
    assert torch.equal(with_cache, dropped.generate(ids, use_cache=False, **common))


def test_the_folder_is_smaller_and_says_what_is_gone(tmp_path: Path) -> None:
    model = tiny()
    model.save_pretrained(tmp_path / "dense")
    drop_sublayers(model, attn=[2], blocks=[0]).save_pretrained(tmp_path / "small")
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    assert config["model_type"] == "dropped_llama"
    assert config["num_hidden_layers"] == 2
    assert config["kept_blocks"] == [1, 2]
    assert (config["dropped_attention"], config["dropped_mlp"]) == ([1], [])
    sizes = {name: (tmp_path / name / "model.safetensors").stat().st_size for name in ("dense", "small")}
    removed = sum(
        parameter.numel() * 4
        for name, parameter in model.named_parameters()
        if name.startswith(("model.layers.0.", "model.layers.2.self_attn", "model.layers.2.input_"))
    )
    assert sizes["dense"] - sizes["small"] == pytest.approx(removed, abs=2_000)  # headers differ too


def test_whole_blocks_make_an_ordinary_model(tmp_path: Path) -> None:
    model = drop_sublayers(tiny("qwen3"), attn=[1], mlp=[1])
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("qwen3", ["Qwen3ForCausalLM"])
    assert len(config["layer_types"]) == config["num_hidden_layers"] == 2


def test_a_process_that_does_not_know_the_type_refuses_the_folder(tmp_path: Path) -> None:
    drop_sublayers(tiny(), attn=[1]).save_pretrained(tmp_path)
    code = """
import sys
from transformers import AutoModelForCausalLM
try:
    AutoModelForCausalLM.from_pretrained(sys.argv[1])
except ValueError as error:
    print("refused", error)
from methods.pruning_representations.dropped_models import register
register("dropped_llama")
print("loaded", type(AutoModelForCausalLM.from_pretrained(sys.argv[1])).__name__)
"""
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=Path(__file__).parents[3],
    )
    refused, loaded = run.stdout.split("loaded ")
    assert refused.startswith("refused")
    assert "dropped_llama" in refused
    assert loaded.strip() == "DroppedLlamaForCausalLM"


def test_dropping_twice_adds_up_and_pruning_goes_on_from_there() -> None:
    model, ids = tiny(), tokens()
    once = drop_sublayers(model, attn=[0, 2], mlp=[1])
    twice = drop_sublayers(drop_sublayers(model, attn=[0]), attn=[2], mlp=[1])
    assert torch.equal(logits(once, ids), logits(twice, ids))
    assert (twice.config.dropped_attention, twice.config.dropped_mlp) == ([0, 2], [1])
    # The second half of a block that is already half gone takes the block out; its dense type comes back.
    rest = drop_sublayers(drop_sublayers(model, attn=[1]), mlp=[1])
    assert type(rest) is type(model)
    assert rest.config.kept_blocks == [0, 2]
    assert torch.equal(logits(rest, ids), logits(drop_sublayers(model, blocks=[1]), ids))
    names = [layer.name for layer in linear_layers(magnitude(once))]
    assert not any("layers.0.self_attn" in name or "layers.1.mlp" in name for name in names)


def test_in_place_changes_the_model_itself() -> None:
    model, ids = tiny("mistral"), tokens()
    expected = logits(drop_sublayers(model, mlp=[0], blocks=[1]), ids)
    assert drop_sublayers(model, mlp=[0], blocks=[1], in_place=True) is model
    assert torch.equal(logits(model, ids), expected)


def test_blocks_stay_when_a_blocks_number_scales_its_attention(tmp_path: Path) -> None:
    model = tiny("gpt2", scale_attn_by_inverse_layer_idx=True)
    ids = tokens()
    dropped = drop_sublayers(model, blocks=[0])
    torch.testing.assert_close(logits(dropped, ids), zeroed(model, ids, {"blocks": [0]}), rtol=0, atol=1e-5)
    dropped.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(loaded, ids), logits(dropped, ids))


def test_padding_on_the_left_does_not_change_what_is_written() -> None:
    model = drop_sublayers(tiny("gemma3_text"), attn=[0])
    ids = tokens(1, 7)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], dim=1)
    mask = (torch.arange(10) >= 3).long()[None]
    common: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    alone = model.generate(ids, attention_mask=torch.ones_like(ids), **common)[:, 7:]
    assert torch.equal(model.generate(padded, attention_mask=mask, **common)[:, 10:], alone)


def test_an_encoder_loses_its_sublayers_in_memory() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=61, **sizes)).eval()
    ids = tokens()
    dropped = drop_sublayers(model, attn=[1], mlp=[2])
    with torch.no_grad():
        found = dropped(input_ids=ids).last_hidden_state
        # By hand: the residual stream goes through the norm alone.
        hidden = model.embeddings(ids)
        hidden = model.encoder.layer[0](hidden)
        skipped = model.encoder.layer[1].attention.output.LayerNorm(hidden)
        hidden = model.encoder.layer[1].feed_forward_chunk(skipped)
        attended = model.encoder.layer[2].attention(hidden)[0]
        expected = model.encoder.layer[2].output.LayerNorm(attended)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("model_type", CAUSAL)
def test_lens_at_the_last_block_is_the_models_own_output(model_type: str) -> None:
    model, ids = tiny(model_type), tokens()
    seen: list[torch.Tensor] = []
    handle = blocks_of(model)[-1].register_forward_hook(lambda _m, _i, output: seen.append(output))
    expected = logits(model, ids)
    handle.remove()
    last = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    with torch.no_grad():
        torch.testing.assert_close(logits_of(model, last), expected, rtol=1e-5, atol=1e-5)


def test_a_sublayer_comes_back_after_an_error() -> None:
    model, ids = tiny("gemma2"), tokens()
    before = logits(model, ids)
    with pytest.raises(KeyError), without_sublayer(blocks_of(model)[1], layout_of(model), "attn"):
        raise KeyError
    assert torch.equal(logits(model, ids), before)
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_bad_inputs() -> None:
    model = tiny()
    for kind, layers, message in (
        ("attn", [3], "attn: 3 is no layer of this model; it has 0 to 2"),
        ("mlp", [-1], "mlp: -1 is no layer"),
        ("blocks", ["1"], "blocks: '1' is no layer"),
        ("attn", 1, "attn 1: give a list of layers"),
        ("attn", [0, 1, 2], "attn: 3 of 3 layers would go; leave at least one"),
    ):
        with pytest.raises(ConfigError, match=message):
            drop_sublayers(model, **{kind: layers})
    with pytest.raises(UnknownArchitectureError, match="model_type 'Linear' has no known attention and MLP"):
        drop_sublayers(torch.nn.Linear(2, 2), attn=[0])
    with pytest.raises(NotImplementedError):
        drop_sublayers(torch.nn.Linear(2, 2), attn=[0])


def test_other_caches_adapters_and_training_take_it_like_any_model() -> None:
    from peft import LoraConfig, get_peft_model

    model, ids = drop_sublayers(tiny("qwen3"), attn=[0], mlp=[2]), tokens()
    common: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(ids, use_cache=False, **common)
    assert torch.equal(model.generate(ids, cache_implementation="static", **common), plain)
    beams = {"num_beams": 2, **common}
    assert torch.equal(model.generate(ids, **beams), model.generate(ids, use_cache=False, **beams))
    copied = pickle.loads(pickle.dumps(model.config))
    assert (copied.model_type, copied.dropped_attention) == ("qwen3", [0])
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj", "down_proj"], r=2))
    adapted(input_ids=ids, labels=ids).loss.backward()
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad and p.grad is not None]
    assert len(trained) == 2 * (3 - 1 + 3 - 1)
    assert type(adapted.merge_and_unload()).__name__ == "DroppedQwen3ForCausalLM"
