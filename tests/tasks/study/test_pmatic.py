"""The study's parts on a toy text, what is done already is not done again, and what people read of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from methods.common.errors import ConfigError, DataError
from methods.pmatic import study_data
from methods.pmatic.study_claims import claims, slope
from methods.pmatic.study_data import split
from tasks.prepare.config import TextSettings
from tasks.reference import reference_to
from tasks.report.pmatic import figures, metrics_and_verdicts, summary_table, tables
from tasks.study import pmatic as module
from tasks.study.pmatic import check_study, parts_of, settings_of
from tasks.study.pmatic_config import PmaticStudy
from tasks.study.run_bank import read_rows
from tests.tiny_models import sentences

DELTAS = (1e-5, 1e-4, 1e-3, 1e-2)


def tiny(**changes: Any) -> PmaticStudy:
    values = {
        "seeds": (0,),
        "deltas": DELTAS,
        "streams": 2,
        "files": 2,
        "file_bytes": 64,
        "mismatch_tokens": 32,
        "train_steps": 2,
        "models": 1,
        "pairs": ("steps", "bfloat16"),
    }
    return PmaticStudy.model_validate(values | changes)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The rows of all parts but the language model's, on a small text."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "toy.txt").write_text("\n".join(sentences(900, 2)))
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_data, "SMALLEST_TEXT", 1_000)
        (folder / "text").mkdir()
        settings = TextSettings(source=str(folder / "toy.txt"), calibration_bytes=0)
        assert (
            work_of(module.study_text)(folder / "text", settings=settings, fingerprint="")["bytes"] > 30_000
        )
        reference = reference_to(folder / "text", "text")
        for part in ("design", "sizes", "violations", "robust"):
            out = folder / part
            out.mkdir()
            summary = work_of(module.study_part)(out, part=part, settings=tiny(), text=reference)
            found[part] = read_rows(out / f"{part}.jsonl")
            assert summary["rows"] == len(found[part])
            assert [path.name for path in out.iterdir()] == [f"{part}.jsonl"]
    return found


def work_of(task: Any) -> Any:
    """The plain function below a step."""
    cells = [cell.cell_contents for cell in task.fn.__closure__]
    return next(value for value in cells if callable(value) and value.__name__.startswith("study"))


def test_every_part_has_rows_and_none_is_wrong(done: dict[str, list[dict[str, Any]]]) -> None:
    assert {row["design"] for row in done["design"]} >= {"base", "companded", "dp", "uniform", "rule_only"}
    assert all(row["redundancy"] >= 0 for row in done["design"])
    archives = {
        row["archive"]: row for row in done["sizes"] if "archive" in row and row["delta"] in (0.0, 1e-3)
    }
    assert archives["ideal"]["bytes"] < archives["plain"]["bytes"] < archives["ours"]["bytes"]
    assert archives["ours"]["read_back"]
    assert archives["base"]["read_back"]
    assert all(row["wrong"] == 0 for row in done["violations"])
    assert all(row["decoded"] == row["streams"] for row in done["violations"] if row["times"] == 1.0)
    assert all(row["pmatic_decoded"] == 2 for row in done["robust"])


def test_the_report_shows_all_of_it(done: dict[str, list[dict[str, Any]]]) -> None:
    metrics, verdicts = metrics_and_verdicts(done)
    json.dumps(metrics, allow_nan=False)
    assert all(re.fullmatch(r"[\w\-. :/]+", name) for name in metrics["claims"])  # what MLflow takes
    assert len(verdicts) == sum("bar" in claim for claim in metrics["claims"].values())
    assert metrics["claims"]["violations/wrong"]["held"] is True
    assert set(figures(done)) == {"redundancy", "sizes", "violations", "computations"}
    assert "PMATIC, delta 0.001" in set(summary_table(done).what)
    assert len(tables(done)["computations"]) == 2


def test_a_killed_part_goes_on(tmp_path: Path) -> None:
    ran: list[str] = []
    assert module._once(tmp_path, "one", lambda: ran.append("one") or [{"a": 1}])[0]["a"] == 1  # type: ignore[func-returns-value]
    with pytest.raises(KeyboardInterrupt):
        module._once(tmp_path, "two", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert module._once(tmp_path, "one", lambda: ran.append("again") or [])[0]["a"] == 1  # type: ignore[func-returns-value]
    assert ran == ["one"]


def test_claims_of_a_language_model_are_told_from_its_rows() -> None:
    pair = {
        "pair": "cached steps",
        "pmatic_bytes": 104,
        "plain_bytes": 100,
        "pmatic_decoded": 3,
        "pmatic_files": 3,
        "plain_decoded": 1,
        "plain_files": 3,
        "mismatch_largest": 5e-5,
    }
    rows = [pair, {**pair, "pair": "cached steps, bfloat16", "pmatic_bytes": 300, "pmatic_decoded": 2}]
    rows.append({"archive": "ours_2e-4", "bits_per_byte": 0.95})
    found = {claim.name: claim for claim in claims({"llm": rows})}
    assert found["llm/cached steps/overhead"].held is True
    assert found["llm/cached steps bfloat16/decoded"].held is False
    assert found["llm/cached steps bfloat16/overhead"].held is None
    assert found["llm/bits_per_byte"].held is True


def test_a_part_is_not_done_again_for_another_parts_settings() -> None:
    before, after = PmaticStudy(), PmaticStudy(streams=7, model="other", parts=("llm",))
    assert settings_of("design", before) == settings_of("design", after)
    assert settings_of("violations", before) != settings_of("violations", after)
    assert settings_of("design", before) != settings_of("design", PmaticStudy(seeds=(0,)))


def test_the_slope_is_that_of_a_power() -> None:
    rows = [
        {"seed": 0, "tree": "flat", "design": "base", "delta": delta, "redundancy": 3 * delta**0.4}
        for delta in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
    ]
    assert slope(rows, 0, "flat", "base") == pytest.approx(0.4)


def test_the_parts_of_a_text_do_not_overlap() -> None:
    text = bytes(i % 251 for i in range(300_000))
    for seed in range(6):
        parts = split(text, seed)
        assert len(parts.train) + len(parts.calibration) + len(parts.test) == len(text)
        assert parts.calibration + parts.test in text
        assert len(parts.calibration) == 2 * len(parts.test)
    with pytest.raises(DataError, match="needs at least 200000"):
        split(b"short", 0)


def test_mistakes_are_told_before_any_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"data=data/kjv/kjv.jsonl: is not there; `dvc repro data@kjv`"):
        check_study(PmaticStudy())
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"deltas: 0\.5"):
        check_study(tiny(data="a.txt", deltas=(1e-3, 0.5)))
    with pytest.raises(DataError, match="there is no such file"):
        check_study(tiny(data="nowhere.txt"))
    assert parts_of(tiny(profile="full"))[-1] == "llm"
