"""The pretrain flow from the command line, and the lifecycle on what it made."""

import json
from pathlib import Path

import pytest

from tests.flows.tiny_lifecycle import environment, seedloom, tiny_settings, write_params
from tests.tiny_models import toy_text

TINY = (
    *("--shape.layers", "2", "--shape.width", "32", "--shape.ffn", "64", "--shape.heads", "2"),
    *(
        "--corpus.vocabulary",
        "300",
        "--corpus.context",
        "128",
        "--max_steps",
        "20",
        "--learning_rate",
        "0.01",
    ),
)


@pytest.mark.server
def test_the_lifecycle_goes_on_from_a_pretrained_model(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path)
    text = toy_text(tmp_path / "corpus.jsonl", documents=200)
    env = environment(tmp_path / "work")
    arguments = ("run", "pretrain", "--corpus.source", str(text), "--output", "made", *TINY)
    done = seedloom(*arguments, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads((tmp_path / "made/pretrain.json").read_text())
    assert facts["improved"]
    assert "held-out loss at the end" in done.stdout
    assert str(tmp_path) not in (tmp_path / "made/config.json").read_text()

    settings["prepare"]["model"] = {"source": "made", "dtype": "float32"}
    params = write_params(tmp_path / "params.json", settings)
    lifecycle = ("run", "lifecycle", "--params", f"{params}:lifecycle", "--report.folder", "report")
    done = seedloom(*lifecycle, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    scores = json.loads((tmp_path / "report/metrics.json").read_text())["candidates"]
    assert {"base", "merge/ties"} <= set(scores)
    assert any(name.startswith("compressed/wanda") for name in scores)


def test_mistakes_are_one_line_before_any_work(tmp_path: Path) -> None:
    env = environment(tmp_path / "work")
    (tmp_path / "made").mkdir()
    (tmp_path / "made/notes.txt").write_text("mine")
    text = str(toy_text(tmp_path / "corpus.jsonl"))
    for arguments, says in (
        (("--corpus.source", "nowhere.txt"), "there is no such file"),
        (("--corpus.source", text, "--output", "made"), "made holds other files"),
        (("--corpus.source", text, "--shape.heads", "3"), "heads 3 must divide width 128"),
    ):
        done = seedloom("run", "pretrain", *arguments, env=env, cwd=tmp_path)
        assert done.returncode == 2, done.stdout
        assert says in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
