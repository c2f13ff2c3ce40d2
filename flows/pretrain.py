"""The pretrain step as a flow of its own: its output is a base model for the lifecycle."""

from pathlib import Path

from prefect import flow

from flows.pipeline import open_run
from flows.pretrain_config import PretrainConfig
from flows.stages import only, pretrain_base
from flows.task_runner import task_runner
from methods.common.errors import ConfigError
from tasks.output_folder import check_output, export
from tasks.pretrain.config import PretrainSettings
from tasks.pretrain.corpus import check_corpus
from tasks.report.pretrain import curves_figure, curves_table, facts_table
from tasks.report.publish import Report, publish, report_folder
from tasks.report.summaries import candidates_table
from tasks.train.checkpoints import rows_a_device


def check(config: PretrainConfig) -> None:
    """Refuse text that is not there, a batch that does not fit, and an output folder that holds other files."""
    check_corpus(config.corpus)
    rows_a_device(config.batch_size)
    check_output(Path(config.output), [Path(config.corpus.source)])
    if config.shape.mup_base_width > config.shape.width:
        raise ConfigError(
            f"shape.mup_base_width={config.shape.mup_base_width} is above shape.width={config.shape.width}; give the "
            "smaller width at which the rate was tuned"
        )


@flow(
    name="pretrain",
    description="Train a base model from scratch on your text, with the norm placement as a setting.",
    task_runner=task_runner(),
)
def pretrain(config: PretrainConfig = PretrainConfig()) -> Report:
    check(config)
    with open_run("pretrain", config) as ctx:
        model = pretrain_base(ctx, only(PretrainSettings, config))
        output = export(model.reference, Path(config.output))
        _, metrics = candidates_table([model])
        table = curves_table(model.reference.path)
        ended = ""
        if model.facts["diverged"]:
            ended = (
                f" Training left the finite numbers at step {model.facts['diverged_step']}; the weights are those of "
                f"step {model.facts['kept_step']}. Lower learning_rate."
            )
        return publish(
            ctx,
            "Pre-trained model",
            report_folder(ctx, ""),
            metrics,
            facts_table(model),
            {"training": table},
            {"training": curves_figure(table)},
            [],
            notes=f"Written to `{output}`; `seedloom run lifecycle --prepare.model.source {output}` goes on from it."
            + ended,
        )
