"""A person's own graphs: models trained alike, predictions, and how far each model looks."""

import shutil
from importlib.util import find_spec
from pathlib import Path

from prefect import flow

from flows.graph_config import GraphConfig
from flows.pipeline import open_run
from flows.task_runner import start, task_runner
from methods.common.errors import ConfigError
from tasks.graphs.config import TrainGraphSettings
from tasks.graphs.read import BUNDLED, check_source
from tasks.graphs.steps import prepare_graphs, train_graph_model
from tasks.output_folder import check_output, write_output
from tasks.prepare.steps import source_fingerprint
from tasks.report.graphs import figures, graph_table, log_models, tables
from tasks.report.publish import Report, publish, report_folder
from tasks.step import StepResult
from tasks.tracking import log_input


def check(config: GraphConfig) -> None:
    """Refuse graphs that are not there, a package that is missing, an output folder that holds other files."""
    if find_spec("torch_geometric") is None:
        raise ConfigError("torch-geometric is not installed; pip install 'seedloom[graphs]'")
    check_source(config.graphs)
    inputs = [] if config.graphs.source == BUNDLED else [Path(config.graphs.source)]
    check_output(Path(config.output), inputs)


@flow(
    name="graph",
    description="Predict nodes, graphs or edges where the answer depends on what lies far away.",
    task_runner=task_runner(),
)
def graph(config: GraphConfig = GraphConfig()) -> Report:
    check(config)
    with open_run("graph", config) as ctx:
        source = {"settings": config.graphs, "fingerprint": source_fingerprint(config.graphs.source)}
        read = start(prepare_graphs, ctx, "graphs", source).result()
        log_input(ctx, ctx.parent_run_id, "graphs", read.reference, "training")
        settings = TrainGraphSettings(**config.model_dump(include=set(TrainGraphSettings.model_fields)))
        running = [
            start(
                train_graph_model,
                ctx,
                kind,
                {"kind": kind, "settings": settings, "graphs": read.reference},
            )
            for kind in config.models
        ]
        trained = [step.result() for step in running]
        output = write_output(Path(config.output), lambda place: _fill(place, config.models, trained))
        facts = [step.summary for step in trained]
        log_models(ctx, facts)
        shown, metrics = graph_table(facts)
        return publish(
            ctx,
            "Graphs",
            report_folder(ctx, config.report.folder),
            metrics,
            shown,
            tables(facts),
            figures(facts),
            [],
            notes=f"Written to `{output}`.",
        )


def _fill(place: Path, names: tuple[str, ...], trained: list[StepResult]) -> None:
    for name, step in zip(names, trained, strict=True):
        shutil.copytree(step.path, place / name, dirs_exist_ok=True)
