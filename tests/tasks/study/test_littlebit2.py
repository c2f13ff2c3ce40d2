"""The study of LittleBit-2 on a tiny model: its steps, resume, claims, tables and figures."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from methods.littlebit2.study_claims import Claim, claims, errors_by_method
from tasks.reference import Reference, reference_to
from tasks.report.littlebit2 import figures, metrics_and_verdicts, shown_table, tables
from tasks.report.littlebit2_model import model_table, plot_model
from tasks.report.publish import markdown_table, write_files
from tasks.study import littlebit2 as study
from tasks.study import littlebit2_model as whole
from tasks.study.littlebit2_config import LittleBit2Study, ModelStudy, SmallStudy, WeightsStudy
from tests.tiny_models import sentences, tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return reference_to(tiny_llama(tmp_path_factory.mktemp("m") / "model", hidden=64, layers=3), "model")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("t") / "text"
    for place, seed in ((folder, 0), (folder / "calibration", 50)):
        rows = [" ".join(sentences(60, seed=seed + n)) for n in range(12)]
        Dataset.from_dict({"text": rows}).save_to_disk(str(place))
    return reference_to(folder, "text")


@pytest.fixture(scope="module")
def frames(
    model: Reference, text: Reference, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, pd.DataFrame]:
    root = tmp_path_factory.mktemp("study")
    patch = pytest.MonkeyPatch()
    patch.setattr(study, "GAMMAS", (0.2, 0.5, 1.0))
    patch.setattr("methods.littlebit2.study_weights.SYNTHETIC_SIZE", 64)
    folders = {name: root / name for name in ("weights", "small", "model")}
    for folder in folders.values():
        folder.mkdir()
    study.measure_weights(
        folders["weights"], settings=WeightsStudy(every_block=2, processes=1, two_bits=True), model=model
    )
    own = SmallStudy(base_steps=1, distill_steps=1, processes=1)
    patch.setattr(study, "SMALL_SIZES", {"hidden": 64, "feed_forward": 64, "layers": 1, "eval_bytes": 512})
    study.measure_small(folders["small"], settings=own, text=text)
    plan = ModelStudy(
        tokens=96, short_tokens=32, rates=(1e-3, 1e-2), repeats=(5,), length=16, batch=2, scored_tokens=128
    )
    summary = whole.measure_model(folders["model"], settings=plan, model=model, text=text)
    assert summary["facts"]["read_tokens"] == 96
    patch.undo()
    return study.read_frames(list(folders.values()))


def test_the_frames_hold_every_method_and_no_time(frames: dict[str, pd.DataFrame]) -> None:
    assert set(frames) == {"layers", "synthetic", "iterations", "small", "model", "rates"}
    assert all("seconds" not in frame for frame in frames.values())
    layers = frames["layers"]
    assert layers.layer.nunique() == 21
    assert len(errors_by_method(layers, 0.55, False)) == 21
    assert layers[layers.method == "admm"].layer.nunique() == 14  # blocks 0 and 2
    assert {"onebit", "hqq_2bit", "hqq_4bit", "fp16_low_rank"} <= set(layers.method)
    assert not layers.duplicated(["layer", "method", "bpp", "residual"]).any()
    small = frames["small"]
    assert small.groupby(["method", "bpp"]).seed.nunique().eq(3).all()
    assert set(small.step) == {0, 1}
    assert set(frames["model"].method) == {"original", "onebit", "hqq_2bit", "hqq_4bit", "joint_itq", "svd"}


def test_claims_and_report(frames: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    metrics, verdicts = metrics_and_verdicts(frames)
    names = set(metrics["claims"])
    assert {"weights/ordering", "weights/haar_worst", "small/bpp_055/over_svd", "model/over_svd"} <= names
    assert {"synthetic/crossover", "iterations/by_20", "small/over_onebit", "weights/stored_055"} <= names
    assert {"weights/over_hqq/joint_itq", "weights/over_hqq/admm", "model/rate/svd"} <= names
    assert all(np.isfinite(claim["mean"]) for claim in metrics["claims"].values())
    assert len(verdicts) == sum(claim["held"] is not None for claim in metrics["claims"].values())
    table = shown_table(frames)
    assert "Joint-ITQ, residual" in set(table.method)
    write_files(
        tmp_path / "out",
        metrics,
        tables(frames),
        {**figures(frames), "model": plot_model(frames)},
        markdown_table(table),
    )
    assert {p.stem for p in (tmp_path / "out" / "plots").glob("*.png")} == {
        "error_vs_bits",
        "layers",
        "spectra",
        "distillation",
        "model",
    }
    assert len(model_table(frames)) == 6


def test_a_cut_off_step_goes_on_from_its_parts(
    model: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import methods.littlebit2.study_weights as weights

    monkeypatch.setattr(study, "GAMMAS", (0.2, 1.0))
    monkeypatch.setattr(weights, "SYNTHETIC_SIZE", 32)
    settings = WeightsStudy(every_block=100, processes=1)
    real, seen = weights.layer_rows, []

    def cut(place: Any, *given: Any) -> Any:
        if len(seen) == 4:
            raise KeyboardInterrupt
        seen.append(place.name)
        return real(place, *given)

    monkeypatch.setattr(weights, "layer_rows", cut)
    with pytest.raises(KeyboardInterrupt):
        study.measure_weights(tmp_path / "cut", settings=settings, model=model)
    monkeypatch.setattr(
        weights, "layer_rows", lambda place, *given: (seen.append(place.name), real(place, *given))[1]
    )
    study.measure_weights(tmp_path / "cut", settings=settings, model=model)
    assert sorted(seen) == sorted(set(seen))
    monkeypatch.setattr(weights, "layer_rows", real)
    study.measure_weights(
        tmp_path / "whole", settings=settings.model_copy(update={"processes": 2}), model=model
    )
    for file in (tmp_path / "whole").iterdir():
        assert file.read_bytes() == (tmp_path / "cut" / file.name).read_bytes()


def test_a_claim_holds_only_when_every_value_meets_the_bar() -> None:
    assert Claim("a", "", (1.0, 2.0), 1.0).held
    assert not Claim("a", "", (0.5, 2.0), 1.0).held
    assert Claim("a", "", (0.5, 2.0), 1.0, rule="mean").held
    assert Claim("a", "", (0.5, 2.0), 2.0, "<=").held
    assert Claim("a", "", (0.5,)).held is None
    assert claims({}) == []


def test_the_full_profile_adds_layers_seeds_and_the_model() -> None:
    plain = LittleBit2Study()
    assert plain.resolved() == plain
    full = LittleBit2Study(profile="full").resolved()
    assert full.weights.every_block == 5
    assert full.weights.two_bits
    assert full.small.seeds == (0, 1, 2, 3, 4)
    own = LittleBit2Study(
        profile="full", weights=WeightsStudy(every_block=1), small=SmallStudy(seeds=(7, 8, 9))
    )
    assert own.resolved().weights.every_block == 1
    assert own.resolved().small.seeds == (7, 8, 9, 0, 1)
