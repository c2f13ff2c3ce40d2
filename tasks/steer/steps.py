"""The steer flow's steps as Prefect tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.prepare.steps import source_fingerprint
from tasks.reference import Reference
from tasks.steer.config import QuestionSettings, SteerSettings
from tasks.step import StepResult, step
from tasks.tracking import RunContext

WEEK = 7 * 24 * 3600


@step("steer-questions", kind="data", version="2", timeout_seconds=24 * 3600)
def build_questions(out: Path, *, settings: QuestionSettings, fingerprint: str) -> dict[str, Any]:
    """Read questions with their answers and split them into parts that share nothing."""
    from tasks.steer.questions import build_questions as work

    return work(settings, out)


@step("steer-forks", kind="data", version="2", timeout_seconds=WEEK)
def draw_forks(
    out: Path, *, settings: SteerSettings, model: Reference, questions: Reference
) -> dict[str, Any]:
    """Chains of the training questions, the entropy gate, and labelled forks at the doubtful sentences."""
    from tasks.steer.steer import draw_forks as work

    return work(out, settings=settings, model=model, questions=questions)


@step("steer-fit", kind="data", version="2", timeout_seconds=WEEK)
def fit_steering(out: Path, *, settings: SteerSettings, model: Reference, forks: Reference) -> dict[str, Any]:
    """Capture the heads at the forks' ends and fit the directions."""
    from tasks.steer.steer import fit_steering as work

    return work(out, settings=settings, model=model, forks=forks)


@step("steer-answers", kind="report", version="4", timeout_seconds=WEEK)
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


@dataclass(frozen=True)
class SteerRun:
    """What the steps of a steering made.

    Attributes:
        questions, forks, fitted, answered: each step's result.
    """

    questions: StepResult
    forks: StepResult
    fitted: StepResult
    answered: StepResult

    @property
    def facts(self) -> dict[str, Any]:
        """What was found about the model and the steering."""
        return self.forks.summary | self.fitted.summary

    @property
    def steps(self) -> tuple[StepResult, ...]:
        return self.questions, self.forks, self.fitted, self.answered


def run_steer(ctx: RunContext, start: Any, config: SteerSettings, model: Reference) -> SteerRun:
    """The steps one after the other; `start(step, ctx, label, inputs)` runs one.

    A step's key holds what it depends on: policies do not change the forks, nor does the strength.
    """

    def default(*names: str) -> dict[str, Any]:
        return {name: SteerSettings.model_fields[name].default for name in names}

    own = {name: getattr(config, name) for name in SteerSettings.model_fields}
    answering = SteerSettings(**own | default("questions"))
    fitting = answering.model_copy(update=default("policies", "tau_decay", "scope"))
    drawing = fitting.model_copy(
        update=default("clusters", "heads", "alpha", "alpha_unit", "cluster", "rank", "direction")
    )
    fingerprint = source_fingerprint(config.questions.source)
    questions = start(
        build_questions, ctx, "questions", {"settings": config.questions, "fingerprint": fingerprint}
    ).result()
    shared = {"model": model, "questions": questions.reference}
    forks = start(draw_forks, ctx, "forks", {"settings": drawing, **shared}).result()
    inputs = {"settings": fitting, "model": model, "forks": forks.reference}
    fitted = start(fit_steering, ctx, "fit", inputs).result()
    inputs = {"settings": answering, "steering": fitted.reference, **shared}
    answered = start(answer_questions, ctx, "answers", inputs).result()
    return SteerRun(questions, forks, fitted, answered)
