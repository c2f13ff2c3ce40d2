"""The study of dynasteer: one tiny seed through everything, what people read of it, and the rule of each claim."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from methods.common.errors import DataError
from methods.dynasteer import decode, study
from methods.dynasteer.study import WorldPlan, run_world
from methods.dynasteer.study_claims import claims, planted_claims
from methods.dynasteer.world import train_reasoner
from tasks.report.dynasteer import figures, metrics_and_verdicts, policies_table, tables
from tasks.study.dynasteer import check_study, parts_of
from tasks.study.dynasteer_config import DynaSteerStudy

PLAN = WorldPlan(
    problems=40, select=12, test=30, laws=12, forks=6, completions=1, alphas=(1.0, 3.0), always=(0.5,)
)


@pytest.fixture(scope="module")
def model() -> Any:
    return train_reasoner(0, 150, batch=32, rate=1e-2, width=32, layers=2, heads=2)


@pytest.fixture(scope="module")
def seed(model: Any) -> dict[str, Any]:
    return run_world(model, 0, PLAN)


def planted(**changes: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "seed": 0,
        "plain": 0.5,
        "resample": 0.5,
        "random": 0.51,
        "steer": 0.9,
        "cosine": 0.99,
    }
    return row | {"fixed": 80, "harmed": 3, "tests": 200, "contexts": 40} | changes


def model_row(seed: int, policy: str, right: str) -> dict[str, Any]:
    facts = {"accuracy": right.count("1") / len(right), "tokens_per_question": 9.0}
    fit = dict.fromkeys(("accuracy", "doubtful", "right_forks", "wrong_forks", "contexts"), 3.0)
    return {
        "seed": seed,
        "policy": policy,
        "facts": facts | {"harmed_of_plain": 0, "fixed_of_plain": 2},
        "fit": fit | {"probe_accuracy": 0.6},
        "right": right,
        "groups": list("abcd"),
        "seconds": 0.25,
    }


def test_a_seed_holds_every_policy_with_its_control(seed: dict[str, Any]) -> None:
    policies = seed["policies"]
    wanted = {
        "plain",
        "resample",
        "steer",
        "no gate",
        "no rollback",
        "tau 2",
        "mean difference",
        "iti",
        "caa",
    }
    wanted |= {
        "constant",
        "self-consistency",
        "ITI 3 sigma",
        "random 0",
        "random 1",
        "whole sentence",
        "restored",
    }
    assert wanted <= set(policies)
    for name, facts in policies.items():
        if facts.get("control"):
            assert facts["control"] in policies
            assert len(facts["right"]) == 30
            gain = facts["accuracy"] - policies[facts["control"]]["accuracy"]
            assert facts["over_control"]["gain"] == pytest.approx(gain), name
    assert policies["no gate"]["tokens"] >= 1.8 * policies["plain"]["tokens"]
    assert policies["self-consistency"]["tokens"] == pytest.approx(policies["steer"]["tokens"])
    assert [law["sentence"] for law in seed["laws"]] == [1, 2, 3, 4, 5, 6]
    assert seed["chosen"]["steer"] in policies
    best = max((name for name in seed["select"] if name.startswith("steer")), key=seed["select"].get)
    assert best == f"steer {seed['chosen']['steer']}"


def test_a_killed_seed_measures_only_what_is_missing(
    model: Any, seed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise KeyboardInterrupt
        return decode(*arguments, **more)

    monkeypatch.setattr(study, "decode", counted)
    stop_at = 40
    with pytest.raises(KeyboardInterrupt):
        run_world(model, 0, PLAN, folder=tmp_path)
    calls, stop_at = 0, -1
    again = run_world(model, 0, PLAN, folder=tmp_path)
    assert calls < 30
    assert {**again, "seconds": 0} == {**seed, "seconds": 0}


def test_the_report_is_whole(seed: dict[str, Any]) -> None:
    other = copy.deepcopy(seed)
    other["seed"] = 1
    parts: dict[str, Any] = {"planted": [planted(), planted(seed=1)], "world": [seed, other]}
    parts["model"] = [
        model_row(seed, policy, right)
        for seed in (0, 1)
        for policy, right in (("plain", "0011"), ("resample", "0111"), ("steer", "1111"))
    ]
    parts["plain"] = [
        {"seed": s, "source": "bundled:x", "questions": 4, "accuracy": 0.25, "tokens": 3.0, "seconds": 0.5}
        for s in (0, 1)
    ]
    metrics, verdicts = metrics_and_verdicts(parts)
    json.dumps(metrics, allow_nan=False)
    assert len(verdicts) == sum("bar" in claim for claim in metrics["claims"].values())
    data, drawn = tables(parts), figures(parts)
    assert set(drawn) <= set(data)
    assert {"policies", "laws", "planted"} <= set(drawn)
    assert set(data["policies"].policy) == set(seed["policies"])
    shown = policies_table(parts)
    assert set(shown.bench) >= {"small world", "real model", "real model, bundled:x"}
    steered = shown[(shown.bench == "real model") & (shown.policy == "DynaSteer")].iloc[0]
    assert steered["right (%)"] == "100.0 ± 0.0"
    assert steered["ms a question"] == "250"
    assert steered["over its control (95 %)"].startswith("+25.0 (")
    assert steered["fixed / harmed of plain"] == "4 / 0"
    assert metrics["claims"]["model/gain_over_plain"]["values"] == [0.5, 0.5]
    assert metrics["claims"]["model/plain/x"]["mean"] == 0.25
    # Two equal seeds: intervals come from the pooled problems, and the spread over seeds is nothing.
    assert data["policies"].accuracy_std.max() == 0


def test_each_planted_claim_fails_on_its_own() -> None:
    def held(**changes: float) -> dict[str, bool | None]:
        return {
            c.name.removeprefix("planted/"): c.held for c in planted_claims([planted(), planted(**changes)])
        }

    assert all(value is not False for value in held().values())
    for changes, name in (
        ({"plain": 0.7, "steer": 0.95}, "plain"),
        ({"steer": 0.6}, "gain_over_plain"),
        ({"resample": 0.8, "random": 0.8}, "gain_over_resample"),
        ({"random": 0.55}, "random_off_resample"),
        ({"cosine": 0.8}, "cosine"),
    ):
        assert held(**changes)[name] is False, name


def test_a_gain_that_the_control_has_too_is_not_held(seed: dict[str, Any]) -> None:
    found = {}
    for name, right in (("same", "0" * 15 + "1" * 15), ("more", "0" * 3 + "1" * 27)):
        rows = []
        for number in range(3):
            row = copy.deepcopy(seed)
            row["policies"]["plain"] |= {"right": "0" * 30, "accuracy": 0.0}
            row["policies"]["resample"] |= {"right": "0" * 15 + "1" * 15, "accuracy": 0.5}
            row["policies"]["steer"] |= {"right": right, "accuracy": right.count("1") / 30 + 1e-4 * number}
            rows.append(row)
        found[name] = {c.name: c.held for c in claims({"world": rows})}
    assert found["same"]["world/gain_over_plain"] is True
    assert found["same"]["world/gain_over_resample/bootstrap_low"] is False
    assert found["same"]["world/gain_over_resample"] is False
    assert found["more"]["world/gain_over_resample"] is True
    assert found["more"]["world/gain_over_resample/bootstrap_low"] is True


def test_settings_are_checked_before_any_work() -> None:
    check_study(DynaSteerStudy())
    assert parts_of(DynaSteerStudy(profile="full")) == ("planted", "world", "model")
    with pytest.raises(DataError, match="nowhere"):
        check_study(DynaSteerStudy(parts=("model",), model="./nowhere"))
