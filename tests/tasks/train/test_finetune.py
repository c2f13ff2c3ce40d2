"""One expert of one task: it learns, it is the same for the same seed, its folder is one that others read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from methods.common.choice_scoring import ChoiceScorer, encode_rows
from methods.common.errors import DataError, NumericalError
from tasks.load_model import load_causal_lm
from tasks.reference import reference_to
from tasks.train.config import FinetuneSettings
from tasks.train.finetune import finetune
from tasks.train.loading import load_split, load_tokenizer, weights_digest
from tasks.train.trace import read_trace
from tests.tiny_experts import QUICK_TRAINING


def train(
    out: Path, base: Path, task: Path, settings: FinetuneSettings = QUICK_TRAINING, **more: Any
) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    given = {"stopping": "merge_aware", **more}
    return finetune(
        out, settings=settings, base=reference_to(base, "model"), task=reference_to(task, "tasks"), **given
    )


def test_accuracy(model: Any, base: Path, task: Path) -> float:
    items = encode_rows(load_tokenizer(base), load_split(task, "test"), max_length=64)
    return ChoiceScorer(items)(model.eval()).accuracy


test_accuracy.__test__ = False  # a helper with a telling name


@pytest.fixture(scope="module")
def expert(
    base: Path, tasks: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any], list]:
    out = tmp_path_factory.mktemp("expert") / "toy1"
    live: list[dict[str, float]] = []
    return out, train(out, base, tasks / "toy1", on_row=live.append), live


def test_the_expert_beats_the_base_on_its_task(expert: tuple, base: Path, tasks: Path) -> None:
    from peft import PeftModel

    before = test_accuracy(load_causal_lm(base, torch.float32), base, tasks / "toy1")
    adapted = PeftModel.from_pretrained(load_causal_lm(base, torch.float32), str(expert[0]))
    after = test_accuracy(adapted, base, tasks / "toy1")
    assert after >= before + 0.2


def test_what_the_folder_holds(expert: tuple, base: Path) -> None:
    out, summary, _ = expert
    assert sorted(p.name for p in out.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "expert.json",
        "stop.json",
        "trace.jsonl",
    ]
    record = json.loads((out / "expert.json").read_text())
    assert record["base_digest"] == weights_digest(base)
    assert record["task"] == summary["task"] == "toy1"
    for file in out.iterdir():
        assert str(base.parent).encode() not in file.read_bytes()
        assert str(out.parent).encode() not in file.read_bytes()
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(config["target_modules"])
    adapted = {module.rpartition(".")[2] for module in config["target_modules"]}
    assert adapted == {f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down")}
    assert config["base_model_name_or_path"] is None


def test_the_trace_is_what_was_logged_live(expert: tuple) -> None:
    out, summary, live = expert
    rows = read_trace(out)
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(1, summary["steps"] + 1))
    assert [row["train/learning_rate"] for row in rows[:3]] == pytest.approx([0.005, 0.01, 0.01])
    scores = {row["step"]: row["stop/score"] for row in rows if "stop/score" in row}
    assert scores == {row["step"]: row["stop_score"] for row in summary["trace"]}
    merged: dict[int, dict[str, float]] = {}
    for row in live:
        merged.setdefault(int(row["step"]), {}).update(row)
    assert [merged[step] for step in sorted(merged)] == rows
    assert summary["stop_score"] == max(scores.values())


def test_the_same_seed_gives_the_same_bytes(expert: tuple, base: Path, tasks: Path, tmp_path: Path) -> None:
    out, summary, _ = expert
    again = train(tmp_path / "again", base, tasks / "toy1")
    assert {k: v for k, v in again.items() if k != "timings"} == {
        k: v for k, v in summary.items() if k != "timings"
    }
    for file in out.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name
    short = QUICK_TRAINING.model_copy(update={"max_steps": 4})
    first, second = (
        train(tmp_path / str(seed), base, tasks / "toy1", short, seed=seed) and tmp_path / str(seed)
        for seed in (0, 1)
    )
    assert (first / "adapter_model.safetensors").read_bytes() != (
        second / "adapter_model.safetensors"
    ).read_bytes()


def test_what_another_configuration_left_is_not_used(base: Path, tasks: Path, tmp_path: Path) -> None:
    short = QUICK_TRAINING.model_copy(update={"max_steps": 4})
    left = tmp_path / "out" / ".checkpoints" / "checkpoint-2"
    left.mkdir(parents=True)
    (left / "trainer_state.json").write_text("{}")
    (left.parent / "run.json").write_text("{}")
    summary = train(tmp_path / "out", base, tasks / "toy0", short)
    assert summary["timings"]["steps_here"] == 4


def test_own_optimum_trains_on_and_keeps_the_best(base: Path, tasks: Path, tmp_path: Path) -> None:
    # a rate at which the score goes up and down
    settings = QUICK_TRAINING.model_copy(update={"learning_rate": 0.3, "max_steps": 16, "stop_every": 2})
    summary = train(tmp_path / "own", base, tasks / "toy0", settings, stopping="own_optimum")
    scores = {row["step"]: row["stop_score"] for row in summary["trace"]}
    assert summary["steps"] == 16
    assert summary["reason"] == "max_steps"
    assert summary["kept_step"] == max(scores, key=lambda step: scores[step])
    assert {row["learning_rate"] for row in summary["trace"]} == {0.3}


def test_fixed_keeps_the_last_weights(base: Path, tasks: Path, tmp_path: Path) -> None:
    settings = QUICK_TRAINING.model_copy(update={"max_steps": 5})
    summary = train(tmp_path / "fixed", base, tasks / "toy0", settings, stopping="fixed")
    assert summary["steps"] == summary["kept_step"] == 5
    assert [row["step"] for row in summary["trace"]] == [5]


def test_accuracy_can_decide(base: Path, tasks: Path, tmp_path: Path) -> None:
    settings = QUICK_TRAINING.model_copy(update={"max_steps": 4, "stop_metric": "accuracy"})
    summary = train(tmp_path / "accuracy", base, tasks / "toy0", settings)
    assert 0 <= summary["stop_score"] <= 1


def test_a_full_fine_tune_is_a_model_folder(base: Path, tasks: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    settings = QUICK_TRAINING.model_copy(update={"adapter": "full", "learning_rate": 0.01})
    out = tmp_path / "full"
    summary = train(out, base, tasks / "toy0", settings)
    before, after = load_file(base / "model.safetensors"), load_file(out / "model.safetensors")
    assert {n: (t.shape, t.dtype) for n, t in before.items()} == {
        n: (t.shape, t.dtype) for n, t in after.items()
    }
    assert not torch.equal(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])
    assert (out / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    accuracy = test_accuracy(load_causal_lm(out, torch.float32), out, tasks / "toy0")
    assert accuracy > test_accuracy(load_causal_lm(base, torch.float32), base, tasks / "toy0")
    assert summary["adapter"] == "full"


def test_free_text_trains_its_end(base: Path, free_text: Path, tmp_path: Path) -> None:
    settings = QUICK_TRAINING.model_copy(update={"max_steps": 4})
    assert train(tmp_path / "free", base, free_text, settings)["examples"] == 20


def test_a_loss_that_is_no_number_names_task_and_step(base: Path, tasks: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for file in base.iterdir():
        (tmp_path / "bad").mkdir(exist_ok=True)
        (tmp_path / "bad" / file.name).write_bytes(file.read_bytes())
    weights = load_file(base / "model.safetensors")
    weights["model.layers.0.mlp.down_proj.weight"][0, 0] = float("nan")
    save_file(weights, tmp_path / "bad" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(NumericalError, match=r"task toy0: .* at step 1") as caught:
        train(tmp_path / "out", tmp_path / "bad", tasks / "toy0")
    assert "\n" not in str(caught.value)


def test_bad_inputs_are_one_line(base: Path, tasks: Path, tmp_path: Path) -> None:
    import shutil

    lacking = shutil.copytree(tasks / "toy0", tmp_path / "lacking")
    shutil.rmtree(lacking / "stop")
    damaged = shutil.copytree(tasks / "toy0", tmp_path / "damaged")
    next((damaged / "train").glob("*.arrow")).write_bytes(b"nonsense")
    pickled = shutil.copytree(base, tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    tight = QUICK_TRAINING.model_copy(update={"max_length": 8})
    long = shutil.copytree(tasks / "toy0", tmp_path / "long")
    shutil.rmtree(long / "train")
    from datasets import Dataset

    Dataset.from_list([{"context": "a", "choices": [" red" * 30], "gold": 0}]).save_to_disk(
        str(long / "train")
    )
    for model, task, settings, words in (
        (base, lacking, QUICK_TRAINING, "task lacking: has no part 'stop'"),
        (base, damaged, QUICK_TRAINING, "task damaged: the part 'train' is damaged"),
        (pickled, tasks / "toy0", QUICK_TRAINING, "safetensors"),
        (base, long, tight, "max_length"),
    ):
        with pytest.raises(DataError, match=words) as caught:
            train(tmp_path / "out", model, task, settings)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="holds a model; this step needs"):
        finetune(
            tmp_path / "out",
            settings=QUICK_TRAINING,
            base=reference_to(base, "model"),
            task=reference_to(base, "model"),
            stopping="fixed",
        )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"warmup": 60}, "warmup 60 is not below max_steps"),
        ({"stoppings": ("fixed", "fixed")}, "twice"),
        ({"stop_factor": 1.0}, "less than 1"),
        ({"adapter": "dora"}, "lora"),
        ({"lernrate": 1}, "lernrate"),
    ],
)
def test_settings_that_do_not_fit(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FinetuneSettings(**values)
