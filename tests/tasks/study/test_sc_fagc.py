"""The study's runs: done once, gone on with after a kill, and what people read of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from methods.common.errors import ConfigError, DataError
from methods.sc_fagc import peers
from methods.sc_fagc import study as study_module
from methods.sc_fagc.study import Run, runs_of, score_run
from methods.sc_fagc.study_data import Samples, bundled_digits, equal_shares, handwriting
from tasks.reference import reference_to
from tasks.report.sc_fagc import figures, metrics_and_verdicts, score_table, tables, times_note
from tasks.study import sc_fagc as module
from tasks.study.sc_fagc import check_study, run_all
from tasks.study.sc_fagc_config import ScFagcStudy


def few_digits() -> Samples:
    whole = bundled_digits()
    return equal_shares(whole.features[:240], whole.truth[:240], 10, 64)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_module, "samples_of", lambda data, folder: few_digits())


def test_only_what_is_missing_is_done(small: None, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Run] = []
    score = module.score_run

    def counted(run: Run, folder: Path) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(run)
        return score(run, folder)

    runs = [Run("digits", name, seed) for seed in range(2) for name in ("k_means", "fagc_r")]
    monkeypatch.setattr(module, "score_run", counted)
    with pytest.raises(KeyboardInterrupt):
        run_all(runs, None)
    bank = work / "sc-fagc-runs"
    assert len(list(bank.glob("*.json"))) == 2
    monkeypatch.setattr(module, "score_run", lambda run, folder: done.append(run) or score(run, folder))
    found = run_all(runs, None)
    assert len(done) == 4
    assert [(r["method"], r["seed"]) for r in found] == [(r.method, r.seed) for r in runs]
    assert run_all(runs, None) == found
    assert len(done) == 4


def test_every_method_runs_and_is_scored(small: None) -> None:
    rows = {}
    for run in [*runs_of("digits", 1), *runs_of("ablations", 1)]:
        rows[run.method] = score_run(run, Path())
    assert set(rows) == {*peers.PEERS, *peers.ABLATIONS} - {"equal_bounds"}
    for name, row in rows.items():
        assert row["acc"] > (0.5 if name != "start_random" else 0.2), name
        json.dumps(row, allow_nan=False)
    assert rows["bounded_samples"]["overshoot"] == 0
    assert rows["k_means_constrained"]["overshoot"] == 0
    assert rows["sc_fagc"]["anchor_violation"] == 0
    assert rows["without_bounds"]["similarity"] >= rows["sc_fagc"]["similarity"] - 1e-6
    again = score_run(Run("digits", "sc_fagc", 0), Path())
    assert {k: v for k, v in again.items() if k != "seconds"} == {
        k: v for k, v in rows["sc_fagc"].items() if k != "seconds"
    }


def made_up(part: str, seeds: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = []
    for run in runs_of(part, seeds):
        score = 0.8 + 0.1 * (run.method == "sc_fagc") + 0.01 * rng.uniform()
        rows.append(
            {"data": run.data, "method": run.method, "seed": run.seed, "smallest": 90, "largest": 120}
            | {
                "size_ratio": 1.4,
                "overshoot": 0.02 if run.method not in ("bounded_samples", "kmeans_bounded") else 0.0,
            }
            | dict.fromkeys(("acc", "nmi", "purity", "ari", "f_score", "precision", "recall"), score)
            | (
                {"similarity": 230 + score, "anchor_violation": 0.0, "smallest_rise": 1e-9}
                if run.method not in ("k_means", "spectral", "k_means_constrained")
                else {}
            )
        )
    return rows


def test_the_report_says_what_held() -> None:
    parts = {part: made_up(part, 3) for part in ("digits", "ablations", "mnist10k", "mnist60k", "unequal")}
    metrics, verdicts = metrics_and_verdicts(parts)
    json.dumps(metrics, allow_nan=False)
    held = {v.claim.split(":")[0]: v.held for v in verdicts}
    assert held["digits/acc"]
    assert held["digits/gain_over/k_means/interval"]
    assert held["digits/best_of_metrics"]
    assert not held["digits/fagc_r/size_ratio"]
    assert not held["unequal/blobs/median"]
    assert metrics["means"]["digits"]["sc_fagc"]["acc"] > 0.9
    shown = score_table(parts)
    assert len(shown) == len({(r["data"], r["method"]) for rows in parts.values() for r in rows})
    assert set(tables(parts)) == set(figures(parts)) == {"quality", "ablations", "unequal"}
    assert "digits/sc_fagc 0.25" in times_note({"digits/sc_fagc": 0.25})
    json.dumps(metrics_and_verdicts({"unequal": parts["unequal"]})[0], allow_nan=False)


def test_handwriting_is_read_or_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(120, 28, 28)).astype(np.uint8)
    np.savez(tmp_path / "digits.npz", images=images, labels=np.arange(120) % 10)
    assert handwriting(tmp_path, "mnist10k").features.shape == (120, 784)
    few = handwriting(tmp_path, "mnist60k")
    assert few.features.shape == (120, 50)
    assert few.size_min.tolist() == pytest.approx([9.6] * 10)
    assert reference_to(tmp_path, "data").digest
    (tmp_path / "digits.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"digits.npz cannot be read .* `dvc repro data@mnist60k` makes it"):
        handwriting(tmp_path, "mnist10k")
    with pytest.raises(
        ConfigError, match=r"holds no digits.npz; `dvc repro data@mnist60k` makes it, or leave out"
    ):
        check_study(ScFagcStudy(data=str(tmp_path / "nowhere")))
    check_study(ScFagcStudy(data="nowhere", parts=("digits",)))
