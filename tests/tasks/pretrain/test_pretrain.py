"""Pre-training: it learns, its folder is an ordinary model, a kill changes nothing, divergence is a result."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from methods.common.errors import ConfigError
from methods.common.schedules import warm_flat_decay
from methods.span_norm import SpanNormForCausalLM
from tasks.prepare.config import ModelSettings
from tasks.prepare.models import check_model_folder, materialise_model
from tasks.pretrain.config import CorpusSettings, ModelShape, PretrainSettings
from tasks.pretrain.corpus import load_record, load_rows
from tasks.pretrain.pretrain import HeldOut, PackedRows, pretrain
from tasks.train.trace import read_trace
from tests.tasks.pretrain.tiny import reference, settings

ROOT = Path(__file__).parents[3]


def trained(corpus: Path, out: Path, **changes: Any) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    return pretrain(out, settings=settings(**changes), corpus=reference(corpus))


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("model") / "model"
    return out, trained(corpus, out, max_steps=40, evaluate_every=10)


def test_it_learns_and_says_how_much(run: tuple[Path, dict[str, Any]]) -> None:
    out, summary = run
    assert summary["validation_loss"] < summary["validation_loss_start"] - 1.5
    assert summary["improved"]
    assert summary["perplexity"] == pytest.approx(math.exp(summary["validation_loss"]))
    assert (summary["steps"], summary["kept_step"], summary["diverged"]) == (40, 40, False)
    rows = read_trace(out)
    assert [r["step"] for r in rows if "validation/loss" in r] == [0, 10, 20, 30, 40]
    assert sum("train/loss" in r for r in rows) == 40
    rates = [r["train/learning_rate"] for r in rows if "train/learning_rate" in r]
    assert max(rates) == pytest.approx(1e-2)
    assert rates[-1] < rates[20]
    assert summary["largest_grad_norm"] == max(r["train/grad_norm"] for r in rows if "train/grad_norm" in r)


def test_the_held_out_loss_is_that_of_the_written_model(
    run: tuple[Path, dict[str, Any]], corpus: Path
) -> None:
    out, summary = run
    rows, record = load_rows(corpus, "validation"), load_record(corpus)
    model = SpanNormForCausalLM.from_pretrained(out)
    held = HeldOut(rows, 16, record)
    with torch.no_grad():
        library = model(held.ids, labels=held.ids).loss
    assert summary["validation_loss"] == pytest.approx(float(library), abs=1e-5)
    per_byte = float(library) / math.log(2) * record["validation"]["tokens"] / record["validation"]["bytes"]
    assert summary["bits_per_byte"] == pytest.approx(per_byte, abs=1e-5)


def test_the_folder_is_an_ordinary_model_for_every_other_process(run: tuple[Path, dict[str, Any]]) -> None:
    """A process that knows nothing of it: checked, evaluated, generated from; no foreign code."""
    out, _ = run
    script = (
        "import sys, torch; from pathlib import Path\n"
        "from tasks.evaluate.loading import load_candidate\n"
        "model, tokenizer = load_candidate(Path(sys.argv[1]), None, torch.float32)\n"
        "ids = tokenizer('the apple is', return_tensors='pt').input_ids\n"
        "print(type(model).__name__, tokenizer.decode(model.generate(ids, max_new_tokens=8)[0]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(out)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("SpanNormForCausalLM the apple is")


def test_the_folder_says_how_it_is_loaded(run: tuple[Path, dict[str, Any]]) -> None:
    """Outside of Seedloom transformers would tell its user to update transformers, which does not help."""
    out, summary = run
    card = (out / "README.md").read_text()
    assert f"{summary['parameters']:,} parameters" in card
    assert json.loads((out / "config.json").read_text())["use_cache"] is True
    (script,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            script.replace("path/to/this/folder", str(out)) + "print(type(model).__name__)",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.stdout.strip() == "SpanNormForCausalLM", done.stderr[-2000:]


def test_prepare_takes_it(run: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, summary = run
    check_model_folder(out, "causal-lm")
    made = materialise_model(ModelSettings(source=str(out), dtype="bfloat16"), tmp_path / "base")
    assert made["parameters"] == summary["parameters"]
    assert made["model_type"] == "spannorm"


def test_it_can_be_compressed(run: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    from tasks.compress.compress import compress_model
    from tasks.compress.recipes import MagnitudeRecipe
    from tasks.reference import reference_to

    out, _ = run
    done = compress_model(
        tmp_path / "pruned", recipe=MagnitudeRecipe(sparsity=0.5), model=reference_to(out, "model")
    )
    assert 0.4 < done["sparsity"] < 0.6


@pytest.mark.parametrize("scheme", ["prenorm", "siamese"])
def test_other_schemes_and_experts_train(corpus: Path, tmp_path: Path, scheme: str) -> None:
    summary = trained(corpus, tmp_path / scheme, shape={"norm_scheme": scheme, "experts": 2})
    assert summary["improved"]
    config = json.loads((tmp_path / scheme / "config.json").read_text())
    assert (config["norm_scheme"], config["num_experts"]) == (scheme, 2)


def test_the_width_rule_reaches_the_model_and_the_optimiser(corpus: Path, tmp_path: Path) -> None:
    trained(corpus, tmp_path / "wide", shape={"mup_base_width": 16})
    assert json.loads((tmp_path / "wide/config.json").read_text())["mup_base_width"] == 16
    rates = [r["train/learning_rate"] for r in read_trace(tmp_path / "wide") if "train/learning_rate" in r]
    assert max(rates) == pytest.approx(5e-3)  # the first group is the hidden matrices'


# -- resume ---------------------------------------------------------------------------------------------------------


def test_a_killed_run_ends_like_one_that_was_not(corpus: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tasks.pretrain.killed_pretrain", str(corpus), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    whole = found["0"]
    assert (whole["signal"], whole["status"], whole["steps_here"]) == (0, 0, 12)
    for point, steps in (("7", 8), ("-1", 0)):
        killed = found[point]
        assert killed["signal"] == signal.SIGKILL
        assert ".checkpoints" in killed["left"]
        assert killed["status"] == 0
        assert killed["files"] == whole["files"]
        assert killed["summary"] == whole["summary"]
        assert killed["steps_here"] == steps


def test_another_setting_does_not_go_on_from_old_checkpoints(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    stale = out / ".checkpoints/checkpoint-8"
    stale.mkdir(parents=True)
    (stale / "trainer_state.json").write_text("{}")
    assert trained(corpus, out)["timings"]["steps_here"] == 12


# -- divergence -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "kept"), [(7, 4), (2, 0)])
def test_a_loss_that_is_no_number_ends_the_run_as_a_result(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, kept: int
) -> None:
    forward, calls = SpanNormForCausalLM.forward, []

    def broken(self: SpanNormForCausalLM, *args: Any, **kwargs: Any) -> Any:
        out = forward(self, *args, **kwargs)
        if kwargs.get("labels") is not None:
            calls.append(1)
            if len(calls) == at:
                out.loss = out.loss * math.nan
        return out

    monkeypatch.setattr(SpanNormForCausalLM, "forward", broken)
    summary = trained(corpus, tmp_path / "model")
    assert summary["diverged"]
    assert (summary["diverged_step"], summary["kept_step"], summary["steps"]) == (at, kept, at)
    assert math.isfinite(summary["validation_loss"])
    check_model_folder(tmp_path / "model")
    weights = SpanNormForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    assert all(value.isfinite().all() for value in weights.values())


# -- rows, schedule, settings -----------------------------------------------------------------------------------------


def test_every_row_once_an_epoch_and_another_order_each_time(corpus: Path) -> None:
    rows = load_rows(corpus, "train")
    count = len(rows)
    packed = PackedRows(rows, 2 * count, seed=3)
    first = [tuple(packed[i]["input_ids"].tolist()) for i in range(count)]
    second = [tuple(packed[i]["input_ids"].tolist()) for i in range(count, 2 * count)]
    assert sorted(first) == sorted(second) == sorted(tuple(row) for row in rows["input_ids"])
    assert first != second
    assert first == [tuple(PackedRows(rows, count, seed=3)[i]["input_ids"].tolist()) for i in range(count)]
    assert first != [tuple(PackedRows(rows, count, seed=4)[i]["input_ids"].tolist()) for i in range(count)]


def test_the_schedule() -> None:
    factor = warm_flat_decay(10, 2, 4)
    assert [factor(step) for step in range(10)] == [0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    assert warm_flat_decay(3, 0, 0)(0) == 1.0


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: ModelShape(width=30, heads=4), "heads 4 must divide width 30"),
        (lambda: ModelShape(width=12, heads=4), "heads of even size"),
        (lambda: ModelShape(experts=2, experts_per_token=3), "experts_per_token 3 is above experts 2"),
        (lambda: PretrainSettings(warmup_share=0.7, decay_share=0.5), "above 1 together"),
        (lambda: CorpusSettings(validation_share=0), "greater than 0"),
        (lambda: CorpusSettings(vocabulary=100), "greater than or equal to 260"),
        (lambda: ModelShape(norm_scheme="middle"), "Input should be 'span'"),
    ],
)
def test_wrong_settings_are_named(build: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        build()


def test_a_batch_that_cannot_be_split_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="batch_size=4 cannot be split over 3 processes"):
        trained(corpus, tmp_path / "model")
