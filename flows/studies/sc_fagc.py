"""The study of the paper on SC-FAGC."""

from pathlib import Path

from prefect import flow

from flows.pipeline import open_run
from flows.studies.sc_fagc_config import ScFagcConfig
from flows.task_runner import start
from tasks.reference import reference_to
from tasks.report.publish import Report, publish, report_folder
from tasks.report.sc_fagc import (
    figures,
    log_candidates,
    metrics_and_verdicts,
    score_table,
    tables,
    times_note,
)
from tasks.study.run_bank import read_rows
from tasks.study.sc_fagc import ON_HANDWRITING, check_study, study_runs
from tasks.tracking import log_input


def check(config: ScFagcConfig) -> None:
    """Refuse digits that are not there and a peer that is not installed."""
    check_study(config)


@flow(
    name="sc_fagc",
    description="Clusters whose sizes keep within bounds: SC-FAGC's claims beside other clusterings.",
)
def sc_fagc(config: ScFagcConfig = ScFagcConfig()) -> Report:
    check(config)
    with open_run("sc_fagc", config) as ctx:
        digits = None
        if any(part in ON_HANDWRITING for part in config.parts):
            digits = reference_to(Path(config.data).expanduser(), "data")
            log_input(ctx, ctx.parent_run_id, "digits", digits, "training")
        rows, seconds = {}, {}
        for part in config.parts:
            inputs = {
                "part": part,
                "seeds": config.handwriting_seeds if part in ON_HANDWRITING else config.seeds,
                "data": digits if part in ON_HANDWRITING else None,
            }
            done = start(study_runs, ctx, part, inputs).result()
            rows[part] = read_rows(done.path / f"{part}.jsonl")
            seconds |= done.timings["each"]
        log_candidates(ctx, rows, seconds)
        metrics, verdicts = metrics_and_verdicts(rows)
        return publish(
            ctx,
            "sc_fagc: clusters within size bounds",
            report_folder(ctx, config.report.folder),
            metrics,
            score_table(rows),
            tables(rows),
            figures(rows),
            verdicts,
            notes=times_note(seconds),
        )
