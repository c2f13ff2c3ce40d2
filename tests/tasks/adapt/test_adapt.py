"""Adaptation: every method trains, the folder is an ordinary model, a kill changes nothing, answers are measured."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from methods.common.errors import DataError, NumericalError
from methods.rope_psd import RopePSDLoss
from tasks.adapt.adapt import VIEWS, PoseRows, adapt, build_long_text
from tasks.adapt.config import AdaptSettings, LongText, PositionSettings
from tasks.adapt.positions import check_adaptable, measure_positions
from tasks.load_model import load_causal_lm
from tasks.prepare.models import check_model_folder
from tasks.pretrain.corpus import load_rows
from tasks.pretrain.pretrain import PackedRows
from tasks.reference import Reference, reference_to
from tasks.report.adapt import answers_table, gaps_figure, gaps_table, heat_map, metrics_of, shown_table
from tasks.train.trace import read_trace
from tests.tasks.adapt.tiny import inputs, settings

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Reference]:
    return inputs(tmp_path_factory.mktemp("adapt"))


def done(given: tuple[Reference, Reference], out: Path, **changes: Any) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    return adapt(out, settings=settings(**changes), model=given[0], corpus=given[1])


@pytest.mark.parametrize("method", VIEWS)
def test_every_method_trains_and_writes_a_model(
    given: tuple[Reference, Reference], tmp_path: Path, method: str
) -> None:
    summary = done(given, tmp_path / "out", method=method, max_steps=3, evaluate_every=3)
    check_model_folder(tmp_path / "out", "causal-lm")
    assert summary["validation_loss"] < summary["validation_loss_start"]
    assert (summary["view_kl"] > 0) == method.startswith("psd")
    rows = [row for row in read_trace(tmp_path / "out") if "train/clm" in row]
    assert [row["step"] for row in rows] == [1, 2, 3]
    before, after = (load_causal_lm(place) for place in (given[0].path, tmp_path / "out"))
    assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    assert after.config.use_cache


def test_a_new_base_of_the_rotation_is_in_the_folder(
    given: tuple[Reference, Reference], tmp_path: Path
) -> None:
    done(given, tmp_path / "out", max_steps=1, rope_theta=8e6)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["rope_parameters"]["rope_theta"] == 8e6
    assert config["max_position_embeddings"] == 256  # the model's own window is longer than the rows


def test_a_killed_run_ends_like_one_that_was_not(tmp_path: Path) -> None:
    inputs(tmp_path)
    run = subprocess.run(
        [sys.executable, "-m", "tests.tasks.adapt.killed_adapt", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    whole, killed = found["0"], found["6"]
    assert (whole["signal"], whole["status"], whole["steps_here"]) == (0, 0, 8)
    assert (killed["signal"], killed["status"], killed["steps_here"]) == (signal.SIGKILL, 0, 4)
    assert killed["files"] == whole["files"]
    assert killed["summary"] == whole["summary"]


def test_a_loss_that_is_no_number_is_told(
    given: tuple[Reference, Reference], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, calls = RopePSDLoss.__call__, []

    def broken(self: RopePSDLoss, *args: Any, **kwargs: Any) -> Any:
        told = call(self, *args, **kwargs)
        calls.append(1)
        return told | {"loss": told["loss"] * float("nan" if len(calls) == 3 else 1)}

    monkeypatch.setattr(RopePSDLoss, "__call__", broken)
    with pytest.raises(NumericalError, match=r"left the finite numbers at step 3; lower learning_rate=0.001"):
        done(given, tmp_path / "out")


def test_pose_rows_come_from_two_neighbours(given: tuple[Reference, Reference]) -> None:
    packed = PackedRows(load_rows(given[1].path, "train"), 10, seed=0)
    rows = PoseRows(packed, 32, 64, seed=0)
    assert len(rows) == 10
    for index in range(10):
        row = rows[index]
        both = torch.cat((packed[index]["input_ids"], packed[(index + 1) % 10]["input_ids"]))
        border = (
            int((row["position_ids"].diff() != 1).nonzero()[0]) + 1 if row["position_ids"][-1] > 31 else 1
        )
        assert torch.equal(row["input_ids"][:border], both[:border])
        assert int(row["position_ids"][-1]) < 64
        assert torch.equal(row["input_ids"], rows[index]["input_ids"])


def test_answers_are_measured_and_shown(tmp_path: Path) -> None:
    model, corpus = inputs(tmp_path, context=260)
    measured: dict[str, Path] = {}
    for name, changes in (("before", {}), ("after", {})):
        out = tmp_path / name
        out.mkdir()
        asked = PositionSettings(
            task="recall", depths=3, prompts=2, beyond=1.5, rows=2, shorter=False, **changes
        )
        told = measure_positions(out, settings=asked, model=model, corpus=corpus)
        assert [row["length"] for row in told["report"]] == [260, 390]
        assert [row["gap"] for row in told["gaps"]] == [65, 260, 1040]
        measured[name] = out
    assert (tmp_path / "before/answers.json").read_bytes() == (tmp_path / "after/answers.json").read_bytes()
    answers = answers_table(measured)
    assert len(answers) == 2 * 2 * 3
    assert answers.prompts.tolist() == [2] * 12
    assert len(shown_table(measured)) == 4
    assert heat_map(answers).axes
    assert gaps_figure(gaps_table(measured)).axes
    json.dumps(metrics_of(measured), allow_nan=False)


def test_models_without_rotation_are_refused_before_any_work(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    from tests.tiny_models import tiny_llama

    llama = tiny_llama(tmp_path / "llama")
    check_adaptable(llama)
    GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=300)).save_pretrained(
        tmp_path / "gpt2"
    )
    AutoTokenizer.from_pretrained(llama).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(DataError, match="a gpt2 has no rotary positions"):
        check_adaptable(tmp_path / "gpt2")
    config = json.loads((llama / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    (llama / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="rotary frequencies are 'dynamic'"):
        check_adaptable(llama)
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    (llama / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="several position indices a token"):
        check_adaptable(llama)


def test_text_that_is_too_short_is_refused(tmp_path: Path) -> None:
    model, _ = inputs(tmp_path)
    short = tmp_path / "short.txt"
    short.write_text("the apple is red . " * 4)
    with pytest.raises(DataError, match="fewer than one row of 512; give more text"):
        build_long_text(tmp_path / "out", text=LongText(source=str(short), context=512), model=model)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"method": "shuffle"}, "Input should be 'psd-skip'"),
        ({"kl_weight": 0}, "greater than 0"),
        ({"text": {"context": 3}}, "greater than or equal to 8"),
        ({"warmup_share": 0.5, "decay_share": 0.6}, "above 1 together"),
        ({"positions": {"beyond": 0.5}}, "greater than or equal to 1"),
    ],
)
def test_wrong_settings_are_named(values: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        AdaptSettings.model_validate(values)


def test_references_of_the_wrong_kind_are_refused(given: tuple[Reference, Reference], tmp_path: Path) -> None:
    wrong = reference_to(given[1].path, "text")
    with pytest.raises(DataError, match="this step needs data"):
        adapt(tmp_path, settings=settings(), model=given[0], corpus=wrong)
