"""The compress step as a flow of its own."""

from pathlib import Path

from prefect import flow

from flows.pipeline import open_run
from flows.stages import best_on_select, compress_model, existing, given_candidates
from flows.steps_config import CompressConfig
from flows.task_runner import task_runner
from tasks.candidates import save_candidates
from tasks.compress.compress import check_compression
from tasks.output_folder import check_output
from tasks.report.publish import Report, publish, report_folder
from tasks.report.summaries import candidates_table


def check(config: CompressConfig) -> None:
    """Refuse missing inputs, a model that a recipe cannot take, and an output folder that holds other files."""
    check_compression(config.recipes, best_on_select(given_candidates((config.model,))).reference.path)
    existing("text", config.text)
    check_output(Path(config.output), [Path(config.model), Path(config.text)])


@flow(name="compress", description="Compress a model by each recipe.", task_runner=task_runner())
def compress(config: CompressConfig = CompressConfig()) -> Report:
    check(config)
    with open_run("compress", config) as ctx:
        model = best_on_select(given_candidates((config.model,)))
        compressed = compress_model(ctx, config, model, existing("text", config.text))
        output = save_candidates(compressed, Path(config.output))
        shown, metrics = candidates_table(compressed)
        notes = f"Made from `{model.name}`. Written to `{output}`."
        return publish(ctx, "Compressed", report_folder(ctx, ""), metrics, shown, {}, {}, [], notes=notes)
