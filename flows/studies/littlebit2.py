"""The study of LittleBit-2."""

from prefect import flow

from flows.pipeline import open_run
from flows.studies.littlebit2_config import LittleBit2Config
from flows.task_runner import start, task_runner
from tasks.prepare.models import check_model_source
from tasks.prepare.steps import prepare_model, prepare_text, source_fingerprint
from tasks.prepare.text import check_text_source
from tasks.report.littlebit2 import (
    figures,
    log_candidates,
    metrics_and_verdicts,
    model_table,
    shown_table,
    tables,
)
from tasks.report.publish import Report, publish, report_folder
from tasks.study.littlebit2 import model_study, read_frames, small_study, weights_study
from tasks.tracking import log_input


def check(config: LittleBit2Config) -> None:
    """Refuse a model or text that cannot be used."""
    check_model_source(config.model)
    check_text_source(config.text)


@flow(
    name="littlebit2",
    description="Models below one bit per weight: the paper's claims against its baselines.",
    task_runner=task_runner(),
)
def littlebit2(config: LittleBit2Config = LittleBit2Config()) -> Report:
    check(config)
    parts = config.resolved()
    with open_run("littlebit2", config) as ctx:
        mark = source_fingerprint(config.model.source, config.model.revision)
        given = {"settings": config.model, "fingerprint": mark}
        model = start(prepare_model, ctx, "prepare model", given).result().reference
        given = {"settings": config.text, "fingerprint": source_fingerprint(config.text.source)}
        text = start(prepare_text, ctx, "prepare text", given).result().reference
        log_input(ctx, ctx.parent_run_id, "model", model, "training")
        log_input(ctx, ctx.parent_run_id, "text", text, "training")
        # One after the other: each fills the cores by itself.
        weights = {"settings": parts.weights, "model": model}
        small = {"settings": parts.small, "text": text}
        done = [
            start(weights_study, ctx, "study weights", weights).result(),
            start(small_study, ctx, "study small models", small).result(),
        ]
        if parts.distilled.run:
            whole = {"settings": parts.distilled, "model": model, "text": text}
            done.append(start(model_study, ctx, "study model", whole).result())
        frames = read_frames([part.path for part in done])
        log_candidates(ctx, frames)
        metrics, verdicts = metrics_and_verdicts(frames)
        seconds = sum(part.timings["seconds"] for part in done)
        notes = [model_table(frames), f"Seconds of work: {seconds:.0f}."]
        if parts.distilled.run:
            notes.append(f"Packed model folders: `{done[-1].path}`.")
        return publish(
            ctx,
            "littlebit2: below one bit per weight",
            report_folder(ctx, config.report.folder),
            metrics,
            shown_table(frames),
            tables(frames),
            figures(frames),
            verdicts,
            notes="\n\n".join(note for note in notes if note),
        )
