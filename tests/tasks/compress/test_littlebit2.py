"""The recipe LittleBit-2: a folder that evaluates like any other, true sizes, distillation, resume, refusals."""

import json
import os
import signal
import string
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from methods.common.errors import ConfigError, DataError
from tasks.compress.compress import check_compression, compress_model
from tasks.compress.config import CompressSettings
from tasks.compress.recipes import LittleBitRecipe
from tasks.evaluate.loading import check_candidate, load_candidate, measure_size
from tasks.prepare.models import check_model_folder
from tasks.reference import Reference, reference_to
from tests.tasks.compress.conftest import save_tiny_model
from tests.tasks.compress.test_compress_model import ROOT, fill

PLAIN = LittleBitRecipe(bpp=2, distill_tokens=0)
TAUGHT = LittleBitRecipe(bpp=2, distill_tokens=2048, distill_length=16, distill_rate=5e-3)


@pytest.fixture(scope="module")
def packed(tiny_model: Reference, tiny_text: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "model"
    compress_model(out, recipe=TAUGHT, model=tiny_model, calibration=tiny_text)
    return out


def test_the_folder_is_whole_and_says_its_true_sizes(packed: Path, tiny_model: Reference) -> None:
    assert {p.name for p in packed.iterdir()} >= {
        "config.json",
        "tokenizer.json",
        "LICENSE",
        "distillation.jsonl",
    }
    assert not (packed / ".parts").exists()
    report = json.loads((packed / "compression.json").read_text())
    stored, dense = load_file(packed / "model.safetensors"), load_file(tiny_model.path / "model.safetensors")
    names = {layer["name"] for layer in report["layers"]}
    assert {f"{name}.weight" for name in names} == {name for name in dense if name.endswith("_proj.weight")}
    weights = sum(dense[f"{name}.weight"].numel() for name in names)
    bits = 8 * sum(t.numel() * t.element_size() for n, t in stored.items() if n.rpartition(".")[0] in names)
    assert report["size/stored_bits_per_weight"] == bits / weights
    nominal = sum(
        layer["rank"] * (layer["outputs"] + layer["inputs"] + 16) + 16 * (layer["outputs"] + layer["inputs"])
        for layer in report["layers"]
    )
    assert report["size/nominal_bits_per_weight"] == nominal / weights
    assert report["size/bytes"] == (packed / "model.safetensors").stat().st_size
    parameters = sum(t.numel() for t in dense.values())
    assert report["size/whole_model_bits"] == 8 * report["size/bytes"] / parameters
    assert report["layers_above_target"] == sum(layer["clamped"] for layer in report["layers"])

    size = measure_size(packed, None)
    others = sum(t.numel() * t.element_size() for n, t in stored.items() if n.rpartition(".")[0] not in names)
    assert size["parameters"] == parameters
    assert size["bytes"] == report["size/bytes"]
    assert size["nominal_bytes"] <= bits / 8 + others
    assert size["nominal_bytes"] >= bits / 8 + others - 8  # an embedding may hold a few zeros
    assert size["nominal_bits_per_parameter"] == pytest.approx(8 * size["nominal_bytes"] / parameters)


def test_it_loads_for_evaluation_like_any_model(packed: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model, tokenizer = load_candidate(packed, None, dtype)
        assert model.dtype == dtype
        ids = tokenizer("w1 w2 w3", return_tensors="pt").input_ids
        assert model.generate(ids, max_new_tokens=2, do_sample=False).shape == (1, 5)
    check_candidate(packed, None)


def test_the_harness_scores_it(packed: Path) -> None:
    from lm_eval.api.instance import Instance

    from tasks.evaluate.packed import PackedLM

    model, tokenizer = load_candidate(packed, None, torch.float32)
    lm = PackedLM(model, tokenizer, 256)
    request = Instance("loglikelihood", {}, ("w1 w2", " w3 w4"), 0)
    ((value, _),) = lm.loglikelihood([request])
    ids = tokenizer("w1 w2 w3 w4", return_tensors="pt").input_ids
    with torch.no_grad():
        logs = model(ids).logits.log_softmax(-1)
    assert value == pytest.approx(float(sum(logs[0, k - 1, ids[0, k]] for k in (2, 3))), abs=1e-4)


def test_same_inputs_same_bytes_and_distillation_helps(
    packed: Path, tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    summary = compress_model(tmp_path / "a", recipe=TAUGHT, model=tiny_model, calibration=tiny_text)
    assert fill(tmp_path / "a") == fill(packed)
    assert summary["distill_steps"] == 32
    assert summary["distill_tokens_used"] == 2048
    lines = [json.loads(line) for line in (packed / "distillation.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines]
    assert len(losses) == 32
    assert sum(losses[-8:]) < sum(losses[:8])
    assert {"factorise_seconds", "distill_seconds", "save_seconds"} <= summary["timings"].keys()
    plain = compress_model(tmp_path / "b", recipe=PLAIN, model=tiny_model)
    assert plain["calibration_digest"] == ""
    assert "distill_steps" not in plain


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("init", ["svd", "admm"])
def test_number_formats_and_starts(dtype: torch.dtype, init: str, tmp_path: Path) -> None:
    model = reference_to(save_tiny_model(tmp_path / "model", dtype=dtype, tie=False), "model")
    recipe = PLAIN.model_copy(update={"init": init, "residual": True, "iterations": 3})
    compress_model(tmp_path / "out", recipe=recipe, model=model)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    before = load_file(model.path / "model.safetensors")
    for name in ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"):
        assert torch.equal(stored[name], before[name])
    assert stored["model.layers.0.mlp.up_proj.weight"].dtype == torch.uint8


def test_a_killed_compression_goes_on_and_ends_with_the_same_bytes(
    packed: Path, tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code = f"""
import os, signal
from pathlib import Path
import tasks.compress.littlebit2 as work
import methods.littlebit2.distillation as training
from tasks.compress.compress import compress_model
from tasks.reference import reference_to
from tests.tasks.compress.test_littlebit2 import TAUGHT
work.CHECKPOINT_EVERY = 10
keep = training._keep
def killed(*given):
    keep(*given)
    os.kill(os.getpid(), signal.SIGKILL)
training._keep = killed
compress_model(Path({str(out)!r}), recipe=TAUGHT, model=reference_to(Path({str(tiny_model.path)!r}), "model"),
               calibration=reference_to(Path({str(tiny_text.path)!r}), "text"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert (out / ".parts" / "checkpoint").is_dir()
    assert len(list((out / ".parts" / "layers").glob("*.safetensors"))) == 21
    compress_model(out, recipe=TAUGHT, model=tiny_model, calibration=tiny_text)
    assert fill(out) == fill(packed)


@pytest.mark.parametrize("storage", ["packed", "dense"])
def test_an_attempt_killed_while_it_wrote_the_weights_does_no_harm(
    storage: str, tiny_model: Reference, tmp_path: Path
) -> None:
    """Dense weights, or some without a config.json, as either way of storage leaves them half-way."""
    recipe = PLAIN.model_copy(update={"storage": storage, "iterations": 1})
    compress_model(tmp_path / "whole", recipe=recipe, model=tiny_model)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut/model.safetensors").write_bytes(
        (tiny_model.path / "model.safetensors").read_bytes()[:99]
    )
    compress_model(tmp_path / "cut", recipe=recipe, model=tiny_model)
    assert fill(tmp_path / "cut") == fill(tmp_path / "whole")


def test_what_cannot_be_compressed_is_refused_in_one_line(
    packed: Path, tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"its weights are packed \(littlebit2\); give the unquantised model"):
        check_compression((PLAIN,), packed)
    with pytest.raises(DataError, match=r"packed \(littlebit2\)"):
        check_model_folder(packed, "causal-lm")  # training and merging take no packed model
    with pytest.raises(
        DataError, match=r"recipe littlebit2-2bit-2048tok-len16-lr0\.005 needs calibration text"
    ):
        compress_model(tmp_path / "a", recipe=TAUGHT, model=tiny_model)
    with pytest.raises(ConfigError, match="distill_length 128: the model reads at most 64 tokens"):
        compress_model(tmp_path / "b", recipe=LittleBitRecipe(), model=tiny_model, calibration=tiny_text)
    strict = PLAIN.model_copy(update={"bpp": 0.1, "strict": True})
    with pytest.raises(ConfigError, match=r"bpp 0\.1: model\.layers\.0\.self_attn\.q_proj .* needs at least"):
        check_compression((strict,), tiny_model.path)


def test_damaged_folders_are_refused_by_evaluate(packed: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "m"
    shutil.copytree(packed, folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["layers"]["model.layers.0.mlp.up_proj"][2] = 16
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="the files do not belong together, compress the model anew"):
        check_candidate(folder, None)
    config["quantization_config"]["quant_method"] = "gptq"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"packed \(gptq\)"):
        check_candidate(folder, None)


def test_dense_storage(tiny_model: Reference, tmp_path: Path) -> None:
    recipe = PLAIN.model_copy(update={"storage": "dense"})
    summary = compress_model(tmp_path / "out", recipe=recipe, model=tiny_model)
    assert summary["format"] == "dense"
    assert summary["size/bytes"] == pytest.approx(summary["size/dense_bytes"], rel=0.05)
    model, _ = load_candidate(tmp_path / "out", None, torch.float32)
    assert all(
        type(layer).__name__ == "Linear" for name, layer in model.named_modules() if name.endswith("_proj")
    )
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())


def test_labels_and_settings() -> None:
    assert LittleBitRecipe().label == "littlebit2-0.55bit"
    assert LittleBitRecipe(init="random_rotation", residual=True, distill_tokens=0).label == (
        "littlebit2-0.55bit-random-rotation-residual-undistilled"
    )
    changed = {
        "bpp": 0.3, "init": "svd", "residual": True, "iterations": 5, "kv_factor": 2.0, "distill_tokens": 9,
        "distill_length": 64, "distill_batch": 2, "distill_rate": 1e-5, "hidden_weight": 0.5, "gradient": "clipped",
        "distill_dtype": "float32", "storage": "dense",
    }  # fmt: skip
    assert (
        changed.keys() | {"kind", "strict"} == LittleBitRecipe.model_fields.keys()
    )  # strict changes no model
    labels = {LittleBitRecipe.model_validate({field: value}).label for field, value in changed.items()}
    assert len(labels | {LittleBitRecipe().label}) == len(changed) + 1
    assert all(set(label) <= set(string.ascii_letters + string.digits + "-._") for label in labels)
    assert LittleBitRecipe(distill_tokens=0, distill_rate=1e-5).label == "littlebit2-0.55bit-undistilled"
    assert LittleBitRecipe().uses_calibration
    assert not PLAIN.uses_calibration
    settings = CompressSettings.model_validate({"recipes": [{"kind": "littlebit2", "bpp": 0.3}]})
    assert settings.recipes == (LittleBitRecipe(bpp=0.3),)
    with pytest.raises(ValueError, match="bpp"):
        LittleBitRecipe(bpp=0)


def test_tokenizer_goes_along(packed: Path) -> None:
    assert AutoTokenizer.from_pretrained(packed)("w1").input_ids
