"""The bench of LittleBit-2 on a whole model."""

from prefect import flow

from flows.pipeline import open_run
from flows.studies.littlebit2 import prepared
from flows.studies.littlebit2_model_config import LittleBit2ModelConfig
from flows.task_runner import start, task_runner
from tasks.prepare.models import check_model_source
from tasks.prepare.text import check_text_source
from tasks.report.littlebit2 import metrics_and_verdicts
from tasks.report.littlebit2_model import log_model_candidates, model_table, model_tables, plot_model
from tasks.report.publish import Report, publish, report_folder
from tasks.study.littlebit2 import read_frames
from tasks.study.littlebit2_model import model_study


def check(config: LittleBit2ModelConfig) -> None:
    """Refuse a model or text that cannot be used."""
    check_model_source(config.model)
    check_text_source(config.text)


@flow(
    name="littlebit2_model",
    description="A model below one bit per weight: compressed, distilled and scored beside its peers.",
    task_runner=task_runner(),
)
def littlebit2_model(config: LittleBit2ModelConfig = LittleBit2ModelConfig()) -> Report:
    check(config)
    with open_run("littlebit2_model", config) as ctx:
        model, text = prepared(ctx, config)
        whole = {"settings": config.distilled, "model": model, "text": text}
        done = start(model_study, ctx, "study model", whole).result()
        frames = read_frames([done.path])
        log_model_candidates(ctx, frames)
        metrics, verdicts = metrics_and_verdicts(frames)
        facts = ", ".join(
            f"{name.replace('_', ' ')} {value:,}" for name, value in done.summary["facts"].items()
        )
        return publish(
            ctx,
            "littlebit2: a whole model below one bit per weight",
            report_folder(ctx, config.report.folder),
            metrics,
            model_table(frames),
            model_tables(frames),
            {"model": plot_model(frames)},
            verdicts,
            notes=f"{facts}. Packed model folders: `{done.path}`. Seconds of work: {done.timings['seconds']:.0f}.",
        )
