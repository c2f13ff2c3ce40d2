"""The steer step as a flow of its own: from a model and questions with answers to a steering beside the model."""

from pathlib import Path

from prefect import flow

from flows.pipeline import open_run
from flows.stages import existing, only
from flows.steer_config import SteerConfig
from flows.task_runner import start, task_runner
from methods.common.errors import ConfigError
from tasks.evaluate.loading import check_candidate
from tasks.output_folder import check_output, write_output
from tasks.prepare.steps import source_fingerprint
from tasks.report.publish import Report, publish, report_folder
from tasks.report.steer import figures, log_policies, policy_table, tables, verdicts
from tasks.steer.artefact import write_artefact
from tasks.steer.config import QuestionSettings, SteerSettings
from tasks.steer.questions import check_questions
from tasks.steer.steps import answer_questions, build_questions, draw_forks, fit_steering
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
        questions = start(
            build_questions,
            ctx,
            "questions",
            {"settings": config.questions, "fingerprint": source_fingerprint(config.questions.source)},
        ).result()
        log_input(ctx, ctx.parent_run_id, "questions", questions.reference, "training")
        # A part's key holds what it depends on: the policies do not change the forks, nor the strength the fit.
        base = {"questions": QuestionSettings()}
        usual = {
            name: SteerSettings.model_fields[name].default for name in ("policies", "tau_decay", "scope")
        }
        fitting = only(SteerSettings, config, **base, **usual)
        late = ("clusters", "heads", "alpha", "alpha_unit", "cluster", "rank", "direction")
        drawing = fitting.model_copy(update={name: SteerSettings.model_fields[name].default for name in late})
        forks = start(
            draw_forks,
            ctx,
            "forks",
            {"settings": drawing, "model": model, "questions": questions.reference},
        ).result()
        fitted = start(
            fit_steering, ctx, "fit", {"settings": fitting, "model": model, "forks": forks.reference}
        ).result()
        inputs = {
            "settings": only(SteerSettings, config, **base),
            "model": model,
            "questions": questions.reference,
            "steering": fitted.reference,
        }
        answered = start(answer_questions, ctx, "answers", inputs).result()
        policies, facts = answered.summary["policies"], forks.summary | fitted.summary
        output = write_output(
            Path(config.output),
            lambda place: write_artefact(place, config, model.path, questions.path, fitted.path, facts),
        )
        log_policies(ctx, policies, answered.timings)
        return publish(
            ctx,
            "Steered reasoning",
            report_folder(ctx, config.report.folder),
            {"steering": facts, "policies": policies},
            policy_table(policies, answered.timings),
            tables(policies, forks.path),
            figures(policies, forks.path),
            verdicts(policies),
            notes=f"Written to `{output}`; `seedloom run evaluate --steering {output}` answers with it.",
        )
