"""The study's steps: what is trained already is not trained again, and what people read of it."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from pydantic import ValidationError

from methods.common.errors import ConfigError, DataError
from tasks.pretrain.corpus import build_corpus
from tasks.reference import reference_to
from tasks.report import span_norm as report
from tasks.report.span_norm import figures, loss_table, metrics_and_verdicts, tables
from tasks.study import span_norm as module
from tasks.study.span_norm import (
    check_study,
    corpus_settings,
    parts_of,
    plan_of,
    search_and_compare,
    train_all,
)
from tasks.study.span_norm_config import SpanNormStudy
from tests.tiny_models import toy_text


def tiny(source: Path, **changes: Any) -> SpanNormStudy:
    values = {
        "data": str(source),
        "layers": 2,
        "rates": (2e-3, 4e-3, 8e-3),
        "steps": 4,
        "warmup": 1,
        "batch": 2,
        "context": 16,
        "validation_rows": 8,
        "seeds": (0, 1, 2),
        "grid_seeds": (0, 1),
        "processes": 1,
    }
    return SpanNormStudy.model_validate(values | changes)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_text(tmp_path_factory.mktemp("text") / "toy.jsonl", documents=80)


@pytest.fixture(scope="module")
def corpus(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("corpus") / "corpus"
    build_corpus(corpus_settings(tiny(text)), out)
    return reference_to(out, "data")


def test_only_what_is_missing_is_trained(
    text: Path, corpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny(text)
    runs = module.runs_of("moderate", plan_of(settings))
    trained: list[Any] = []
    train = module._train

    def counted(run: Any, folder: Path, rows: int) -> Any:
        if len(trained) == 4:
            raise KeyboardInterrupt
        trained.append(run)
        return train(run, folder, rows)

    monkeypatch.setattr(module, "_train", counted)
    with pytest.raises(KeyboardInterrupt):
        train_all(runs, corpus, settings, tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 4
    monkeypatch.setattr(module, "_train", lambda run, *a: trained.append(run) or train(run, *a))
    found = train_all(runs, corpus, settings, tmp_path)
    assert len(trained) == len(runs) == len(found) == 15
    assert [(r["scheme"], r["init"], r["seed"]) for r in found] == [(r.scheme, r.init, r.seed) for r in runs]
    assert train_all(runs, corpus, settings, tmp_path) == found
    assert len(trained) == 15


def test_several_processes_find_the_same(text: Path, corpus: Any, tmp_path: Path) -> None:
    results = []
    for processes in (1, 2):
        settings = tiny(text, processes=processes)
        runs = module.runs_of("moderate", plan_of(settings))[:3]
        bank = tmp_path / str(processes)
        bank.mkdir()
        results.append(train_all(runs, corpus, settings, bank))
        for row in results[-1]:
            row.pop("cpu_seconds")
    assert results[0] == results[1]


def test_the_report_shows_every_run_those_that_failed_too(text: Path, corpus: Any, tmp_path: Path) -> None:
    settings = tiny(text)
    parts: dict[str, Any] = {
        part: train_all(module.runs_of(part, plan_of(settings)), corpus, settings, tmp_path)
        for part in ("moderate", "rates")
    }
    parts["start"] = [
        module.start_laws(scheme, init, layers, seed)
        for scheme, init in module.START_CANDIDATES
        for layers in (2, 3, 4)
        for seed in (0, 1)
    ]
    failed = next(r for r in parts["rates"] if r["rate"] == 8e-3 and r["scheme"] == "span")
    failed["diverged"], failed["loss"] = 3, float("nan")
    shown = loss_table(parts)
    assert list(shown.columns) == ["placement, start", "rate 0.002", "rate 0.004", "rate 0.008"]
    assert shown.set_index("placement, start").loc["SpanNorm, 1/√L", "rate 0.008"].endswith("(1 diverged)")
    data = tables(parts)
    assert data["rates"].diverged.sum() == 1
    assert set(figures(parts)) == {"start", "rates", "layer_use"}
    metrics, verdicts = metrics_and_verdicts(parts)
    json.dumps(metrics, allow_nan=False)
    assert len(verdicts) == sum("bar" in claim for claim in metrics["claims"].values())
    assert any(verdict.claim.startswith("moderate/gain_over/prenorm/inv_sqrt_depth:") for verdict in verdicts)


def test_further_parts_have_a_table_and_a_plot_of_their_own(text: Path, corpus: Any, tmp_path: Path) -> None:
    settings = tiny(text, steps=8)
    parts = {
        part: train_all(module.runs_of(part, plan_of(settings))[:8], corpus, settings, tmp_path)
        for part in ("moderate", "range", "depth")
    }
    data, drawn = tables(parts), figures(parts)
    assert set(data) == {"rates", "range", "layer_use", "depth"} == set(drawn)
    assert set(data["rates"].part) == {"moderate"}
    assert "span/inv_sqrt_depth/warmup5" in set(data["range"].candidate)
    labels = [text.get_text() for text in drawn["range"].legends[0].get_texts()]
    assert "SpanNorm, 1/√L, 5 warm-up steps" in labels
    assert "SpanNorm, 1/L" in labels
    # A failed run must not press the others into one line: the right panel shows what is near the best.
    whole, near = drawn["range"].axes
    low = data["range"].loss.min()
    assert near.get_ylim()[1] == pytest.approx(low + 0.16)
    assert whole.get_ylim()[1] > data["range"].loss.max()


def pretended(run: Any) -> dict[str, Any]:
    """A training's result with a best rate of each placement."""
    best = {"span/inv_sqrt_depth": 1.41e-3, "prenorm/inv_sqrt_depth": 4e-3, "span/inv_depth": 1e-3}[
        run.candidate
    ]
    return {
        **asdict(run),
        "candidate": run.candidate,
        "loss": 2 + abs(math.log(run.rate / best)) + 0.01 * run.seed,
        "start": 6.0,
        "diverged": None,
        "parameters": 1,
        "largest_grad_norm": 1.0,
        "curve": [],
        "cpu_seconds": 1.0,
        **({"drop": [0.1, 0.2, 0.3]} if run.drop else {}),
    }


