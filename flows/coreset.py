"""Files larger than memory: a coreset of each piece on the task runner, their union made small, centres, labels."""

import shutil
from pathlib import Path

from prefect import flow

from flows.coreset_config import CoresetConfig
from flows.pipeline import open_run
from flows.stages import only
from flows.task_runner import start, task_runner
from tasks.cluster.batches import Piece, pieces_of
from tasks.cluster.coreset_config import StreamCoresetSettings
from tasks.cluster.steps import coreset_label, coreset_merge, coreset_piece
from tasks.output_folder import check_output, write_output
from tasks.prepare.steps import source_fingerprint
from tasks.report.coreset import coreset_table
from tasks.report.publish import Report, publish, report_folder
from tasks.step import StepResult


def check(config: CoresetConfig) -> None:
    """Refuse rows that are not there and an output folder that holds other files."""
    pieces_of(config.features)
    check_output(Path(config.output), [Path(config.features.source)])


@flow(
    name="coreset",
    description="Cluster files larger than memory through a small weighted part of their rows.",
    task_runner=task_runner(),
)
def coreset(config: CoresetConfig = CoresetConfig()) -> Report:
    check(config)
    with open_run("coreset", config) as ctx:
        pieces = pieces_of(config.features)
        settings = only(StreamCoresetSettings, config)
        content = source_fingerprint(config.features.source)
        started = [
            start(
                coreset_piece,
                ctx,
                f"piece {number + 1} of {len(pieces)}",
                {"settings": settings, "piece": piece, "number": number, "fingerprint": content},
            )
            for number, piece in enumerate(pieces)
        ]
        parts = [one.result() for one in started]
        inputs = {"settings": settings, "parts": [one.reference for one in parts], "pieces": pieces}
        merged = start(coreset_merge, ctx, "merge and solve", inputs).result()
        labelled = []
        if config.label_rows:
            running = [
                start(
                    coreset_label,
                    ctx,
                    f"label piece {number + 1} of {len(pieces)}",
                    {
                        "settings": settings,
                        "piece": piece,
                        "merged": merged.reference,
                        "fingerprint": content,
                    },
                )
                for number, piece in enumerate(pieces)
            ]
            labelled = [one.result() for one in running]
        output = write_output(Path(config.output), lambda place: _fill(place, pieces, merged, labelled))
        shown, metrics = coreset_table(merged.summary, [one.summary for one in labelled])
        return publish(
            ctx,
            "Coreset",
            report_folder(ctx, config.report.folder),
            metrics,
            shown,
            {},
            {},
            [],
            notes=f"{merged.summary['guarantee']}\n\nWritten to `{output}`.",
        )


def _fill(place: Path, pieces: list[Piece], merged: StepResult, labelled: list[StepResult]) -> None:
    shutil.copytree(merged.path, place, dirs_exist_ok=True)
    for number, (piece, one) in enumerate(zip(pieces, labelled, strict=False)):
        # The pieces in the order of the rows; a folder sorts as they do.
        name = f"labels-{number:05}-{Path(piece.file).stem.replace(':', '-')}.npy"
        shutil.copy(one.path / "labels.npy", place / name)
