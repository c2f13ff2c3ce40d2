"""The stages' own decisions: which experts are merged together, what a step is given, what is refused early."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows import lifecycle as lifecycle_module
from flows import stages
from flows.lifecycle_config import LifecycleConfig
from flows.task_runner import Finished
from methods.common.errors import DataError
from tasks.candidates import Candidate
from tasks.compress.config import CompressSettings
from tasks.compress.recipes import MagnitudeRecipe, WandaRecipe
from tasks.merge.config import MergeSettings
from tasks.reference import Reference
from tasks.step import StepResult

Started = list[tuple[str, dict[str, Any]]]


def reference(name: str, kind: str = "model") -> Reference:
    return Reference.model_validate({"path": Path(name), "digest": name, "kind": kind})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Labels and inputs of the steps that a stage starts; none of them runs."""
    seen: Started = []

    def start(_step: object, _ctx: object, label: str, inputs: dict[str, Any]) -> Finished:
        seen.append((label, inputs))
        return Finished(StepResult(reference=reference(label), summary={}, timings={"seconds": 0.0}))

    monkeypatch.setattr(stages, "start", start)
    monkeypatch.setattr(stages, "log_compressed", lambda *_: None)
    return seen


def expert(name: str, rule: str) -> Candidate:
    return Candidate(name=name, stage="expert", method=rule, reference=reference(name, "adapter"))


def merged(started: Started, experts: list[Candidate]) -> dict[str, list[str]]:
    settings = MergeSettings(methods=("ties",), baseline_methods=("average",))
    base, tasks = reference("base"), reference("tasks", "tasks")
    stages.merge_experts(None, settings, base, experts, tasks)  # type: ignore[arg-type]
    return {label: [e.digest for e in inputs["experts"]] for label, inputs in started}


def test_experts_of_others_join_those_of_every_stopping_rule(started: Started) -> None:
    experts = [expert("a", "merge_aware"), expert("b", "own_optimum"), expert("theirs", stages.GIVEN)]
    assert merged(started, experts) == {
        "merge/ties": ["a", "theirs"],
        "merge/average/own_optimum": ["b", "theirs"],
    }


def test_experts_of_others_alone_are_one_merge(started: Started) -> None:
    experts = [expert("x", stages.GIVEN), expert("y", stages.GIVEN)]
    assert merged(started, experts) == {"merge/ties": ["x", "y"]}


def test_only_a_recipe_that_reads_text_is_given_it(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "check_compression", lambda recipes, model: None)
    model = Candidate(name="m", stage="merge", method="ties", reference=reference("m"))
    settings = CompressSettings(recipes=(MagnitudeRecipe(), WandaRecipe()))
    stages.compress_model(None, settings, model, reference("text", "text"))  # type: ignore[arg-type]
    given = [inputs["calibration"] for _, inputs in started]
    assert given == [None, reference("text", "text")]


def test_a_model_that_no_recipe_can_take_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "opt", "architectures": ["OPTForCausalLM"]})
    )
    monkeypatch.setattr("tasks.prepare.models.check_model_folder", lambda *given: None)

    @contextmanager
    def no_run(*_given: object) -> Iterator[None]:
        yield

    def train(*_given: object) -> None:
        raise AssertionError("training began")

    prepared = stages.Prepared(
        model=reference(str(tmp_path)),
        tasks=reference("tasks", "tasks"),
        text=reference(str(tmp_path), "text"),
    )
    monkeypatch.setattr(lifecycle_module, "open_run", no_run)
    monkeypatch.setattr(lifecycle_module, "check", lambda config: None)
    monkeypatch.setattr(lifecycle_module, "prepare_inputs", lambda *given: prepared)
    monkeypatch.setattr(lifecycle_module, "train_experts", train)
    with pytest.raises(DataError, match="'opt' has no known linear layers"):
        lifecycle_module.lifecycle.fn(LifecycleConfig())
