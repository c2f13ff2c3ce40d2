"""The adapt flow from the command line: a model, its heat map, and mistakes in one line."""

import json
from pathlib import Path

import pytest

from flows.adapt_config import AdaptConfig
from flows.registry import entry
from methods.common.errors import DataError
from tests.flows.tiny_lifecycle import environment, seedloom
from tests.tiny_models import tiny_llama, toy_text

TINY = ("--max_steps", "4", "--batch_size", "2", "--learning_rate", "0.001", "--text.context", "260")
PLACES = ("--positions.task", "recall", "--positions.depths", "2", "--positions.prompts", "2")


@pytest.mark.server
def test_a_model_becomes_one_for_longer_text(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "llama")
    text = toy_text(tmp_path / "text.jsonl", documents=200)
    env = environment(tmp_path / "work")
    given = ("--text.source", str(text), "--positions.shorter", "false", *TINY, *PLACES)
    done = seedloom("run", "adapt", "--model", "llama", "--output", "made", *given, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "worst depth %" in done.stdout
    facts = json.loads((tmp_path / "made/adapt.json").read_text())
    assert (facts["method"], facts["steps"], facts["context"]) == ("psd-skip", 4, 260)
    (report,) = (tmp_path / "work/reports/adapt").iterdir()
    assert {p.name for p in (report / "plots").iterdir()} >= {"positions.png", "gaps.png", "training.csv"}
    found = json.loads((report / "metrics.json").read_text())["adapted"]
    assert set(found) == {"before", "after psd-skip"}
    assert set(found["before"]) >= {"tokens_260", "gap_260", "standard_ce"}


def test_mistakes_are_told_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_llama(tmp_path / "llama")
    text = toy_text(tmp_path / "text.jsonl")
    for values, says in (
        ({"model": "nowhere"}, "model: nowhere does not exist"),
        ({"text": {"source": "nowhere.txt"}}, "there is no such file"),
        ({"output": "llama"}, "overlap"),
    ):
        given = {"model": "llama", "text": {"source": str(text)}, "output": "made"}
        config = AdaptConfig.model_validate(given | values)
        with pytest.raises(DataError, match=says):
            entry("adapt").check(config)
