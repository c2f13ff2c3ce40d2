"""The probe as a part of evaluate: a compressed folder against its parent."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from methods.common.errors import DataError
from methods.pruning_representations import RepresentationProbe, drop_sublayers
from methods.pruning_representations.verdict import task_verdict
from tasks.compress.compress import compress_model
from tasks.compress.recipes import LittleBitRecipe
from tasks.evaluate.candidate import evaluate_model
from tasks.evaluate.config import EvaluateSettings
from tasks.evaluate.loading import load_candidate
from tasks.reference import reference_to
from tests.tiny_models import tiny_llama

PROBED = EvaluateSettings(
    dtype="float32", measure_speed=False, text_window=32, probe_prompts=3, probe_steps=6
)


def save_beside(model: Any, source: Path, folder: Path) -> Path:
    """A model with the tokenizer of another folder."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def dropped(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dense = AutoModelForCausalLM.from_pretrained(tiny)
    with torch.no_grad():
        for parameter in dense.model.layers.parameters():
            parameter.mul_(3)  # a random model's sublayers hardly change its output
    return save_beside(drop_sublayers(dense, attn=[0]), tiny, tmp_path_factory.mktemp("dropped") / "model")


def test_a_compressed_folder_is_probed_against_its_parent(
    tiny: Path, dropped: Path, task_sets: Path, text: Path, tmp_path: Path
) -> None:
    summary = evaluate_model(PROBED, dropped, task_sets, text, tmp_path, dense=tiny)
    metrics = summary["metrics"]
    assert metrics["probe/forced/kl"] > 0
    assert {"probe/free/agreement", "probe/first_divergence", "probe/options/agreement"} <= set(metrics)
    kinds = [item["kind"] for item in summary["outlook"]]
    assert kinds == ["uses of hidden states", "multiple choice", "free text"]
    steps = pd.read_csv(tmp_path / "probe_steps.csv")
    assert steps.groupby("mode").prompt.nunique().tolist() == [3, 3]
    assert len(pd.read_csv(tmp_path / "probe_options.csv")) == 12
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["outlook"] == summary["outlook"]
    again = evaluate_model(PROBED, dropped, task_sets, text, tmp_path / "again", dense=tiny)
    assert again["metrics"] == metrics


def test_a_model_against_itself_keeps_everything(
    tiny: Path, task_sets: Path, text: Path, tmp_path: Path
) -> None:
    summary = evaluate_model(PROBED, tiny, task_sets, text, tmp_path, dense=tiny)
    assert {item["outlook"] for item in summary["outlook"]} <= {"keeps", "not judged"}
    assert summary["metrics"]["probe/forced/kl"] == pytest.approx(0, abs=1e-6)


def test_nothing_is_probed_without_a_parent_or_when_it_is_off(
    tiny: Path, task_sets: Path, text: Path, tmp_path: Path
) -> None:
    for name, settings, dense in (
        ("alone", PROBED, None),
        ("off", PROBED.model_copy(update={"probe_prompts": 0}), tiny),
    ):
        summary = evaluate_model(settings, tiny, task_sets, text, tmp_path / name, dense=dense)
        assert "outlook" not in summary
        assert not any(metric.startswith("probe/") for metric in summary["metrics"])


def test_another_vocabulary_is_refused(tiny: Path, task_sets: Path, text: Path, tmp_path: Path) -> None:
    dense = AutoModelForCausalLM.from_pretrained(tiny)
    size = dense.config.vocab_size
    dense.resize_token_embeddings(size + 3)
    other = save_beside(dense, tiny, tmp_path / "model")
    with pytest.raises(DataError, match=f"vocabularies differ: {size + 3} and {size}"):
        evaluate_model(PROBED, tiny, task_sets, text, tmp_path / "out", dense=other)


def test_prompts_come_from_the_tasks_when_there_is_no_text(
    tiny: Path, task_sets: Path, tmp_path: Path
) -> None:
    summary = evaluate_model(PROBED, tiny, task_sets, None, tmp_path, dense=tiny)
    assert "probe/forced/kl" in summary["metrics"]


def test_outlook_by_its_bars() -> None:
    decoding = {"forced/cos_h": 0.95, "forced/agreement": 0.8}
    options = {"agreement": 0.7, "favourite_share": 0.5}
    found = {item.kind.split()[0]: item for item in task_verdict(decoding, options)}
    assert {kind: item.outlook for kind, item in found.items()} == {
        "uses": "keeps",
        "multiple": "at risk",
        "free": "at risk",
    }
    (_, habit, _) = task_verdict(decoding, {"agreement": 1.0, "favourite_share": 0.95})
    assert habit.outlook == "not judged"
    assert "prefers one letter in 95 % of the questions" in habit.reason
    assert "about 1 token until" in task_verdict({"forced/agreement": 0.1})[0].reason
    assert "about 5 tokens until the text differs" in found["free"].reason
    assert task_verdict({"forced/agreement": 0.74})[0].outlook == "fails"
    assert task_verdict({"forced/agreement": 0.95})[0].outlook == "keeps"


def test_a_packed_folder_is_probed_like_any_other(task_sets: Path, text: Path, tmp_path: Path) -> None:
    dense = tiny_llama(tmp_path / "dense", hidden=64)
    recipe = LittleBitRecipe(bpp=1.0, distill_tokens=0)
    compress_model(tmp_path / "packed", recipe=recipe, model=reference_to(dense, "model"))
    summary = evaluate_model(PROBED, tmp_path / "packed", task_sets, text, tmp_path / "out", dense=dense)
    assert summary["metrics"]["probe/forced/cos_h"] < 0.99
    network, _ = load_candidate(tmp_path / "packed", None, torch.float32)
    probe = RepresentationProbe(*load_candidate(dense, None, torch.float32))
    table = probe.layerwise(["the sea is blue and the rose is red . the leaf is green"], "pruned", network)
    assert table.frame.layer.nunique() == 2
    assert table.frame.kl.min() > 0
