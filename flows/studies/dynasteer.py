"""The study of the paper on DynaSteer."""

from typing import Any

from prefect import flow

from flows.pipeline import open_run
from flows.studies.dynasteer_config import DynaSteerConfig
from flows.task_runner import start
from tasks.prepare.config import ModelSettings
from tasks.prepare.steps import prepare_model, source_fingerprint
from tasks.reference import Reference
from tasks.report.dynasteer import figures, log_candidates, metrics_and_verdicts, policies_table, tables
from tasks.report.publish import Report, publish, report_folder
from tasks.steer.config import QuestionSettings
from tasks.steer.steps import build_questions, run_steer
from tasks.step import StepResult
from tasks.study.dynasteer import (
    check_study,
    model_rows,
    parts_of,
    read_result,
    study_plain,
    study_planted,
    study_reasoner,
    study_world,
)
from tasks.tracking import RunContext


def check(config: DynaSteerConfig) -> None:
    """Refuse a model or questions that are not there."""
    check_study(config)


@flow(
    name="dynasteer",
    description="Steering at doubtful sentences: DynaSteer's claims against its baselines and controls.",
)
def dynasteer(config: DynaSteerConfig = DynaSteerConfig()) -> Report:
    check(config)
    with open_run("dynasteer", config) as ctx:
        rows: dict[str, list[dict[str, Any]]] = {}
        seconds = 0.0
        for part in parts_of(config):
            if part == "planted":
                done = [start(study_planted, ctx, f"planted/{s}", {"seed": s}).result() for s in config.seeds]
                rows[part] = [read_result(result.path) for result in done]
                seconds += sum(result.timings["seconds"] for result in done)
            elif part == "world":
                rows[part] = []
                for seed in config.seeds:
                    row, took = world(ctx, config, seed)
                    rows[part].append(row)
                    seconds += took
            else:
                found, took = real_model(ctx, config)
                rows |= found
                seconds += took
        log_candidates(ctx, rows)
        metrics, verdicts = metrics_and_verdicts(rows)
        return publish(
            ctx,
            "dynasteer: steering at doubtful sentences",
            report_folder(ctx, config.report.folder),
            metrics,
            policies_table(rows),
            tables(rows),
            figures(rows),
            verdicts,
            notes=f"Seconds of the steps, those of earlier runs counted: {seconds:.0f}.",
        )


def world(ctx: RunContext, config: DynaSteerConfig, seed: int) -> tuple[dict[str, Any], float]:
    """A seed's reasoner and what was measured on it."""
    reasoner = start(study_reasoner, ctx, f"reasoner/{seed}", {"seed": seed, "steps": config.steps}).result()
    sizes = {name: getattr(config, name) for name in ("problems", "select", "test", "laws")}
    inputs = {"seed": seed, "model": reasoner.reference, **sizes}
    done = start(study_world, ctx, f"world/{seed}", inputs).result()
    row = read_result(done.path)
    row["seconds"] = {name: done.timings[f"{name}_seconds_per_question"] for name in row["policies"]}
    return row, reasoner.timings["seconds"] + done.timings["seconds"]


def real_model(ctx: RunContext, config: DynaSteerConfig) -> tuple[dict[str, list[dict[str, Any]]], float]:
    """The policies of a real model on its questions, by the steer flow's steps, and its plain answers to others."""
    settings = ModelSettings(source=config.model, dtype="float32")
    fingerprint = source_fingerprint(config.model, "", "model")
    model = start(prepare_model, ctx, "model", {"settings": settings, "fingerprint": fingerprint}).result()
    rows: dict[str, list[dict[str, Any]]] = {"plain": [], "model": []}
    steps: list[StepResult] = []
    for seed in config.seeds:
        for asked in config.plain_questions:
            done = plain(ctx, config, asked.model_copy(update={"seed": seed}), model.reference)
            rows["plain"].append(read_result(done.path) | {"seconds": done.timings["seconds_per_question"]})
            steps.append(done)
    for seed in config.seeds:
        asked = config.steer.questions.model_copy(update={"seed": seed})
        own = config.steer.model_copy(update={"seed": seed, "questions": asked})
        run = run_steer(ctx, start, own, model.reference)
        rows["model"] += model_rows(run, seed)
        steps += run.steps
    return rows, sum(done.timings["seconds"] for done in steps)


def plain(ctx: RunContext, config: DynaSteerConfig, asked: QuestionSettings, model: Reference) -> StepResult:
    """The real model's plain answers to one set of questions."""
    fingerprint = source_fingerprint(asked.source)
    label = f"plain/{asked.source}/{asked.seed}"
    questions = start(
        build_questions, ctx, f"{label}/questions", {"settings": asked, "fingerprint": fingerprint}
    ).result()
    inputs = {
        "model": model,
        "questions": questions.reference,
        "draw": config.steer.draw.model_copy(update={"max_new_tokens": config.plain_tokens}),
        "dtype": config.steer.dtype,
        "seed": asked.seed,
    }
    found: StepResult = start(study_plain, ctx, label, inputs).result()
    return found
