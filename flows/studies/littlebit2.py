"""The study of LittleBit-2."""

from prefect import flow

from flows.pipeline import open_run
from flows.studies.littlebit2_config import LittleBit2Config
from flows.task_runner import start, task_runner
from tasks.prepare.models import check_model_source
from tasks.prepare.steps import prepare_model, prepare_text, source_fingerprint
from tasks.prepare.text import check_text_source
from tasks.reference import Reference
from tasks.report.littlebit2 import figures, log_candidates, metrics_and_verdicts, shown_table, tables
from tasks.report.littlebit2_model import log_model_candidates, model_table, model_tables, plot_model
from tasks.report.publish import Report, markdown_table, publish, report_folder
from tasks.study.littlebit2 import read_frames, small_study, weights_study
from tasks.study.littlebit2_config import LittleBit2ModelStudy
from tasks.study.littlebit2_model import model_study
from tasks.tracking import RunContext, log_input


def check(config: LittleBit2Config) -> None:
    """Refuse a model or text that cannot be used."""
    check_model_source(config.model)
    check_text_source(config.text)


def prepared(ctx: RunContext, config: LittleBit2ModelStudy) -> tuple[Reference, Reference]:
    """The model and the text."""
    mark = source_fingerprint(config.model.source, config.model.revision, "model")
    model = start(prepare_model, ctx, "prepare model", {"settings": config.model, "fingerprint": mark})
    mark = source_fingerprint(config.text.source)
    text = start(prepare_text, ctx, "prepare text", {"settings": config.text, "fingerprint": mark})
    found = model.result().reference, text.result().reference
    for name, reference in zip(("model", "text"), found, strict=True):
        log_input(ctx, ctx.parent_run_id, name, reference, "training")
    return found


@flow(
    name="littlebit2",
    description="Models below one bit per weight: the paper's claims against its baselines.",
    task_runner=task_runner(),
)
def littlebit2(config: LittleBit2Config = LittleBit2Config()) -> Report:
    check(config)
    parts = config.resolved()
    with open_run("littlebit2", config) as ctx:
        model, text = prepared(ctx, config)
        # One after the other: each fills the cores by itself.
        weights = {"settings": parts.weights, "model": model}
        small = {"settings": parts.small, "text": text}
        done = [
            start(weights_study, ctx, "study weights", weights).result(),
            start(small_study, ctx, "study small models", small).result(),
        ]
        if config.profile == "full":
            whole = {"settings": parts.distilled, "model": model, "text": text}
            done.append(start(model_study, ctx, "study model", whole).result())
        frames = read_frames([part.path for part in done])
        log_candidates(ctx, frames)
        metrics, verdicts = metrics_and_verdicts(frames)
        plots, data, notes = figures(frames), tables(frames), []
        if config.profile == "full":
            log_model_candidates(ctx, frames)
            plots["model"] = plot_model(frames)
            data |= model_tables(frames)
            notes = [markdown_table(model_table(frames)), f"Packed model folders: `{done[-1].path}`."]
        notes.append(f"Seconds of work: {sum(part.timings['seconds'] for part in done):.0f}.")
        return publish(
            ctx,
            "littlebit2: below one bit per weight",
            report_folder(ctx, config.report.folder),
            metrics,
            shown_table(frames),
            data,
            plots,
            verdicts,
            notes="\n\n".join(notes),
        )
