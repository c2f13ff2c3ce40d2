"""Scoring a candidate: harness and text against plain loops, adapters against merged models, and bad inputs."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, load_from_disk
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from methods.common.errors import DataError
from tasks.evaluate.candidate import evaluate_model
from tasks.evaluate.config import EvaluateSettings
from tasks.evaluate.items import read_items
from tasks.evaluate.loading import measure_size
from tasks.evaluate.perplexity import windows
from tests.tasks.evaluate.oracle import loglikelihood, scores, token_loglikelihood
from tests.tasks.prepare.test_models import files_of
from tests.tiny_models import tiny_llama

PLAIN = EvaluateSettings(dtype="float32", measure_speed=False, text_window=32)


@pytest.fixture(scope="module")
def evaluated(
    tiny: Path, task_sets: Path, text: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("evaluated")
    return out, evaluate_model(PLAIN, tiny, task_sets, text, out)


def load(folder: Path) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("task", ["toy0", "toy1"])
def test_multiple_choice_equals_the_plain_loop(
    task: str, evaluated: Any, tiny: Path, task_sets: Path
) -> None:
    metrics = evaluated[1]["metrics"]
    for name, value in scores(*load(tiny), load_from_disk(str(task_sets / task / "test"))).items():
        assert metrics[f"test/{task}/{name}"] == pytest.approx(value, abs=1e-5)


def test_free_text_equals_the_plain_loop(evaluated: Any, tiny: Path, task_sets: Path) -> None:
    model, tokenizer = load(tiny)
    docs = load_from_disk(str(task_sets / "free" / "test"))
    values = [loglikelihood(model, tokenizer, doc["context"], doc["choices"][0])[0] for doc in docs]
    sizes = [len(doc["choices"][0].encode()) for doc in docs]
    metrics = evaluated[1]["metrics"]
    assert metrics["test/free/bits_per_byte"] == pytest.approx(
        -sum(values) / math.log(2) / sum(sizes), rel=1e-5
    )
    mean = sum(math.exp(v / s) for v, s in zip(values, sizes, strict=True)) / len(values)
    assert metrics["test/free/score"] == pytest.approx(mean, rel=1e-5)
    assert "test/free/acc" not in metrics


def test_text_equals_the_plain_loop(evaluated: Any, tiny: Path, text: Path) -> None:
    model, tokenizer = load(tiny)
    nats, tokens, size = 0.0, 0, 0
    for document in load_from_disk(str(text))["text"]:
        ids = tokenizer(document, add_special_tokens=False)["input_ids"]
        for start in range(0, len(ids), 32):
            before = ids[start - 1] if start else tokenizer.bos_token_id
            nats -= token_loglikelihood(model, [before], ids[start : start + 32])[0]
        tokens += len(ids)
        size += len(document.encode())
    metrics = evaluated[1]["metrics"]
    assert metrics["text/bytes"] == size
    assert metrics["text/tokens"] == tokens
    assert metrics["text/bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert metrics["text/perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)


@hypothesis_settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(2, 99), max_size=70), st.integers(1, 20))
def test_windows_predict_every_token_once_from_the_one_before(tokens: list[int], size: int) -> None:
    found = windows(tokens, 1, size)
    assert [token for _, continuation in found for token in continuation] == tokens
    assert all(len(continuation) <= size for _, continuation in found)
    before = [1, *tokens]
    place = 0
    for context, continuation in found:
        assert context == [before[place]]
        place += len(continuation)


def test_the_same_inputs_give_the_same_bytes(
    evaluated: Any, tiny: Path, task_sets: Path, text: Path, tmp_path: Path
) -> None:
    again = evaluate_model(PLAIN, tiny, task_sets, text, tmp_path)
    assert again["metrics"] == evaluated[1]["metrics"]
    assert files_of(tmp_path) == files_of(evaluated[0])


def test_the_summary_is_json_with_errors_and_intervals(evaluated: Any) -> None:
    out, summary = evaluated
    metrics = summary["metrics"]
    assert json.loads((out / "metrics.json").read_text())["metrics"] == metrics
    for name in ("test/toy0/score", "test/mean/score", "test/toy0/bits_per_byte", "text/bits_per_byte"):
        assert metrics[f"{name}_stderr"] >= 0
        low, high = summary["intervals"][name]
        assert low <= metrics[name] <= high
    items = read_items(out)
    assert items.groupby("task").size().to_dict() == {"free": 20, "toy0": 20, "toy1": 20}
    assert not {"seconds", "load_seconds"} & set(json.loads((out / "metrics.json").read_text()))
    json.dumps(summary)


def test_the_kept_definition_runs_with_the_harness_alone(
    evaluated: Any, tiny: Path, task_sets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a person would: `lm_eval --include_path <out>/harness` in the folder of the task sets."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    out, summary = evaluated
    monkeypatch.chdir(task_sets)
    # Only here, where it collects facts about the machine, for seconds.
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)
    results = simple_evaluate(
        HFLM(pretrained=load(tiny)[0], tokenizer=load(tiny)[1]),
        tasks=["seedloom_toy0"],
        task_manager=TaskManager(include_path=str(out / "harness"), include_defaults=False),
        bootstrap_iters=10,  # with none it gives no standard errors
    )
    theirs = results["results"]["seedloom_toy0"]
    for name in ("acc", "acc_norm"):
        assert theirs[f"{name},none"] == pytest.approx(summary["metrics"][f"test/toy0/{name}"])
        assert theirs[f"{name}_stderr,none"] == pytest.approx(summary["metrics"][f"test/toy0/{name}_stderr"])
    assert str(task_sets) not in (out / "harness/toy0.yaml").read_text()


def test_settings_limit_what_is_scored(tiny: Path, task_sets: Path, tmp_path: Path) -> None:
    limited = EvaluateSettings(dtype="bfloat16", examples=3, split="select", measure_speed=True)
    summary = evaluate_model(limited, tiny, task_sets, None, tmp_path)
    items = read_items(tmp_path)
    assert items.groupby("task").size().to_dict() == {"free": 3, "toy0": 3, "toy1": 3}
    for task in ("toy0", "free"):
        first = load_from_disk(str(task_sets / task / "select"))["id"][:3]
        assert items[items.task == task].id.tolist() == list(first)
    assert not any(name.startswith("text/") for name in summary["metrics"])
    assert summary["dtype"] == "bfloat16"
    assert summary["timings"]["forward_tokens_per_second"] > 0
    assert summary["timings"]["generate_tokens_per_second"] > 0


# -- adapters ---------------------------------------------------------------------------------------------------------


def adapter_on(tiny: Path, folder: Path) -> Path:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    model = get_peft_model(load(tiny)[0], LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    return folder


def test_an_adapter_scores_as_the_model_with_its_weights_added(
    tiny: Path, task_sets: Path, tmp_path: Path
) -> None:
    adapter = adapter_on(tiny, tmp_path / "adapter")
    weights = load_file(tiny / "model.safetensors")
    lora = load_file(adapter / "adapter_model.safetensors")
    for key, down in lora.items():
        if key.endswith("lora_A.weight"):
            name = key.removeprefix("base_model.model.").replace(".lora_A", "")
            weights[name] = weights[name] + 2.0 * lora[key.replace("lora_A", "lora_B")] @ down
    full = tiny_llama(tmp_path / "full")
    save_file(weights, full / "model.safetensors", metadata={"format": "pt"})
    ours = evaluate_model(PLAIN, adapter, task_sets, None, tmp_path / "a", base=tiny)["metrics"]
    theirs = evaluate_model(PLAIN, full, task_sets, None, tmp_path / "f")["metrics"]
    base = evaluate_model(PLAIN, tiny, task_sets, None, tmp_path / "b")["metrics"]
    for name in theirs:
        if name.startswith("test/"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-4)
    assert abs(ours["test/mean/bits_per_byte"] - base["test/mean/bits_per_byte"]) > 0.01
    assert ours["size/parameters"] == base["size/parameters"] + sum(t.numel() for t in lora.values())


def test_an_adapter_needs_the_base_it_fits(tiny: Path, task_sets: Path, tmp_path: Path) -> None:
    adapter = adapter_on(tiny, tmp_path / "adapter")
    with pytest.raises(DataError, match="needs its base model"):
        evaluate_model(PLAIN, adapter, task_sets, None, tmp_path / "out")
    with pytest.raises(DataError, match="does not fit the base"):
        evaluate_model(
            PLAIN, adapter, task_sets, None, tmp_path / "out", base=tiny_llama(tmp_path / "wide", hidden=48)
        )


def test_a_pickle_adapter_is_refused(tiny: Path, task_sets: Path, tmp_path: Path) -> None:
    adapter = adapter_on(tiny, tmp_path / "adapter")
    torch.save({}, adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(DataError, match="only safetensors adapters are read"):
        evaluate_model(PLAIN, adapter, task_sets, None, tmp_path / "out", base=tiny)


# -- size -------------------------------------------------------------------------------------------------------------


def test_size_of_a_pruned_model(tiny: Path, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    key = "model.layers.0.mlp.up_proj.weight"
    tensors[key].view(-1)[::2] = 0
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    before, after = measure_size(tiny, None), measure_size(model, None)
    count = tensors[key].numel()
    assert after["parameters"] == before["parameters"] == sum(t.numel() for t in tensors.values())
    assert after["bytes"] == (model / "model.safetensors").stat().st_size
    lost = count // 2 / after["parameters"]
    assert before["nonzero_share"] - after["nonzero_share"] == pytest.approx(lost)
    # float32: half the values gone, one bit for each place
    assert before["nominal_bytes"] - after["nominal_bytes"] == pytest.approx(count // 2 * 4 - count / 8)


# -- bad inputs -------------------------------------------------------------------------------------------------------


def refusal(model: Path, tasks: Path, text: Path | None, out: Path) -> str:
    with pytest.raises(DataError) as caught:
        evaluate_model(PLAIN, model, tasks, text, out)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def copy_of(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))


def test_a_model_with_nan_is_named(task_sets: Path, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.weight"][3, 3] = float("nan")
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    assert "q_proj.weight holds NaN" in refusal(model, task_sets, None, tmp_path / "out")


def test_a_cut_model_is_named(task_sets: Path, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    assert "model.safetensors: is cut short" in refusal(model, task_sets, None, tmp_path / "out")


def test_missing_and_damaged_task_sets_are_named(tiny: Path, task_sets: Path, tmp_path: Path) -> None:
    assert "holds no task set" in refusal(tiny, tmp_path, None, tmp_path / "out")
    sets = copy_of(task_sets, tmp_path / "sets")
    arrow = next((sets / "toy1/test").glob("*.arrow"))
    arrow.write_bytes(arrow.read_bytes()[:200])
    assert "toy1/test: is not a whole Arrow data set" in refusal(tiny, sets, None, tmp_path / "out")
    (sets / "toy1/test/state.json").unlink()
    assert "task toy1" in refusal(tiny, sets, None, tmp_path / "out")


def test_a_mistyped_or_empty_task_set_is_named(tiny: Path, task_sets: Path, tmp_path: Path) -> None:
    sets = copy_of(task_sets, tmp_path / "sets")
    data = load_from_disk(str(sets / "toy0/test"))
    kept = {name: list(data[name]) for name in data.column_names}
    for wrong, part in (
        (Dataset.from_dict(kept).remove_columns("gold"), "no column 'gold'"),
        (Dataset.from_dict({name: [] for name in kept}), "holds no examples"),
    ):
        shutil.rmtree(sets / "toy0/test")
        wrong.save_to_disk(str(sets / "toy0/test"))
        assert part in refusal(tiny, sets, None, tmp_path / "out")


def test_missing_or_mistyped_text_is_named(tiny: Path, task_sets: Path, tmp_path: Path) -> None:
    assert "text" in refusal(tiny, task_sets, tmp_path / "none", tmp_path / "out")
    Dataset.from_dict({"body": ["x"]}).save_to_disk(str(tmp_path / "wrong"))
    assert "no column 'text'; it has body" in refusal(tiny, task_sets, tmp_path / "wrong", tmp_path / "out")


def test_an_unknown_public_task_is_named(
    tiny: Path, task_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval import tasks

    # Reading the harness's 14,000 public definitions takes seconds; an empty list of them says the same.
    manager = tasks.TaskManager(include_defaults=False)
    monkeypatch.setattr(tasks, "TaskManager", lambda **_: manager)
    wrong = EvaluateSettings(dtype="float32", measure_speed=False, extra_tasks=("no_such_task",))
    with pytest.raises(DataError, match="no_such_task"):
        evaluate_model(wrong, tiny, task_sets, None, tmp_path)


def test_public_tasks_give_metrics_of_their_own(
    evaluated: Any, tiny: Path, task_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept definition stands in for a public task: same way, no network."""
    from lm_eval import tasks

    manager = tasks.TaskManager(include_path=str(evaluated[0] / "harness"), include_defaults=False)
    real = tasks.TaskManager
    monkeypatch.setattr(
        tasks, "TaskManager", lambda **given: manager if given["include_defaults"] else real(**given)
    )
    monkeypatch.chdir(task_sets)
    extra = EvaluateSettings(
        dtype="float32", measure_speed=False, extra_tasks=("seedloom_toy1",), extra_examples=0
    )
    metrics = evaluate_model(extra, tiny, task_sets, None, tmp_path)["metrics"]
    assert metrics["public/seedloom_toy1/acc_norm"] == metrics["test/toy1/acc_norm"]
    assert metrics["public/seedloom_toy1/acc_norm_stderr"] == pytest.approx(
        metrics["test/toy1/acc_norm_stderr"]
    )
