"""The study of pruning_representations on a tiny model of one's own, from the settings to the report's parts."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

import flows.studies.pruning_representations as study
import tasks.report.pruning_representations as report
from flows.studies.pruning_representations_config import PruningRepresentationsConfig
from flows.task_runner import Finished
from methods.common.errors import ConfigError, DataError
from tasks.compress.recipes import DropRecipe, MagnitudeRecipe, WandaRecipe
from tasks.study.pruning.items import CHAT, CORE, MORE
from tests.tiny_models import tiny_llama, toy_text

SMALL = {"calibration_sequences": 2, "calibration_length": 16}


@pytest.fixture
def tiny(tmp_path: Path, work: Path) -> PruningRepresentationsConfig:
    return PruningRepresentationsConfig.model_validate(
        {
            "model": str(tiny_llama(tmp_path / "model", layers=4)),
            "text": {
                "source": str(toy_text(tmp_path / "text.jsonl", documents=100)),
                "heldout_bytes": 8_000,
                "calibration_bytes": 4_000,
            },
            "encoder": "none",
            "recipes": [DropRecipe(layers=1, **SMALL), WandaRecipe(**SMALL)],
            "perplexity_recipes": [MagnitudeRecipe()],
            "items": 8,
            "probe_tokens": 16,
            "prompts": 2,
            "steps": 4,
        }
    )


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The flow without Prefect and MLflow: its steps run here, and what it would publish is kept."""
    kept: dict[str, Any] = {"ran": [], "params": {}, "metrics": {}, "traces": {}}

    def start(step: Any, _ctx: Any, label: str, inputs: dict[str, Any]) -> Finished:
        kept["ran"].append(label)
        return Finished(step.fn(None, label, inputs))

    @contextmanager
    def open_run(*_args: Any) -> Iterator[Any]:
        client = SimpleNamespace(set_terminated=lambda _run: None)
        yield SimpleNamespace(parent_run_id="parent", client=client)

    def publish(_ctx: Any, _title: str, _folder: Any, *parts: Any, notes: str) -> dict[str, Any]:
        kept["parts"] = parts
        kept["notes"] = notes
        return kept

    monkeypatch.setattr(study, "start", start)
    monkeypatch.setattr(study, "open_run", open_run)
    monkeypatch.setattr(study, "publish", publish)
    for name in ("log_input", "report_folder"):
        monkeypatch.setattr(study, name, lambda *_args: None)
    monkeypatch.setattr(report, "candidate_run", lambda _ctx, name: name)
    for kind in ("params", "metrics", "traces"):
        log = {"traces": "log_trace"}.get(kind, f"log_{kind}")

        def keep(_ctx: Any, run: str, values: Any, kind: str = kind) -> None:
            kept[kind][run] = values

        monkeypatch.setattr(report, log, keep)
    return kept


@pytest.mark.bundled
def test_from_settings_to_report_twice(tiny: PruningRepresentationsConfig, alone: dict[str, Any]) -> None:
    found = study.pruning_representations.fn(tiny)
    metrics, shown, tables, figures, verdicts = found["parts"]
    assert set(tables) == set(figures) == {"layers", "task_gap", "decoding", "estimates"}
    names = {verdict.claim.split(":")[0] for verdict in verdicts}
    assert {"hierarchy", "history", "options/plain/kl_ratio"} <= names
    # A random model is at chance, so nothing is said about a gap between tasks.
    assert not any(name.startswith("gap/") for name in names)
    assert list(shown.variant) == ["dense", "1 attention dropped", "Wanda 50 %"]
    assert set(metrics["perplexity"]) == {"dense", *(r.label for r in tiny.recipes), "magnitude-50pct"}
    assert set(metrics["tasks"]["dense"]) == {*CORE, *CHAT}
    assert metrics["tasks"]["dense"]["cloze"]["kept"] == 1
    assert "Outlook by the probes" in found["notes"]
    # MLflow's page of comparison opens with the first names: what each is, and what of the dense score it keeps.
    assert set(alone["params"]) == set(alone["metrics"]) == {"dense", *(r.label for r in tiny.recipes)}
    for run, values in alone["params"].items():
        assert sorted(values)[:3] == ["candidate.method", "candidate.stage", "candidate.what"]
        assert values["candidate.stage"] == ("base" if run == "dense" else "compressed")
    assert {sorted(values)[0] for values in alone["metrics"].values()} == {"keeps/choice"}
    assert [row["step"] for row in alone["traces"]["parent"]] == [0, 1, 2, 3]
    first = json.dumps(metrics, sort_keys=True)
    # Everything is found done, and a longer list of recipes adds only its own work.
    more = tiny.model_copy(update={"recipes": (*tiny.recipes, DropRecipe(sublayer="mlp", layers=1, **SMALL))})
    study.pruning_representations.fn(tiny)
    again = json.dumps(alone["parts"][0], sort_keys=True)
    assert again == first
    study.pruning_representations.fn(more)
    assert alone["parts"][0]["tasks"]["dense"] == metrics["tasks"]["dense"]
    assert "drop-mlp-1-c2x16" in alone["parts"][0]["decoding"]


