"""What a compressed candidate is probed against, and what is refused before any work."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from flows.evaluate import check
from flows.stages import check_probe, dense_parent
from flows.steps_config import EvaluateConfig
from methods.common.errors import ConfigError, DataError
from tasks.candidates import Candidate, Stage, save_candidates
from tasks.compress.record import note_calibration
from tasks.evaluate.config import EvaluateSettings
from tasks.reference import reference_to
from tests.tiny_models import tiny_llama

PROBED = EvaluateSettings(probe_prompts=2, probe_steps=8)


def candidate(name: str, folder: Path, stage: Stage = "base", **fields: Any) -> Candidate:
    reference = reference_to(folder, "model")
    return Candidate(name=name, stage=stage, method="x", reference=reference, **fields)


@pytest.fixture
def dense(tmp_path: Path) -> Candidate:
    return candidate("base", tiny_llama(tmp_path / "dense"))


@pytest.fixture
def made(tmp_path: Path, dense: Candidate) -> Candidate:
    """As the compress flow writes it: the parent had another name there."""
    folder = tiny_llama(tmp_path / "made", seed=1)
    (folder / "compression.json").write_text(json.dumps({"model_digest": dense.reference.digest}))
    return candidate("compressed/x", folder, "compressed", parents=("my-model",))


def test_the_parent_is_found_by_content_whatever_it_is_called(dense: Candidate, made: Candidate) -> None:
    assert dense_parent(made, [dense, made]) == dense.reference
    assert dense_parent(made, [made]) is None
    assert dense_parent(dense, [dense, made]) is None
    # Named on its own, a compressed folder is a model like any other.
    alone = made.model_copy(update={"name": "made", "stage": "base", "parents": ()})
    assert dense_parent(alone, [dense, alone]) == dense.reference
    adapter = dense.model_copy(update={"reference": dense.reference.model_copy(update={"kind": "adapter"})})
    assert dense_parent(made, [adapter, made]) is None


def test_a_probe_that_cannot_be_made_is_refused(dense: Candidate, made: Candidate) -> None:
    check_probe(PROBED, [dense, made])
    check_probe(EvaluateSettings(), [made])
    with pytest.raises(DataError, match="probe_prompts: none of the models is a compressed one"):
        check_probe(PROBED, [dense])
    with pytest.raises(DataError, match="the model that compressed/x was made from is not among the models"):
        check_probe(PROBED, [made])
    with pytest.raises(ConfigError, match="probe_steps 256: the model reads at most 256 tokens"):
        check_probe(EvaluateSettings(probe_prompts=2, probe_steps=256), [dense, made])


def test_evaluate_refuses_calibration_text_and_a_probe_without_a_parent(
    dense: Candidate, made: Candidate, tmp_path: Path
) -> None:
    for name, documents in (("seen", ["the sea is blue", "more"]), ("other", ["the sky is red"])):
        Dataset.from_dict({"text": documents}).save_to_disk(str(tmp_path / name))
    note_calibration(made.reference.path, dense.reference.path, ["the sea is blue"])
    save_candidates([made], tmp_path / "compressed")
    (tmp_path / "tasks" / "toy").mkdir(parents=True)
    (tmp_path / "tasks" / "toy" / "task.json").write_text("{}")
    given = {
        "models": (str(dense.reference.path), str(tmp_path / "compressed")),
        "base": "none",
        "tasks": str(tmp_path / "tasks"),
        "probe_prompts": 2,
    }
    check(EvaluateConfig.model_validate({**given, "text": str(tmp_path / "other")}))
    check(EvaluateConfig.model_validate({**given, "text": "none"}))
    with pytest.raises(DataError, match="text: 1 of its 2 documents were calibration text of compressed/x"):
        check(EvaluateConfig.model_validate({**given, "text": str(tmp_path / "seen")}))
    with pytest.raises(DataError, match="is not among the models"):
        check(EvaluateConfig.model_validate({**given, "models": given["models"][1:], "text": "none"}))
