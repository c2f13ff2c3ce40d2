"""The steer step as a flow of its own: from a model and questions with answers to a steering beside the model."""

from pathlib import Path

from prefect import flow

from flows.pipeline import open_run
from flows.stages import existing
from flows.steer_config import SteerConfig
from flows.task_runner import start, task_runner
from methods.common.errors import ConfigError
from tasks.evaluate.loading import check_candidate
from tasks.output_folder import check_output, write_output
from tasks.report.publish import Report, publish, report_folder
from tasks.report.steer import figures, log_policies, policy_table, tables, verdicts
from tasks.steer.artefact import write_artefact
from tasks.steer.questions import check_questions
from tasks.steer.steps import run_steer
from tasks.tracking import log_input


def check(config: SteerConfig) -> None:
    """Refuse a model or questions that are not there, and an output folder that holds other files."""
    model = existing("model", config.model)
    check_candidate(model.path, None)
    check_questions(config.questions)
    check_output(Path(config.output), [model.path, Path(config.questions.source)])
    if "resample" not in config.policies and "steer" in config.policies:
        raise ConfigError(
            "policies: steer without resample proves nothing, since drawing a doubtful sentence again already changes "
            "accuracy; add resample"
        )


@flow(
    name="steer",
    description="Fit steering of a model's reasoning at its doubtful sentences, and compare it with its controls.",
    task_runner=task_runner(),
)
def steer(config: SteerConfig = SteerConfig()) -> Report:
    check(config)
    with open_run("steer", config) as ctx:
        model = existing("model", config.model)
        done = run_steer(ctx, start, config, model)
        log_input(ctx, ctx.parent_run_id, "questions", done.questions.reference, "training")
        policies, timings, forks = done.answered.summary["policies"], done.answered.timings, done.forks.path
        output = write_output(
            Path(config.output),
            lambda place: write_artefact(
                place, config, model.path, done.questions.path, done.fitted.path, done.facts
            ),
        )
        log_policies(ctx, policies, timings)
        return publish(
            ctx,
            "Steered reasoning",
            report_folder(ctx, config.report.folder),
            {"steering": done.facts, "policies": policies},
            policy_table(policies, timings),
            tables(policies, forks),
            figures(policies, forks),
            verdicts(policies),
            notes=f"Written to `{output}`; `seedloom run evaluate --steering {output}` answers with it.",
        )
