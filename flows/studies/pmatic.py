"""The paper's flow: redundancy by bound, sizes of real archives, noise of known size, and real computations."""

from prefect import flow

from flows.pipeline import open_run
from flows.studies.pmatic_config import PmaticConfig
from flows.task_runner import start
from tasks.prepare.steps import prepare_model, source_fingerprint
from tasks.report.pmatic import figures, log_candidates, metrics_and_verdicts, summary_table, tables
from tasks.report.publish import Report, publish, report_folder
from tasks.study.pmatic import (
    check_study,
    model_settings,
    parts_of,
    settings_of,
    study_part,
    study_text,
    text_settings,
)
from tasks.study.run_bank import read_rows
from tasks.tracking import log_input


def check(config: PmaticConfig) -> None:
    """Refuse text, models and packages that are not there."""
    check_study(config)


@flow(
    name="pmatic",
    description="Lossless compression that decodes on another machine: the paper's claims against its baselines.",
)
def pmatic(config: PmaticConfig = PmaticConfig()) -> Report:
    check(config)
    with open_run("pmatic", config) as ctx:
        text = start(
            study_text,
            ctx,
            "text",
            {"settings": text_settings(config), "fingerprint": source_fingerprint(config.data)},
        ).result()
        log_input(ctx, ctx.parent_run_id, "text", text.reference, "compression")
        rows, seconds = {}, 0.0
        for part in parts_of(config):
            inputs = {"part": part, "settings": settings_of(part, config), "text": text.reference}
            if part == "llm":
                stored = start(
                    prepare_model,
                    ctx,
                    "language model",
                    {
                        "settings": model_settings(config),
                        "fingerprint": source_fingerprint(config.model, hub="model"),
                    },
                ).result()
                inputs["model"] = stored.reference
            done = start(study_part, ctx, part, inputs).result()
            rows[part] = read_rows(done.path / f"{part}.jsonl")
            seconds += done.timings["cpu_seconds"]
        log_candidates(ctx, rows)
        metrics, verdicts = metrics_and_verdicts(rows)
        return publish(
            ctx,
            "pmatic: archives that another machine can read",
            report_folder(ctx, config.report.folder),
            metrics,
            summary_table(rows),
            tables(rows),
            figures(rows),
            verdicts,
            notes=f"Processor seconds of the parts, those of earlier runs counted: {seconds:.0f}.",
        )
