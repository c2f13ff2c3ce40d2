"""The study of the paper on S3GNN."""

from pathlib import Path

from prefect import flow

from flows.pipeline import open_run
from flows.studies.s3gnn_config import S3GNNConfig
from flows.task_runner import start
from tasks.reference import reference_to
from tasks.report.publish import Report, publish, report_folder
from tasks.report.s3gnn import figures, log_candidates, metrics_and_verdicts, score_table, tables, times_note
from tasks.study.run_bank import read_rows
from tasks.study.s3gnn import check_study, study_runs
from tasks.tracking import log_input


def check(config: S3GNNConfig) -> None:
    """Refuse flows that are not there and packages that are not installed."""
    check_study(config)


@flow(
    name="s3gnn", description="Graphs whose answers lie far away: S3GNN's claims beside other graph networks."
)
def s3gnn(config: S3GNNConfig = S3GNNConfig()) -> Report:
    check(config)
    with open_run("s3gnn", config) as ctx:
        flows = None
        if "mesh" in config.parts:
            flows = reference_to(Path(config.data).expanduser(), "data")
            log_input(ctx, ctx.parent_run_id, "mesh_flow", flows, "training")
        inputs = {
            "parts": config.parts,
            "models": config.models,
            "seeds": config.seeds,
            "full": config.profile == "full",
            "processes": config.processes,
            "data": flows,
        }
        done = start(study_runs, ctx, "runs", inputs).result()
        rows = {part: read_rows(done.path / f"{part}.jsonl") for part in config.parts}
        log_candidates(ctx, rows)
        metrics, verdicts = metrics_and_verdicts(rows)
        return publish(
            ctx,
            "s3gnn: graphs whose answers lie far away",
            report_folder(ctx, config.report.folder),
            metrics,
            score_table(rows),
            tables(rows),
            figures(rows),
            verdicts,
            notes=times_note(rows),
        )
