"""The steer step from questions to a steering beside the model, cut off in the middle, and used by evaluate."""

import json
from pathlib import Path
from typing import Any

import pytest

from methods.common.errors import DataError
from methods.dynasteer import NoContrastError
from tasks.evaluate.candidate import evaluate_model
from tasks.evaluate.config import EvaluateSettings
from tasks.reference import reference_to
from tasks.report.steer import figures, policy_table, tables, verdicts
from tasks.steer import steer as module
from tasks.steer.artefact import read_record, write_artefact
from tasks.steer.config import DrawSettings
from tasks.steer.questions import build_questions
from tasks.steer.steer import answer_questions, draw_forks, fit_steering, generation
from tests.killed import digests
from tests.tasks.steer.planted_folder import settings, write_planted

POLICIES = ("plain", "resample", "random", "steer", "always", "mean", "caa", "iti")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Every part of the step, done once on the planted model."""
    folder = tmp_path_factory.mktemp("steer")
    model, source = write_planted(folder)
    own = settings(source, policies=POLICIES)
    build_questions(own.questions, folder / "questions")
    references = {"model": reference_to(model, "model")}
    references["questions"] = reference_to(folder / "questions", "data")
    found: dict[str, Any] = {"folder": folder, "settings": own, **references}
    for name, work, inputs in (
        ("forks", draw_forks, ("model", "questions")),
        ("steering", fit_steering, ("model", "forks")),
        ("answers", answer_questions, ("model", "questions", "steering")),
    ):
        (folder / name).mkdir()
        summary = work(folder / name, settings=own, **{key: found[key] for key in inputs})
        found[name] = reference_to(folder / name, "data")
        found[f"{name}_summary"] = summary
    (folder / "steered").mkdir()
    facts = found["forks_summary"] | found["steering_summary"]
    write_artefact(folder / "steered", own, model, folder / "questions", folder / "steering", facts)
    return found


def test_the_planted_truth_is_gained_and_the_costs_are_told(made: Any) -> None:
    policies = made["answers_summary"]["policies"]
    assert policies["plain"]["accuracy"] < 0.65
    assert policies["steer"]["gain_over_resample_low"] > 0.15
    assert policies["mean"]["gain_over_resample_low"] > 0.15
    assert abs(policies["resample"]["gain_over_plain"]) < 0.12
    assert policies["steer"]["fixed_of_plain"] > policies["steer"]["harmed_of_plain"]
    assert policies["plain"]["discarded_per_question"] == 0
    assert policies["steer"]["tokens_per_question"] > policies["plain"]["tokens_per_question"]
    assert policies["always"]["tokens_per_question"] >= 1.8 * policies["plain"]["tokens_per_question"]
    # A draw and its opposite: what one direction does by chance cancels.
    assert abs(policies["random"]["accuracy"] - policies["resample"]["accuracy"]) < 0.12
    rows = [json.loads(line) for line in (made["answers"].path / "random.jsonl").read_text().splitlines()]
    assert {row["right"] for row in rows} <= {0.0, 0.5, 1.0}
    assert set(made["answers_summary"]["timings"]) == {f"{name}_seconds_per_question" for name in POLICIES}
    facts = made["steering_summary"]
    assert facts["probe_accuracy"] > 0.95 > 0.8 > facts["probe_accuracy_of_all"]
    assert made["forks_summary"]["contexts"] > 40


def test_a_finished_policy_is_not_answered_again_and_the_rest_gives_the_same(
    made: Any, tmp_path: Path
) -> None:
    out = tmp_path / "answers"
    out.mkdir()
    for name in ("plain.jsonl", "steer.jsonl", "timings.json"):
        (out / name).write_bytes((made["answers"].path / name).read_bytes())
    before = (out / "plain.jsonl").stat().st_mtime_ns
    inputs = {key: made[key] for key in ("settings", "model", "questions", "steering")}
    summary = answer_questions(out, **inputs)
    assert (out / "plain.jsonl").stat().st_mtime_ns == before
    assert summary["policies"] == made["answers_summary"]["policies"]
    for name in POLICIES:
        assert (out / f"{name}.jsonl").read_bytes() == (made["answers"].path / f"{name}.jsonl").read_bytes()


def test_evaluate_answers_with_the_steering(made: Any, task_sets: Path, tmp_path: Path) -> None:
    own = EvaluateSettings(dtype="float32", examples=2, measure_speed=False)
    arguments = (own, made["model"].path, task_sets, None)
    steered = made["folder"] / "steered"
    with_it = evaluate_model(*arguments, tmp_path / "a", steering=steered)
    without = evaluate_model(*arguments, tmp_path / "b")
    policies = made["answers_summary"]["policies"]
    for name in ("plain", "resample", "steer"):
        assert with_it["metrics"][f"steering/{name}/accuracy"] == policies[name]["accuracy"]
        assert (
            with_it["metrics"][f"steering/{name}/tokens_per_question"]
            == policies[name]["tokens_per_question"]
        )
        assert with_it["timings"][f"steering_{name}_seconds_per_question"] > 0
    assert {k: v for k, v in with_it["metrics"].items() if not k.startswith("steering/")} == without[
        "metrics"
    ]


def test_none_leaves_the_end_of_an_answer_to_the_model() -> None:
    assert generation(DrawSettings(stop="none"), 0).stop == ""
    assert generation(DrawSettings(stop="Q:"), 0).stop == "Q:"


def test_a_damaged_artefact_is_told(made: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no whole steer.json"):
        read_record(tmp_path)
    record = read_record(made["folder"] / "steered")
    assert record["facts"]["contexts"] == made["forks_summary"]["contexts"]
    assert str(made["folder"]) not in (made["folder"] / "steered/steer.json").read_text()
    (tmp_path / "steer.json").write_text(json.dumps({**record, "draw": {"temperature": -1}}))
    with pytest.raises(DataError, match=r"holds no whole steer.json"):
        read_record(tmp_path)


def test_a_model_that_is_never_right_is_told_with_counts(made: Any, tmp_path: Path) -> None:
    source = tmp_path / "never.jsonl"
    asked = json.loads((made["folder"] / "questions.jsonl").read_text().splitlines()[0])["question"]
    rows = [{"question": f"{asked[:4]} {asked}", "answer": 7}, {"question": asked, "answer": 7}] * 4
    source.write_text("".join(json.dumps({**r, "answer": 7 + i}) + "\n" for i, r in enumerate(rows)))
    own = settings(source, questions={"train": 4, "test": 4})
    build_questions(own.questions, tmp_path / "questions")
    questions = reference_to(tmp_path / "questions", "data")
    with pytest.raises(
        NoContrastError, match=r"no context has a Truth and a Fallacy fork .* 0 right, \d+ wrong"
    ):
        draw_forks(tmp_path / "out", settings=own, model=made["model"], questions=questions)


def test_a_run_that_was_cut_off_draws_only_what_is_missing(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = settings(made["folder"] / "questions.jsonl", questions={"train": 24, "test": 4})
    own = own.model_copy(update={"forks": 3, "completions": 1})
    build_questions(own.questions, tmp_path / "few")
    inputs = {"settings": own, "model": made["model"], "questions": reference_to(tmp_path / "few", "data")}
    write, written, stop_at = module._write_rows, [], 0

    def counted(path: Path, rows: Any) -> None:
        if stop_at and len(written) == stop_at:
            path.with_name(f"{path.name}.part").write_text("{")  # a kill leaves half a part
            raise KeyboardInterrupt
        written.append(path.name)
        write(path, rows)

    monkeypatch.setattr(module, "PART_QUESTIONS", 6)
    monkeypatch.setattr(module, "_write_rows", counted)
    whole = draw_forks(tmp_path / "whole", **inputs)
    drawn = written.copy()
    written.clear()
    stop_at = 5  # four parts of chains and one of forks are there
    with pytest.raises(KeyboardInterrupt):
        draw_forks(tmp_path / "cut", **inputs)
    stop_at = 0
    assert written == drawn[:5]
    assert draw_forks(tmp_path / "cut", **inputs) == whole
    assert written == drawn
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")
    assert sorted(digests(tmp_path / "whole")) == ["chains.jsonl", "forks.jsonl", "gate.json"]


def test_the_report_shows_gain_cost_and_harm(made: Any) -> None:
    summary = made["answers_summary"]
    table = policy_table(summary["policies"], summary["timings"]).set_index("policy")
    assert table.loc["plain", "thrown away"] == "0.0"
    assert "/" in table.loc["DynaSteer", "fixed / harmed of plain"]
    found = verdicts(summary["policies"])
    facts = summary["policies"]["steer"]
    assert [v.held for v in found] == [True, facts["gain_over_random_low"] > 0, True]
    assert "random directions" in found[1].claim
    bare = {key: value for key, value in facts.items() if "random" not in key}
    assert len(verdicts({**summary["policies"], "steer": bare})) == 2
    worse = {**summary["policies"], "steer": {**summary["policies"]["plain"], "gain_over_resample": 0.1}}
    worse["steer"] |= {"gain_over_resample_low": -0.01, "gain_over_resample_high": 0.2}
    assert not verdicts(worse)[0].held
    assert set(figures(summary["policies"], made["forks"].path)) == set(
        tables(summary["policies"], made["forks"].path)
    )
