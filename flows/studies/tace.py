"""The study of the paper on irreducible Cartesian tensors."""

from pathlib import Path

from prefect import flow

from flows.pipeline import open_run
from flows.studies.tace_config import TaceConfig
from flows.task_runner import start
from tasks.reference import reference_to
from tasks.report.publish import Report, publish, report_folder
from tasks.report.tace import figures, log_candidates, metrics_and_verdicts, score_table, tables, times_note
from tasks.study.run_bank import read_rows
from tasks.study.tace import check_study, study_rows
from tasks.tracking import log_input


def check(config: TaceConfig) -> None:
    """Refuse trajectories that are not there and packages that are not installed."""
    check_study(config)


@flow(
    name="tace",
    description="Interatomic potentials on Cartesian and on spherical tensors: the paper's claims with all else fixed.",
)
def tace(config: TaceConfig = TaceConfig()) -> Report:
    check(config)
    with open_run("tace", config) as ctx:
        data = None
        if "fits" in config.parts:
            data = reference_to(Path(config.data).expanduser(), "data")
            log_input(ctx, ctx.parent_run_id, "xtb", data, "training")
        inputs = {
            "parts": config.parts,
            "models": config.models,
            "seeds": config.seeds,
            "full": config.profile == "full",
            "processes": config.processes,
            "data": data,
        }
        done = start(study_rows, ctx, "runs", inputs).result()
        rows = {part: read_rows(done.path / f"{part}.jsonl") for part in config.parts}
        log_candidates(ctx, rows)
        metrics, verdicts = metrics_and_verdicts(rows)
        return publish(
            ctx,
            "tace: potentials on Cartesian and spherical tensors",
            report_folder(ctx, config.report.folder),
            metrics,
            score_table(rows),
            tables(rows),
            figures(rows),
            verdicts,
            notes=times_note(rows),
        )
