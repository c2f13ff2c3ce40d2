"""The recipes of the representation paper on model folders: what lies there, and that all steps read it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from methods.pruning_representations import drop_sublayers
from tasks.compress.compress import compress_model
from tasks.compress.recipes import DropRecipe, MagnitudeRecipe, SparseGPTRecipe
from tasks.evaluate.loading import load_candidate, measure_size
from tasks.reference import Reference, content_files, reference_to

SMALL = {"calibration_sequences": 4, "calibration_length": 16}
DROPS = [DropRecipe(sublayer=sublayer, layers=1, **SMALL) for sublayer in ("attn", "mlp", "block")]


@pytest.mark.parametrize("recipe", DROPS, ids=lambda recipe: recipe.label)
def test_a_dropped_folder_is_smaller_exact_and_read_by_evaluate(
    recipe: DropRecipe, tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    summary = compress_model(tmp_path, recipe=recipe, model=tiny_model, calibration=tiny_text, seed=0)
    (layer,) = summary["dropped_layers"]
    dense, _ = load_candidate(tiny_model.path, None, torch.float32)
    loaded, tokenizer = load_candidate(tmp_path, None, torch.float32)
    kind = "blocks" if recipe.sublayer == "block" else recipe.sublayer
    expected = drop_sublayers(dense, **{kind: [layer]})
    ids = tokenizer("w1 w2 w3", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, expected(ids).logits)
        assert not torch.equal(loaded(ids).logits, dense(ids).logits)
    assert loaded.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False).shape == (1, 7)

    numbers = sum(tensor.numel() for tensor in load_file(tmp_path / "model.safetensors").values())
    assert summary["size/nominal_bytes"] == 4 * numbers
    assert measure_size(tmp_path, None)["parameters"] == numbers
    assert summary["size/bytes"] < summary["size/dense_bytes"]
    assert summary["parameters_removed"] == sum(p.numel() for p in dense.parameters()) - numbers
    assert summary["model_type"] == ("llama" if recipe.sublayer == "block" else "dropped_llama")
    assert set(summary["damage"]) == {"0", "1", "2"}
    assert min(summary["damage"], key=summary["damage"].get) == str(layer)


def test_same_inputs_same_bytes(tiny_model: Reference, tiny_text: Reference, tmp_path: Path) -> None:
    for recipe in (DROPS[0], SparseGPTRecipe(**SMALL)):
        for name in ("a", "b"):
            compress_model(tmp_path / name, recipe=recipe, model=tiny_model, calibration=tiny_text, seed=1)
        a, b = ({p.name: p.read_bytes() for p in content_files(tmp_path / name)} for name in ("a", "b"))
        assert a == b


def test_recipes_follow_each_other(tiny_model: Reference, tiny_text: Reference, tmp_path: Path) -> None:
    """A dropped model is dropped again, and its remaining layers are pruned."""
    compress_model(tmp_path / "a", recipe=DROPS[0], model=tiny_model, calibration=tiny_text)
    once = reference_to(tmp_path / "a", "model")
    compress_model(tmp_path / "b", recipe=DROPS[1], model=once, calibration=tiny_text)
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert (len(config["dropped_attention"]), len(config["dropped_mlp"])) in ((1, 1), (0, 0))
    summary = compress_model(tmp_path / "c", recipe=MagnitudeRecipe(), model=once)
    assert summary["sparsity"] == pytest.approx(0.5, abs=0.01)
    assert summary["layers_pruned"] == 3 * 7 - 4


@pytest.mark.parametrize("pattern", ["unstructured", "2:4"])
def test_sparsegpt_writes_a_normal_folder_whose_other_weights_moved(
    pattern: str, tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    recipe = SparseGPTRecipe(pattern=pattern, **SMALL)
    summary = compress_model(tmp_path, recipe=recipe, model=tiny_model, calibration=tiny_text, seed=0)
    before, after = (load_file(folder / "model.safetensors") for folder in (tiny_model.path, tmp_path))
    assert before.keys() == after.keys()
    for name, value in after.items():
        if name.endswith("_proj.weight"):
            kept = value != 0
            assert float(kept.float().mean()) == 0.5
            assert not torch.equal(value[kept], before[name][kept])
        else:
            assert torch.equal(value, before[name])
    assert summary["sparsity"] == 0.5
    AutoModelForCausalLM.from_pretrained(tmp_path)
