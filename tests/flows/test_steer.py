"""The steer flow from the command line, and which model a steering belongs to."""

import json
import shutil
from pathlib import Path

import pytest

from flows.steer import check
from flows.steer_config import SteerConfig
from methods.common.errors import ConfigError, DataError
from tests.flows.tiny_lifecycle import environment, seedloom
from tests.tasks.steer.planted_folder import write_planted
from tests.tiny_models import tiny_llama

SMALL = (
    *("--questions.template", "{question}", "--questions.train", "48", "--questions.test", "60"),
    *("--draw.temperature", "1", "--draw.top_p", "1", "--draw.top_k", "0", "--draw.max_new_tokens", "8"),
    *("--draw.delimiter", r"\.\n", "--draw.stop", "^x^", "--draw.batch_size", "256"),
    *("--heads", "1", "--alpha", "3", "--forks", "4"),
)


@pytest.mark.server
def test_a_steering_is_written_beside_its_model_and_belongs_to_it(tmp_path: Path) -> None:
    write_planted(tmp_path, questions=120)
    env = environment(tmp_path / "work")
    asked = (
        "run",
        "steer",
        "--model",
        "model",
        "--questions.source",
        "questions.jsonl",
        "--output",
        "steered",
    )
    done = seedloom(*asked, *SMALL, "--report.folder", "report", env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "DynaSteer" in done.stdout
    policies = json.loads((tmp_path / "report/metrics.json").read_text())["policies"]
    assert policies["steer"]["accuracy"] > policies["resample"]["accuracy"] + 0.1
    files = sorted(p.name for p in (tmp_path / "steered").iterdir() if not p.name.startswith("."))
    assert files == ["questions", "steer.json", "steering.json", "steering.safetensors"]

    from flows.evaluate import with_steering
    from flows.stages import given_candidates

    tiny_llama(tmp_path / "other")
    shutil.copytree(tmp_path / "model", tmp_path / "copy")
    candidates = given_candidates([str(tmp_path / "other"), str(tmp_path / "copy")])
    found = with_steering(str(tmp_path / "steered"), candidates)
    assert found is not None
    assert found.candidate == "copy"
    assert with_steering("none", candidates) is None
    with pytest.raises(DataError, match="was fitted on none of other; name its model in models"):
        with_steering(str(tmp_path / "steered"), candidates[:1])

    for wrong, says in (
        ({"policies": ("steer",)}, "steer without resample proves nothing"),
        ({"questions": {"source": "nowhere.jsonl"}}, "there is no such file"),
    ):
        given = {"model": str(tmp_path / "model"), "output": str(tmp_path / "new"), **wrong}
        with pytest.raises((ConfigError, DataError), match=says):
            check(SteerConfig.model_validate(given))
