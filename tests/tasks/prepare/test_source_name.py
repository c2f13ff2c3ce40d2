"""What a prepared folder says about its source: the same however a path is written, and nothing of this machine."""

import json
import shutil
from pathlib import Path

import pytest

from tasks.prepare.config import ModelSettings
from tasks.prepare.models import materialise_model
from tasks.prepare.user_data import source_name
from tasks.reference import reference_to
from tests.tiny_models import tiny_llama


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert {
        source_name(s)
        for s in ("mine", "./mine", "mine/", str(tmp_path / "mine"), "../" + tmp_path.name + "/mine")
    } == {"mine"}
    assert source_name("owner/model") == "owner/model"
    assert source_name("bundled:smollm2-135m") == "bundled:smollm2-135m"
    assert source_name(f"{tmp_path}/*.jsonl") == "*.jsonl"


def test_one_model_is_one_digest_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_llama(tmp_path / "mine")
    shutil.copytree(tmp_path / "mine", tmp_path / "elsewhere" / "mine")
    digests = set()
    for number, source in enumerate(("mine", "./mine", str(tmp_path / "mine"), "elsewhere/mine")):
        out = tmp_path / f"out{number}"
        materialise_model(ModelSettings(source=source), out)
        digests.add(reference_to(out, "model").digest)
        assert str(tmp_path) not in json.dumps(json.loads((out / "provenance.json").read_text()))
    assert len(digests) == 1
