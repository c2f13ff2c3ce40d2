"""A checkpoint that does not hold the model is refused wherever models are loaded."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from methods.common.errors import DataError
from tasks.evaluate.loading import load_candidate
from tasks.load_model import load_causal_lm
from tests.tiny_models import tiny_llama

PROJECTION = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("load") / "model")


def changed(model: Path, out: Path, fault: str) -> Path:
    shutil.copytree(model, out)
    tensors = load_file(out / "model.safetensors")
    if fault == "missing":
        del tensors[PROJECTION]
    elif fault == "unexpected":
        tensors["model.layers.0.self_attn.extra.weight"] = tensors[PROJECTION].clone()
    else:
        config = json.loads((out / "config.json").read_text())
        config["intermediate_size"] += 8
        (out / "config.json").write_text(json.dumps(config))
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("missing", f"lacks the tensor {PROJECTION}"),
        ("shape", "cannot be loaded|another shape"),
    ],
)
def test_it_is_named_in_one_line(model: Path, tmp_path: Path, fault: str, words: str) -> None:
    folder = changed(model, tmp_path / "model", fault)
    for load in (load_causal_lm, lambda path: load_candidate(path, None, "auto")):
        with pytest.raises(DataError, match=words) as caught:
            load(folder)
        assert "\n" not in str(caught.value)


def test_a_tensor_too_many_is_told(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load_causal_lm(changed(model, tmp_path / "model", "unexpected"))
    assert "no place for model.layers.0.self_attn.extra.weight" in caplog.text


def test_tied_and_untied_models_are_whole(model: Path, tmp_path: Path) -> None:
    loaded = load_causal_lm(model)
    assert not loaded.training
    loaded.config.tie_word_embeddings = False
    loaded.lm_head.weight = torch.nn.Parameter(loaded.lm_head.weight.detach().clone() + 1)
    loaded.save_pretrained(tmp_path / "untied")
    found = load_causal_lm(tmp_path / "untied")
    assert torch.equal(found.lm_head.weight, loaded.lm_head.weight)
