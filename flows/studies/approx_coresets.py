"""The study of the paper on approximation preserving coresets."""

from pathlib import Path

from prefect import flow

from flows.pipeline import open_run
from flows.stages import only
from flows.studies.approx_coresets_config import ApproxCoresetsConfig
from flows.task_runner import start
from tasks.reference import Reference, reference_to
from tasks.report.approx_coresets import (
    figures,
    log_candidates,
    metrics_and_verdicts,
    shown_table,
    tables,
)
from tasks.report.publish import Report, publish, report_folder
from tasks.study.approx_coresets import (
    FULL_RUNS,
    ON_DATA,
    OWN_SETS,
    check_study,
    load_reference,
    parts_of,
    sets_of,
    study_part,
    study_points,
    study_reference,
)
from tasks.study.approx_coresets_config import ApproxCoresetsStudy
from tasks.study.run_bank import read_rows
from tasks.tracking import RunContext, log_input


def check(config: ApproxCoresetsConfig) -> None:
    """Refuse data that is not there and peers without their Python."""
    check_study(config)


@flow(
    name="approx_coresets",
    description="Cluster a sample and keep the guarantee: the paper's claims against its baselines.",
)
def approx_coresets(config: ApproxCoresetsConfig = ApproxCoresetsConfig()) -> Report:
    check(config)
    with open_run("approx_coresets", config) as ctx:
        points, banks = _data(ctx, config)
        rows, seconds = {}, 0.0
        for part in parts_of(config):
            # Where the data lie and what else is done are no part of a part's identity.
            python = config.peers_python if part in ("peers", "thesis") else ""
            own = only(ApproxCoresetsStudy, config, data="given", parts=("line",), peers_python=python)
            inputs = {
                "part": part,
                "settings": own,
                "points": points if part in ON_DATA else None,
                "banks": {name: banks[name] for name in sets_of(part)},
            }
            done = start(study_part, ctx, part, inputs).result()
            rows[part] = read_rows(done.path / "rows.jsonl")
            seconds += done.timings["measuring"]
        costs = {name: load_reference(bank)[1] for name, bank in banks.items()}
        log_candidates(ctx, rows, costs)
        metrics, verdicts = metrics_and_verdicts(rows, costs)
        return publish(
            ctx,
            "approx_coresets: a sample that keeps good solutions good",
            report_folder(ctx, config.report.folder),
            metrics,
            shown_table(rows, costs),
            tables(rows, costs),
            figures(rows, costs),
            verdicts,
            notes=f"Seconds of the measurements, those of earlier runs counted: {seconds:.0f}.",
        )


def _data(ctx: RunContext, config: ApproxCoresetsConfig) -> tuple[Reference | None, dict[str, Reference]]:
    """The matrix of the data, and the full-data solutions of each set that the parts need."""
    names = list(dict.fromkeys(name for part in parts_of(config) for name in sets_of(part)))
    if not names:
        return None, {}
    source = reference_to(Path(config.data).expanduser(), "data")
    log_input(ctx, ctx.parent_run_id, "rows", source, "evaluation")
    points = start(study_points, ctx, "points", {"source": source}).result().reference
    banks = {}
    for name in names:
        inputs = {
            "points": None if name in OWN_SETS else points,
            "name": name,
            "k": OWN_SETS.get(name, config.n_clusters),
            "runs": FULL_RUNS,
        }
        banks[name] = start(study_reference, ctx, f"full-data solutions of {name}", inputs).result().reference
    return points, banks