def test_sources_are_refused_before_any_work(tiny: PruningRepresentationsConfig) -> None:
    study.check(tiny)
    for field, value, message in (
        ("model", "/nowhere/model", "there is no such folder"),
        ("text", tiny.text.model_copy(update={"source": "/nowhere/*.txt"}), "nowhere"),
        ("encoder", "/nowhere/encoder", "there is no such folder"),
        ("compressed", ("/nowhere/small",), "compressed: .*nowhere"),
    ):
        with pytest.raises(DataError, match=message):
            study.check(tiny.model_copy(update={field: value}))


def test_what_does_not_fit_the_model_is_refused_before_any_work(
    tiny: PruningRepresentationsConfig, tmp_path: Path
) -> None:
    large = DropRecipe(layers=4, **SMALL)
    long = WandaRecipe(calibration_length=1024)
    other = str(tiny_llama(tmp_path / "other", vocabulary=300))
    (tmp_path / "encoder").mkdir()
    for field, value, message in (
        ("recipes", (large,), "recipe drop-attn-4-c2x16: layers 4: the model has 4 with attn"),
        ("perplexity_recipes", (long,), "recipe wanda-50pct-c16x1024: calibration_length 1024"),
        ("steps", 256, "steps 256: the model reads at most 256 tokens"),
        ("compressed", (other,), r"compressed: .*other has \d+ tokens, the model \d+"),
        ("compressed", (str(tmp_path / "encoder"),), "compressed: model .*encoder: holds no config"),
        ("encoder", tiny.model, "encoder .*: has the model type 'llama'; give a BERT sentence encoder"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            study.check(tiny.model_copy(update={field: value}))


def test_two_models_of_one_name_are_refused(tiny: PruningRepresentationsConfig) -> None:
    for folders in (("a/small", "b/small"), ("a/dense",), ("a/drop-attn-1-c2x16",)):
        with pytest.raises(ValidationError, match="is the name of two models; rename the folder"):
            PruningRepresentationsConfig.model_validate({**tiny.model_dump(), "compressed": folders})


def test_the_full_profile_leaves_out_what_a_small_model_cannot_lose(
    tiny: PruningRepresentationsConfig,
) -> None:
    found = [recipe.label for recipe in study.fitting(study.SWEEP, Path(tiny.model))]
    assert found == ["drop-attn-2", "drop-mlp-1", "drop-mlp-2", "drop-block-1", "drop-block-2"]


@pytest.mark.bundled
def test_the_full_profile_sweeps_numbers_of_layers(
    tiny: PruningRepresentationsConfig, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = [DropRecipe(layers=n, **SMALL) for n in (2, 3)]
    by_kl = DropRecipe(layers=2, criterion="kl_estimate", **SMALL)
    monkeypatch.setattr(study, "SWEEP", (*sweep, by_kl))
    monkeypatch.setattr(study, "FULL_PERPLEXITY", ())
    monkeypatch.setattr(study, "TEMPERATURES", (1.0,))
    study.pruning_representations.fn(tiny.model_copy(update={"profile": "full"}))
    metrics, _shown, _tables, figures, _verdicts = alone["parts"]
    assert {"drop-attn-2-c2x16", "drop-attn-3-c2x16"} <= set(metrics["tasks"])
    assert set(metrics["tasks"]["drop-attn-3-c2x16"]) == {*CORE, *CHAT, *MORE}
    # The probes look at the user's recipes only.
    assert set(metrics["decoding"]) == {recipe.label for recipe in tiny.recipes}
    assert {"temperature", "raw_head", "mlp_layers"} <= set(metrics)
    assert "sweep" in figures
