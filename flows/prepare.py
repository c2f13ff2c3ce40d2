"""The prepare step as a flow of its own."""

from pathlib import Path

from prefect import flow

from flows.pipeline import open_run
from flows.stages import Prepared, prepare_inputs
from flows.steps_config import PrepareConfig
from flows.task_runner import task_runner
from tasks.output_folder import check_output, export
from tasks.prepare.steps import check_sources, source_paths
from tasks.report.publish import Report, publish, report_folder
from tasks.report.summaries import prepared_table


def check(config: PrepareConfig) -> None:
    """Refuse sources that cannot be used and an output folder that holds other files."""
    check_sources(config)
    for part in Prepared.PARTS:
        check_output(Path(config.output) / part, source_paths(config))


@flow(
    name="prepare",
    description="Store a model, build task sets and held-out text.",
    task_runner=task_runner(),
)
def prepare(config: PrepareConfig = PrepareConfig()) -> Report:
    check(config)
    with open_run("prepare", config) as ctx:
        prepared = prepare_inputs(ctx, config)
        output = Path(config.output)
        for name, reference in prepared.parts().items():
            export(reference, output / name)
        shown, metrics = prepared_table(prepared.parts())
        return publish(
            ctx,
            "Prepared",
            report_folder(ctx, ""),
            metrics,
            shown,
            {},
            {},
            [],
            notes=f"Written to `{output}`.",
        )
