"""The adapt step as a flow of its own: between pretrain and finetune, from a model to one for longer text."""

from pathlib import Path

from prefect import flow

from flows.adapt_config import AdaptConfig
from flows.pipeline import open_run
from flows.stages import existing, only
from flows.task_runner import start, task_runner
from tasks.adapt.adapt import corpus_settings
from tasks.adapt.config import AdaptSettings, LongText, PositionSettings
from tasks.adapt.positions import check_adaptable
from tasks.adapt.steps import adapt as adapt_step
from tasks.adapt.steps import build_long_text, measure_positions
from tasks.output_folder import check_output, export
from tasks.prepare.steps import source_fingerprint
from tasks.pretrain.corpus import check_corpus
from tasks.reference import Reference
from tasks.report.adapt import answers_table, gaps_figure, gaps_table, heat_map, metrics_of, shown_table
from tasks.report.pretrain import curves_figure, curves_table
from tasks.report.publish import Report, publish, report_folder
from tasks.step import StepResult
from tasks.tracking import RunContext, log_input
from tasks.train.checkpoints import rows_a_device
from tasks.train.steps import replay_trace


def check(config: AdaptConfig) -> None:
    """Refuse a missing model or one without rotary positions, text that is not there, and a foreign output folder."""
    existing("model", config.model)
    check_adaptable(Path(config.model).expanduser())
    check_corpus(corpus_settings(config.text))
    rows_a_device(config.batch_size)
    check_output(Path(config.output), [Path(config.model), Path(config.text.source)])


def adapt_model(
    ctx: RunContext, settings: AdaptSettings, model: Reference
) -> tuple[StepResult, dict[str, Path]]:
    """A model trained on longer text, and folders with the answers by depth before and after."""
    inputs = {
        "text": settings.text,
        "model": model,
        "fingerprint": source_fingerprint(settings.text.source),
    }
    corpus = start(build_long_text, ctx, "adapt text", inputs).result().reference
    log_input(ctx, ctx.parent_run_id, "text", corpus, "training")
    places = {"settings": settings.positions, "model": model, "corpus": corpus}
    before = start(measure_positions, ctx, "positions before", places).result()
    label = f"adapted/{settings.method}"
    # Where the text came from and which answers are asked for are no part of the training's identity.
    asked = PositionSettings(rows=settings.positions.rows)
    own = only(AdaptSettings, settings, text=LongText(), positions=asked)
    result = start(adapt_step, ctx, label, {"settings": own, "model": model, "corpus": corpus}).result()
    replay_trace(ctx, label, result.path)
    after = start(measure_positions, ctx, "positions after", {**places, "model": result.reference}).result()
    return result, {"before": before.path, f"after {settings.method}": after.path}


@flow(
    name="adapt",
    description="Train a model on longer text so that it answers wherever the evidence stands.",
    task_runner=task_runner(),
)
def adapt(config: AdaptConfig = AdaptConfig()) -> Report:
    check(config)
    with open_run("adapt", config) as ctx:
        adapted, measured = adapt_model(ctx, only(AdaptSettings, config), existing("model", config.model))
        output = export(adapted.reference, Path(config.output))
        answers, gaps = answers_table(measured), gaps_table(measured)
        curves = curves_table(adapted.path)
        return publish(
            ctx,
            "Adapted model",
            report_folder(ctx, ""),
            metrics_of(measured),
            shown_table(measured),
            {"positions": answers, "gaps": gaps, "training": curves},
            {"positions": heat_map(answers), "gaps": gaps_figure(gaps), "training": curves_figure(curves)},
            [],
            notes=f"Written to `{output}`; `seedloom run finetune --model {output}` and "
            f"`seedloom run lifecycle --prepare.model.source {output}` go on from it.",
        )
