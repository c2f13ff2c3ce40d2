"""Steps without Prefect: keys, reuse, resume, one line for a wrong input."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from tasks.config import Config
from tasks.reference import reference_to
from tasks.settings import settings
from tasks.step import identity, run_step, step, step_key


class Numbers(Config):
    factor: int = Field(2, description="a factor")


def run(work: Any, **inputs: Any) -> Any:
    return run_step("double", "1", "data", work, inputs)


def test_the_same_inputs_are_worked_on_once(work: Path) -> None:
    calls = []

    def double(out: Path, *, settings: Numbers) -> dict[str, Any]:
        calls.append(settings.factor)
        (out / "value").write_text(str(settings.factor * 2))
        return {"value": settings.factor * 2, "timings": {"rate": 3.0}}

    first, second = run(double, settings=Numbers()), run(double, settings=Numbers())
    assert calls == [2]
    assert first.reference == second.reference
    assert second.summary == {"value": 4}
    assert second.timings["rate"] == 3.0
    assert run(double, settings=Numbers(factor=3)).summary == {"value": 6}
    assert calls == [2, 3]


def test_a_failed_attempt_is_not_a_result(work: Path) -> None:
    attempts = []

    def fragile(out: Path, *, settings: Numbers) -> dict[str, Any]:
        attempts.append(sorted(p.name for p in out.iterdir()))
        (out / "part").write_text("x")
        if len(attempts) == 1:
            raise RuntimeError("power cut")
        return {}

    with pytest.raises(RuntimeError, match="power cut"):
        run(fragile, settings=Numbers())
    run(fragile, settings=Numbers())
    assert attempts == [[], ["part"]]


def test_the_key_follows_content_version_and_settings(tmp_path: Path, work: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("same")
    a, b = (reference_to(tmp_path / name, "data") for name in ("a", "b"))
    assert step_key("s", "1", {"data": a}) == step_key("s", "1", {"data": b})
    assert step_key("s", "1", {"data": a}) != step_key("s", "2", {"data": a})
    assert step_key("s", "1", {"data": a}) != step_key("t", "1", {"data": a})
    assert step_key("s", "1", {"n": Numbers()}) != step_key("s", "1", {"n": Numbers(factor=3)})
    assert step_key("s", "1", {"n": [a, b]}) == step_key("s", "1", {"n": (b, a)})


def test_a_live_object_is_no_input(work: Path) -> None:
    with pytest.raises(TypeError, match="pass settings, references or plain values"):
        identity(object())


def test_timings_are_no_content(work: Path) -> None:
    ticks = iter((1, 2))

    def timed(out: Path, *, settings: Numbers) -> dict[str, Any]:
        (out / "value").write_text("same")
        (out / "timings.json").write_text(json.dumps({"s": next(ticks)}))
        return {}

    assert (
        run(timed, settings=Numbers()).reference.digest
        == run(timed, settings=Numbers(factor=9)).reference.digest
    )


def test_a_moved_work_folder_is_not_answered_from_the_old_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect's record of a step holds the path of its output."""

    @step("placed", kind="data", version="1", timeout_seconds=60)
    def placed(out: Path, *, number: int) -> dict[str, Any]:
        return {}

    keys = []
    for name in ("here", "there", "here"):
        monkeypatch.setenv("SEEDLOOM_WORK_DIR", str(tmp_path / name))
        settings.cache_clear()
        assert placed.cache_key_fn is not None
        keys.append(placed.cache_key_fn(None, {"inputs": {"number": 1}, "label": "x"}))  # type: ignore[arg-type]
    assert keys[0] == keys[2] != keys[1]
