"""The compress step as a flow of its own."""

from pathlib import Path

from prefect import flow

from flows.pipeline import open_run
from flows.stages import compress_model, existing, given_candidates
from flows.steps_config import CompressConfig
from flows.task_runner import task_runner
from methods.common.errors import DataError
from tasks.candidates import Candidate, best_on_select, save_candidates
from tasks.compress.compress import check_calibration, check_compression
from tasks.output_folder import check_output
from tasks.report.publish import Report, publish, report_folder
from tasks.report.summaries import candidates_table


def check(config: CompressConfig) -> None:
    """Refuse missing inputs, a model that a recipe cannot take, and an output folder that holds other files."""
    check_compression(config.recipes, chosen_model(config).reference.path)
    check_calibration(config.recipes, existing("text", config.text))
    check_output(Path(config.output), [Path(config.model), Path(config.text)])


def chosen_model(config: CompressConfig) -> Candidate:
    """The model to compress.

    Raises:
        DataError: several, and nothing says which is best.
    """
    found = given_candidates((config.model,))
    best = found[0] if len(found) == 1 else best_on_select(found)
    if best is None:
        raise DataError(f"model: {config.model} holds {len(found)} models; name the folder of one")
    return best


@flow(name="compress", description="Compress a model by each recipe.", task_runner=task_runner())
def compress(config: CompressConfig = CompressConfig()) -> Report:
    check(config)
    with open_run("compress", config) as ctx:
        model = chosen_model(config)
        compressed = compress_model(ctx, config, model, existing("text", config.text))
        output = save_candidates(compressed, Path(config.output))
        shown, metrics = candidates_table(compressed)
        notes = f"Made from `{model.name}`. Written to `{output}`."
        return publish(ctx, "Compressed", report_folder(ctx, ""), metrics, shown, {}, {}, [], notes=notes)