def test_the_deep_part_searches_each_rate_and_goes_on_where_it_was_killed(
    text: Path, corpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {
        "layers": 3,
        "steps": 8,
        "warmup": 1,
        "search_seed": 9,
        "seeds": [4, 2],
        "further": ["span/inv_depth", "span/inv_sqrt_depth/longer"],
    }
    settings = tiny(text, parts=["deep"], deep=sizes)
    trained: list[Any] = []
    limit = 6

    def fake(run: Any, folder: Path, rows: int) -> dict[str, Any]:
        if len(trained) == limit:
            raise KeyboardInterrupt
        trained.append(run)
        return pretended(run)

    monkeypatch.setattr(module, "_train", fake)
    with pytest.raises(KeyboardInterrupt):
        search_and_compare(corpus, settings, tmp_path)
    limit = 100
    found = search_and_compare(corpus, settings, tmp_path)
    assert len(trained) == len(set(trained)) == len(found)  # nothing twice
    assert {(run.layers, run.steps, run.warmup) for run in trained} == {(3, 8, 1), (3, 8, 5)}
    assert {row["seed"] for row in found if row["stage"] == "search"} == {9}
    compared = [(row["scheme"], row["rate"], row["seed"]) for row in found if row["stage"] == "compared"]
    assert compared == [
        ("span", 1.41e-3, 4),
        ("prenorm", 4e-3, 4),
        ("span", 1.41e-3, 2),
        ("prenorm", 4e-3, 2),
    ]

    table = loss_table({"deep": found})
    assert list(table["placement, start"]) == [
        "SpanNorm, 1/√L, search of the rate",
        "PreNorm, 1/√L, search of the rate",
        "SpanNorm, 1/L, search of the rate",
        "SpanNorm, 1/√L, 5 warm-up steps, search of the rate",
        "SpanNorm, 1/√L",
        "PreNorm, 1/√L",
    ]
    assert set(figures({"deep": found})) == set(tables({"deep": found})) == {"deep", "deep_layer_use"}
    metrics, verdicts = metrics_and_verdicts({"deep": found})
    assert metrics["claims"]["deep/rate/span/inv_sqrt_depth"]["mean"] == 1.41e-3
    assert metrics["claims"]["deep/searched/span/inv_depth"]["mean"] == pytest.approx(2.09)
    assert "deep/loss/span/inv_depth" not in metrics["claims"]
    assert "deep/searched/span/inv_sqrt_depth/warmup5" in metrics["claims"]
    assert len(verdicts) == 3


def test_the_seed_of_the_search_is_none_of_the_compared(text: Path) -> None:
    with pytest.raises(ValidationError, match="search_seed=2 is one of the seeds that are compared"):
        tiny(text, deep={"search_seed": 2})
    with pytest.raises(ValidationError, match="warmup=75: give fewer than steps=50"):
        tiny(text, deep={"steps": 50})
    with pytest.raises(ValidationError, match="warmup=10: the further placements warm up five times as long"):
        tiny(text, deep={"steps": 50, "warmup": 10, "further": ["span/inv_sqrt_depth/longer"]})


def test_a_training_that_two_parts_share_is_one_run_in_mlflow(
    text: Path, corpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny(text, steps=8)
    found = train_all(module.runs_of("range", plan_of(settings))[:4], corpus, settings, tmp_path)
    names: list[str] = []
    monkeypatch.setattr(report, "candidate_run", lambda ctx, name: names.append(name) or name)
    for name in ("log_params", "log_trace", "log_metrics", "set_tags"):
        monkeypatch.setattr(report, name, MagicMock())
    report.log_candidates(MagicMock(), {"rates": found[:1], "range": found})
    assert len(names) == len(set(names)) == 4
    assert names[0] == "span/inv_sqrt_depth/L2/rate0.004/seed0"
    assert sum("warmup" in name for name in names) == 1


def test_where_the_text_lies_is_no_part_of_a_trainings_key(text: Path, corpus: Any, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere.jsonl"
    other.write_bytes(text.read_bytes())
    build_corpus(corpus_settings(tiny(other)), tmp_path / "corpus")
    assert module.rows_digest(tmp_path / "corpus") == module.rows_digest(corpus.path)
    changed = tmp_path / "changed.jsonl"
    changed.write_text(text.read_text().replace("the", "teh"))
    build_corpus(corpus_settings(tiny(changed)), tmp_path / "changed")
    assert module.rows_digest(tmp_path / "changed") != module.rows_digest(corpus.path)


def test_mistakes_are_told_before_any_work(
    text: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"data=data/kjv/kjv.jsonl: is not there; `dvc repro data@kjv` makes it"
    ):
        check_study(SpanNormStudy())
    with pytest.raises(ConfigError, match="warmup=4: give fewer than steps=4"):
        check_study(tiny(text, warmup=4))
    with pytest.raises(ConfigError, match="warmup=2: the part 'range' takes 5 times as long"):
        check_study(tiny(text, warmup=2, steps=10, parts=["range"]))
    with pytest.raises(DataError, match="there is no such file"):
        check_study(tiny(tmp_path / "nowhere.txt"))


def test_the_full_profile_does_every_part(text: Path) -> None:
    assert parts_of(tiny(text)) == ("start", "moderate", "rates")
    assert len(parts_of(tiny(text, profile="full"))) == 8
