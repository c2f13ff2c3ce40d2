"""The study's steps: what is trained already is not trained again, and what people read of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from methods.common.errors import ConfigError, DataError
from methods.rope_psd.study import CANDIDATES, adapt_batches, base_batches
from methods.rope_psd.study_claims import claims, paired_interval, unevenness, worst
from tasks.reference import Reference, reference_to
from tasks.report.rope_psd import figures, metrics_and_verdicts, shown_table, tables
from tasks.settings import settings as machine
from tasks.study import rope_psd as module
from tasks.study.rope_psd import (
    candidates_of,
    check_study,
    corpus_settings,
    load_text,
    pack_corpus,
    parts_of,
    sizes_of,
    small_runs,
)
from tasks.study.rope_psd_config import RopePSDStudy
from tasks.study.run_bank import read_rows
from tests.tiny_models import tiny_llama, toy_text


def tiny(source: Path, **changes: Any) -> RopePSDStudy:
    values = {
        "data": str(source),
        "copy_steps": 1,
        "base_steps": 2,
        "steps": 2,
        "width": 16,
        "context": 64,
        "depths": 3,
        "prompts": 2,
        "processes": 1,
        "real_steps": 2,
        "real_context": 32,
        "real_rows": 2,
    }
    return RopePSDStudy.model_validate(values | changes)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_text(tmp_path_factory.mktemp("text") / "toy.jsonl", documents=300)


@pytest.fixture(scope="module")
def corpus(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    out = tmp_path_factory.mktemp("corpus") / "corpus"
    pack_corpus(out, settings=corpus_settings(tiny(text)))
    return reference_to(out, "data")


@pytest.fixture(scope="module")
def parts(text: Path, corpus: Reference, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Rows of both small parts, made once, with the bank in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEEDLOOM_WORK_DIR", str(tmp_path_factory.mktemp("work")))
        machine.cache_clear()
        found = {}
        few = {"main": ("clm", "clm_longer", "pose", "psd_skip"), "ablation": ("nope_view", "chunk_view")}
        patch.setattr(module, "candidates_of", few.__getitem__)
        for part in few:
            out = tmp_path_factory.mktemp(part)
            small_runs(out, part=part, settings=tiny(text), corpus=corpus)
            found[part] = read_rows(out / f"{part}.jsonl")
    machine.cache_clear()
    return found


def test_only_what_is_missing_is_trained(
    text: Path, corpus: Reference, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []
    run = module.run_job

    def counted(job: Any) -> Any:
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(job.candidate)
        return run(job)

    settings = tiny(text)
    monkeypatch.setattr(module, "candidates_of", lambda part: ("clm", "psd_skip"))
    monkeypatch.setattr(module, "run_job", counted)
    with pytest.raises(KeyboardInterrupt):
        small_runs(tmp_path, part="main", settings=settings, corpus=corpus)
    monkeypatch.setattr(module, "make_base", lambda job: pytest.fail("the bases are there"))
    monkeypatch.setattr(module, "run_job", lambda job: trained.append(job.candidate) or run(job))
    small_runs(tmp_path, part="main", settings=settings, corpus=corpus)
    assert len(trained) == 6
    rows = read_rows(tmp_path / "main.jsonl")
    assert [(r["candidate"], r["seed"]) for r in rows] == [
        (c, s) for s in (0, 1, 2) for c in ("clm", "psd_skip")
    ]
    assert all("cpu_seconds" not in row for row in rows)
    small_runs(tmp_path, part="main", settings=settings, corpus=corpus)
    assert len(trained) == 6


def test_a_given_model_is_adapted_by_each_method(text: Path, work: Path, tmp_path: Path) -> None:
    model = reference_to(tiny_llama(tmp_path / "llama"), "model")
    settings = tiny(text, real_text=str(text), parts=("real",))
    module.build_long_text(tmp_path / "rows", text=module.real_text(settings), model=model)
    rows = reference_to(tmp_path / "rows", "data")
    out = tmp_path / "out"
    out.mkdir()
    module.real_runs(out, part="real", settings=settings, model=model, corpus=rows)
    found = read_rows(out / "real.jsonl")
    assert len(found) == 9
    assert {row["candidate"] for row in found} == {"clm", "pose", "psd_skip"}
    told = {claim.name for claim in claims({"real": found})}
    assert {"real/view_kl_drop", "real/standard_ce", "real/view_kl_to_pose"} <= told
    assert figures({"real": found}).keys() == {"gaps"}
    assert len(shown_table({"real": found})) == 3


def test_every_candidate_reads_the_same_rows(corpus: Reference, text: Path) -> None:
    sizes, loaded = sizes_of(tiny(text)), load_text(corpus.path)
    plain, again = (adapt_batches(loaded, sizes, 3, 4) for _ in range(2))
    longer = adapt_batches(loaded, sizes, 3, 6)
    other = adapt_batches(loaded, sizes, 4, 4)
    for one, two, three in zip(plain, again, longer, strict=False):
        assert torch.equal(one["input_ids"], two["input_ids"])
        assert torch.equal(one["input_ids"], three["input_ids"])
    assert not torch.equal(plain[0]["input_ids"], other[0]["input_ids"])
    base = base_batches(loaded, sizes, 0)
    assert len(base) == 3
    assert base[0]["input_ids"].shape == (32, 64)
    assert any("position_ids" in batch for batch in adapt_batches(loaded, sizes, 3, 4, by_pose=True))


def test_the_report_tells_every_claim(parts: Any) -> None:
    shown = shown_table(parts)
    assert len(shown) == 6
    assert shown.set_index("candidate").loc["clm_longer", "steps"] == "3"
    assert set(figures(parts)) == {"depths", "gaps"}
    assert len(tables(parts)["depths"]) == 6 * 3 * 2 * 3
    metrics, verdicts = metrics_and_verdicts(parts)
    json.dumps(metrics, allow_nan=False)
    assert len(verdicts) == sum("bar" in claim for claim in metrics["claims"].values())
    told = {verdict.claim.partition(":")[0] for verdict in verdicts}
    assert {"small/worst_depth/low", "small/view_kl_drop", "small/nope_view/low", "small/beyond"} <= told


def test_the_grid_is_drawn(parts: Any) -> None:
    row = next(row for row in parts["main"] if row["candidate"] == "psd_skip")
    grid = [row | {"candidate": name} for name in candidates_of("grid")]
    assert len(grid) == 12
    assert set(figures({"grid": grid})) == {"grid"}


def test_the_grid_counts_what_is_better_beyond_chance(parts: Any) -> None:
    def answered(row: Any, name: str, right: int) -> Any:
        correct = np.full_like(np.asarray(row["answers"]["correct"]), right).tolist()
        return row | {"candidate": name, "answers": row["answers"] | {"correct": correct}}

    plain = [row for row in parts["main"] if row["candidate"] == "clm"]
    rows = [answered(row, name, 0) for row in plain for name in ("clm", "psd_skip")]
    grid = [
        answered(row, name, place < 3) for row in plain for place, name in enumerate(candidates_of("grid"))
    ]
    found = {claim.name: claim for claim in claims({"main": rows, "grid": grid})}
    assert found["small/grid/better"].values == (3 / 12,)
    assert found["small/grid/lambda0.25/Y0.25/low"].values == (1.0,)


def test_the_interval_of_a_known_difference() -> None:
    rng = np.random.default_rng(0)
    lost = (rng.random((3, 5, 40)) < 0.9).astype(float)
    lost[:, 2] = rng.random((3, 40)) < 0.2
    even = (rng.random((3, 5, 40)) < 0.9).astype(float)
    low, high = paired_interval(even, lost, worst)
    assert 0.4 < low < high < 0.85
    low, high = paired_interval(lost, even, unevenness)
    assert low > 0.1
    low, high = paired_interval(even, even, worst)
    assert (low, high) == (0, 0)


def test_mistakes_are_told_before_any_work(
    text: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"data=data/kjv/kjv.jsonl: is not there; `dvc repro data@kjv` makes it"
    ):
        check_study(RopePSDStudy())
    with pytest.raises(DataError, match="there is no such file"):
        check_study(tiny(tmp_path / "nowhere.txt"))
    with pytest.raises(DataError, match="there is no such file"):
        check_study(tiny(text, parts=("real",), real_text="nowhere.txt"))
    assert parts_of(tiny(text)) == ("main", "ablation")
    assert len(parts_of(tiny(text, profile="full"))) == 5
    assert {name for part in ("main", "ablation", "variants", "grid") for name in candidates_of(part)} == set(
        CANDIDATES
    )


def test_an_interval_that_touches_nothing_holds_nothing(parts: Any) -> None:
    same = [
        row | {"candidate": name}
        for row in parts["main"]
        if row["candidate"] == "clm"
        for name in ("clm", "psd_skip")
    ]
    held = {claim.name: claim.held for claim in claims({"main": same})}
    assert held["small/worst_depth"] is True
    assert held["small/worst_depth/low"] is False
    assert held["small/view_kl_drop"] is False
