"""The steer flow's steps as Prefect tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.reference import Reference
from tasks.steer.config import QuestionSettings, SteerSettings
from tasks.step import step

WEEK = 7 * 24 * 3600


@step("steer-questions", kind="data", version="1", timeout_seconds=24 * 3600)
def build_questions(out: Path, *, settings: QuestionSettings, fingerprint: str) -> dict[str, Any]:
    """Read questions with their answers and split them into parts that share nothing."""
    from tasks.steer.questions import build_questions as work

    return work(settings, out)


@step("steer-forks", kind="data", version="1", timeout_seconds=WEEK)
def draw_forks(
    out: Path, *, settings: SteerSettings, model: Reference, questions: Reference
) -> dict[str, Any]:
    """Chains of the training questions, the entropy gate, and labelled forks at the doubtful sentences."""
    from tasks.steer.steer import draw_forks as work

    return work(out, settings=settings, model=model, questions=questions)


@step("steer-fit", kind="data", version="1", timeout_seconds=WEEK)
def fit_steering(out: Path, *, settings: SteerSettings, model: Reference, forks: Reference) -> dict[str, Any]:
    """Capture the heads at the forks' ends and fit the directions."""
    from tasks.steer.steer import fit_steering as work

    return work(out, settings=settings, model=model, forks=forks)


@step("steer-answers", kind="report", version="1", timeout_seconds=WEEK)
def answer_questions(
    out: Path,
    *,
    settings: SteerSettings,
    model: Reference,
    questions: Reference,
    steering: Reference,
) -> dict[str, Any]:
    """Answer the test questions under each policy with the same random numbers."""
    from tasks.steer.steer import answer_questions as work

    return work(out, settings=settings, model=model, questions=questions, steering=steering)
