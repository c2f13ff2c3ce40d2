"""The archive step as a flow of its own: compress, read back by a second computation, and only then drop the source."""

import logging
import shutil
from pathlib import Path

from prefect import flow

from flows.archive_config import ArchiveConfig
from flows.pipeline import open_run
from flows.stages import only
from flows.steps_config import NONE
from flows.task_runner import start, task_runner
from methods.common.errors import ConfigError
from tasks.archive.archive import VERIFIED, drop_original, source_names
from tasks.archive.config import ArchiveSettings
from tasks.archive.predictors import NGRAM, check_model, text_settings
from tasks.archive.steps import archive as archive_step
from tasks.archive.steps import calibrate_codec, verify_archive
from tasks.output_folder import check_output, write_output
from tasks.prepare.steps import source_fingerprint
from tasks.prepare.text import check_text_source
from tasks.reference import reference_to
from tasks.report.archive import archive_tables
from tasks.report.publish import Report, publish, report_folder
from tasks.tracking import log_input

logger = logging.getLogger("seedloom")


def check(config: ArchiveConfig) -> None:
    """Refuse missing inputs, a source that holds the model that reads it, and an output folder with other files."""
    source = Path(config.source).expanduser()
    reference_to(source, "data")
    source_names(source)
    check_model(config.model)
    check_output(Path(config.output), [source, Path(config.model)])
    if config.calibration != NONE:
        check_text_source(text_settings(config.calibration))
    elif not config.bound:
        raise ConfigError(
            "calibration = none: the bound is measured on calibration text; give some, or a bound"
        )
    if config.model.startswith(NGRAM) and config.computations != ("steps",):
        raise ConfigError(
            f"computations = {', '.join(config.computations)}: an n-gram model has 'steps' only"
        )
    if config.drop_original:
        for field, given in (("model", config.model.removeprefix(NGRAM)), ("the current folder", ".")):
            place = Path(given).expanduser().resolve()
            if place.is_relative_to(source.resolve()):
                raise ConfigError(
                    f"drop_original: {field} lies inside the source {source}; move it elsewhere first"
                )


@flow(
    name="archive",
    description="Compress files with a language model, and read them back before anything is dropped.",
    task_runner=task_runner(),
)
def archive(config: ArchiveConfig = ArchiveConfig()) -> Report:
    check(config)
    with open_run("archive", config) as ctx:
        source = Path(config.source).expanduser()
        calibration = "" if config.calibration == NONE else config.calibration
        settings = only(ArchiveSettings, config)
        model = source_fingerprint(config.model.removeprefix(NGRAM))
        given = {"settings": settings, "model": config.model}
        texts = [model, *([source_fingerprint(calibration)] if calibration else [])]
        codec = start(
            calibrate_codec, ctx, "calibrate", {**given, "calibration": calibration, "fingerprints": texts}
        ).result()
        original = reference_to(source, "data")
        log_input(ctx, ctx.parent_run_id, "source", original, "archive")
        made = start(
            archive_step,
            ctx,
            "archive",
            {**given, "codec": codec.reference, "source": original, "fingerprints": [model]},
        ).result()
        verified = start(
            verify_archive, ctx, "verify", {**given, "archive": made.reference, "fingerprints": [model]}
        ).result()

        def fill(staging: Path) -> None:
            shutil.copytree(made.path, staging, dirs_exist_ok=True)
            shutil.copy(verified.path / VERIFIED, staging)

        output = write_output(Path(config.output), fill, {"digest": made.reference.digest, "kind": "data"})
        notes = (
            f"Written to `{output}`; `seedloom archive decompress {output} --model {config.model}` reads it."
        )
        if config.drop_original:
            dropped = drop_original(source, output)
            notes += f" The {dropped} files of `{source}` were deleted after they had been read back."
        if calibration and Path(calibration).resolve().is_relative_to(source.resolve()):
            notes += " The calibration text lies in the source, which flatters the size a little."
        table, metrics = archive_tables(made, codec, verified)
        return publish(ctx, "Archive", report_folder(ctx, ""), metrics, table, {}, {}, [], notes=notes)
