"""The study of the paper on early stopping for merging."""

from prefect import flow

from flows.pipeline import open_run
from flows.stages import only
from flows.studies.merge_early_stop_config import MergeEarlyStopConfig
from flows.task_runner import start
from tasks.reference import reference_to
from tasks.report.merge_early_stop import (
    figures,
    log_candidates,
    metrics_and_verdicts,
    strategy_table,
    tables,
)
from tasks.report.publish import Report, publish, report_folder
from tasks.study.merge_early_stop import digits_file, read_frames, study, study_settings
from tasks.study.merge_early_stop_config import MergeEarlyStopStudy
from tasks.tracking import log_input


def check(config: MergeEarlyStopConfig) -> None:
    """Refuse missing images and settings that do not fit."""
    study_settings(config)
    digits_file(config.data)


@flow(
    name="merge_early_stop",
    description="When to stop experts that will be merged: the paper's claims against its baselines.",
)
def merge_early_stop(config: MergeEarlyStopConfig = MergeEarlyStopConfig()) -> Report:
    check(config)
    with open_run("merge_early_stop", config) as ctx:
        images = reference_to(digits_file(config.data), "data")
        log_input(ctx, ctx.parent_run_id, "digits", images, "training")
        # Where the images lie is no part of the work's identity; their content is.
        own = only(MergeEarlyStopStudy, config, data="given")
        done = start(study, ctx, "study merge_early_stop", {"settings": own, "images": images}).result()
        frames = read_frames(done.path, done.timings["costs"])
        log_candidates(ctx, frames)
        metrics, verdicts = metrics_and_verdicts(frames)
        return publish(
            ctx,
            "merge_early_stop: stopping experts for merging",
            report_folder(ctx, config.report.folder),
            metrics,
            strategy_table(frames),
            tables(frames),
            figures(frames),
            verdicts,
            notes=f"Seconds of work: {done.timings['seconds']:.0f}.",
        )
