"""The compress step on model folders: what it writes, honest sizes, refusals, kill and resume."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from methods.common.errors import ConfigError, DataError
from tasks.compress.compress import check_compression, compress_model
from tasks.compress.recipes import CompressionRecipe, MagnitudeRecipe, WandaRecipe
from tasks.reference import Reference, content_files, reference_to
from tasks.step import run_step
from tests.tasks.compress.conftest import save_text, save_tiny_model

ROOT = Path(__file__).parents[3]
WANDA = WandaRecipe(calibration_sequences=4, calibration_length=16)
RECIPES = [
    MagnitudeRecipe(),
    MagnitudeRecipe(pattern="2:4"),
    WANDA,
    WANDA.model_copy(update={"pattern": "4:8"}),
]


def fill(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in content_files(folder)}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.label)
def test_output_is_a_normal_folder_with_a_true_report(
    recipe: CompressionRecipe, tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    summary = compress_model(tmp_path, recipe=recipe, model=tiny_model, calibration=tiny_text, seed=0)
    before, after = (
        load_file(tiny_model.path / "model.safetensors"),
        load_file(tmp_path / "model.safetensors"),
    )
    assert before.keys() == after.keys()
    pruned = {name for name in before if not torch.equal(before[name], after[name])}
    assert pruned == {name for name in before if name.endswith("_proj.weight")}
    assert all(after[name].dtype == before[name].dtype for name in before)
    assert all(((after[name] == 0) | (after[name] == before[name])).all() for name in pruned)

    report = json.loads((tmp_path / "compression.json").read_text())
    assert {name: value for name, value in report.items() if name != "layers"} == {
        name: value for name, value in summary.items() if name != "timings"
    }
    assert {f"{layer['name']}.weight" for layer in report["layers"]} == pruned
    for layer in report["layers"]:
        assert layer["sparsity"] == float((after[f"{layer['name']}.weight"] == 0).float().mean()) == 0.5
    assert report["recipe"] == recipe.model_dump(mode="json")
    # Sizes, counted a second time from the tensors.
    numbers = sum(tensor.numel() for tensor in after.values())
    nonzero = sum(int(tensor.count_nonzero()) for tensor in after.values())
    in_layers = sum(after[name].numel() for name in pruned)
    assert report["size/nonzero_share"] == nonzero / numbers
    assert (
        report["size/bytes"] == report["size/dense_bytes"] == (tmp_path / "model.safetensors").stat().st_size
    )
    assert report["size/nominal_bytes"] == 4 * (numbers - in_layers) + in_layers // 8 + 4 * in_layers // 2
    assert report["size/nominal_bits_per_weight"] == 17

    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = AutoTokenizer.from_pretrained(tmp_path)("w1 w2 w3", return_tensors="pt").input_ids
    assert model.generate(ids, max_new_tokens=3, do_sample=False).shape == (1, 6)
    assert (tmp_path / "LICENSE").exists()
    assert not (tmp_path / "optimizer.pt").exists()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.label)
def test_same_inputs_same_bytes(
    recipe: CompressionRecipe, tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        compress_model(tmp_path / name, recipe=recipe, model=tiny_model, calibration=tiny_text, seed=3)
    assert fill(tmp_path / "a") == fill(tmp_path / "b")


def test_another_seed_calibrates_on_other_text(
    tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    for seed in (0, 1):
        compress_model(tmp_path / str(seed), recipe=WANDA, model=tiny_model, calibration=tiny_text, seed=seed)
    first, second = (load_file(tmp_path / seed / "model.safetensors") for seed in "01")
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_format_is_kept_and_an_untied_head_stays(tiny_text: Reference, tmp_path: Path) -> None:
    model = reference_to(save_tiny_model(tmp_path / "model", dtype=torch.bfloat16, tie=False), "model")
    compress_model(tmp_path / "out", recipe=WANDA, model=model, calibration=tiny_text)
    before = load_file(tmp_path / "model" / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    for name in ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"):
        assert torch.equal(before[name], after[name])


def test_only_the_calibration_part_of_the_prepared_text_is_read(
    tiny_model: Reference, tmp_path: Path
) -> None:
    """The evaluation text beside it may change without any effect."""
    for name, heldout in (("a", 5), ("b", 9)):
        save_text(tmp_path / name, documents=heldout)
        save_text(tmp_path / name / "calibration", documents=12)
        compress_model(
            tmp_path / f"out-{name}",
            recipe=WANDA,
            model=tiny_model,
            calibration=reference_to(tmp_path / name, "text"),
        )
    first, second = (load_file(tmp_path / f"out-{name}" / "model.safetensors") for name in "ab")
    assert all(torch.equal(first[name], second[name]) for name in first)


KILLED = """
import os, signal, sys
from pathlib import Path
from tasks.compress import compress
from tasks.compress.recipes import WandaRecipe
from tasks.reference import reference_to
def killed(*_):
    print("written", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
compress._copy_side_files = killed
compress.compress_model(
    Path(sys.argv[1]),
    recipe=WandaRecipe(calibration_sequences=4, calibration_length=16),
    model=reference_to(Path(sys.argv[2]), "model"),
    calibration=reference_to(Path(sys.argv[3]), "text"),
)
"""


def test_after_a_kill_the_next_attempt_ends_with_the_same_bytes(
    tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = [sys.executable, "-c", KILLED, *map(str, (out, tiny_model.path, tiny_text.path))]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, env=env, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (out / "model.safetensors").exists()
    assert not (out / "compression.json").exists()
    (out / "model.safetensors").write_bytes(b"half")
    (out / "left-over").mkdir()

    for folder in (out, tmp_path / "clean"):
        compress_model(folder, recipe=WANDA, model=tiny_model, calibration=tiny_text)
    assert fill(out) == fill(tmp_path / "clean")
    assert not (out / "left-over").exists()


def test_as_a_step_the_times_stand_beside_the_summary_and_the_second_call_is_free(
    work: Path, tiny_model: Reference, tiny_text: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs: dict[str, Any] = {"recipe": WANDA, "model": tiny_model, "calibration": tiny_text, "seed": 0}
    result = run_step("compress", "1", "model", compress_model, inputs)
    assert {"load_seconds", "prune_seconds", "save_seconds"} <= result.timings.keys()
    assert "timings" not in result.summary
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    again = run_step("compress", "1", "model", compress_model, inputs)
    assert again.reference.digest == result.reference.digest


def damaged_copy(tmp_path: Path, name: str, value: float) -> Reference:
    folder = save_tiny_model(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors[name][0, 0] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return reference_to(folder, "model")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_tensor_that_is_not_finite_is_named(value: float, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(DataError, match=f"tensor {name} holds NaN or infinity"):
        compress_model(tmp_path / "out", recipe=MagnitudeRecipe(), model=damaged_copy(tmp_path, name, value))


def with_config(tmp_path: Path, **changes: Any) -> Reference:
    folder = save_tiny_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return reference_to(folder, "model")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
            "'mamba' has no known linear layers; known are",
        ),
        ({"model_type": "bert", "architectures": ["BertModel"]}, "holds BertModel, no causal language model"),
        ({"auto_map": {"AutoModel": "code.py"}}, "never run here"),
    ],
)
def test_models_that_cannot_be_pruned(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = with_config(tmp_path, **changes)
    with pytest.raises(DataError, match=message):
        check_compression((MagnitudeRecipe(),), model.path)
    with pytest.raises(DataError, match=message):
        compress_model(tmp_path / "out", recipe=MagnitudeRecipe(), model=model)
    assert not (tmp_path / "out").exists()


def test_calibration_longer_than_the_model_reads(
    tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    recipe = WandaRecipe(calibration_length=65)
    with pytest.raises(ConfigError, match="calibration_length 65: the model reads at most 64 tokens"):
        compress_model(tmp_path, recipe=recipe, model=tiny_model, calibration=tiny_text)


def test_calibration_that_is_missing_or_wrong(tiny_model: Reference, tmp_path: Path) -> None:
    def attempt(text: Path | None) -> None:
        reference = None if text is None else reference_to(text, "text")
        compress_model(tmp_path / "out", recipe=WANDA, model=tiny_model, calibration=reference)

    with pytest.raises(DataError, match=r"recipe wanda-50pct-c4x16 needs calibration text"):
        attempt(None)
    Dataset.from_dict({"text": ["", " "]}).save_to_disk(str(tmp_path / "blank"))
    with pytest.raises(DataError, match="calibration text is empty"):
        attempt(tmp_path / "blank")
    Dataset.from_dict({"words": ["w1"]}).save_to_disk(str(tmp_path / "column"))
    with pytest.raises(DataError, match=r"has no column 'text' \(it has words\)"):
        attempt(tmp_path / "column")
    Dataset.from_dict({"text": [1, 2]}).save_to_disk(str(tmp_path / "numbers"))
    with pytest.raises(DataError, match="column 'text' holds int"):
        attempt(tmp_path / "numbers")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a.txt").write_text("w1")
    with pytest.raises(DataError, match=r"is no data set written by datasets\.save_to_disk"):
        attempt(tmp_path / "plain")


def test_a_reference_of_another_kind_is_refused(
    tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="holds a text; this step needs model"):
        compress_model(tmp_path, recipe=MagnitudeRecipe(), model=tiny_text)
    with pytest.raises(DataError, match="holds a model; this step needs text"):
        compress_model(tmp_path, recipe=WANDA, model=tiny_model, calibration=tiny_model)


def test_the_step_is_a_prefect_task_with_its_description() -> None:
    from tasks.compress.steps import compress

    assert compress.name == "compress"
    assert "compression.json" in (compress.description or "")
