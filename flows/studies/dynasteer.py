"""The study of the paper on DynaSteer."""

from typing import Any

from prefect import flow

from flows.pipeline import open_run
from flows.studies.dynasteer_config import DynaSteerConfig
from flows.task_runner import start
from tasks.prepare.config import ModelSettings
from tasks.prepare.steps import prepare_model, source_fingerprint
from tasks.report.dynasteer import figures, log_candidates, metrics_and_verdicts, policies_table, tables
from tasks.report.publish import Report, publish, report_folder
from tasks.steer.steps import run_steer
from tasks.study.dynasteer import (
    check_study,
    parts_of,
    read_result,
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
                rows[part], took = real_model(ctx, config)
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
    return read_result(done.path), reasoner.timings["seconds"] + done.timings["seconds"]


def real_model(ctx: RunContext, config: DynaSteerConfig) -> tuple[list[dict[str, Any]], float]:
    """The policies of a real model on its questions, by the steps of the steer flow."""
    settings = ModelSettings(source=config.model, dtype="float32")
    fingerprint = source_fingerprint(config.model, "", "model")
    model = start(prepare_model, ctx, "model", {"settings": settings, "fingerprint": fingerprint}).result()
    done = run_steer(ctx, start, config.steer, model.reference)
    answered, facts = done.answered, done.facts
    row = {"facts_of_fit": facts, "timings": answered.timings}
    rows = [{"policy": name, "facts": found, **row} for name, found in answered.summary["policies"].items()]
    return rows, sum(step.timings["seconds"] for step in done.steps)
