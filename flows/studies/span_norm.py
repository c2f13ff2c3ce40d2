"""The study of the paper on SpanNorm."""

from prefect import flow

from flows.pipeline import open_run
from flows.stages import only
from flows.studies.span_norm_config import SpanNormConfig
from flows.task_runner import start
from tasks.prepare.steps import source_fingerprint
from tasks.pretrain.steps import build_corpus
from tasks.report.publish import Report, publish, report_folder
from tasks.report.span_norm import figures, log_candidates, loss_table, metrics_and_verdicts, tables
from tasks.study.run_bank import read_rows
from tasks.study.span_norm import check_study, corpus_settings, parts_of, study_runs, study_start
from tasks.study.span_norm_config import SpanNormStudy
from tasks.tracking import log_input


def check(config: SpanNormConfig) -> None:
    """Refuse text that is not there and settings that do not fit."""
    check_study(config)


@flow(
    name="span_norm",
    description="Where the norms stand in a deep Transformer: SpanNorm's claims against its baselines.",
)
def span_norm(config: SpanNormConfig = SpanNormConfig()) -> Report:
    check(config)
    with open_run("span_norm", config) as ctx:
        corpus = start(
            build_corpus,
            ctx,
            "corpus",
            {"settings": corpus_settings(config), "fingerprint": source_fingerprint(config.data)},
        ).result()
        log_input(ctx, ctx.parent_run_id, "text", corpus.reference, "training")
        # Where the text lies and what else is done are no part of a part's identity.
        own = only(SpanNormStudy, config, data="given", parts=("moderate",), processes=config.processes)
        rows, seconds = {}, 0.0
        for part in parts_of(config):
            if part == "start":
                inputs = {"depths": list(config.start_depths), "seeds": list(config.grid_seeds)}
                done = start(study_start, ctx, "start", inputs).result()
            else:
                inputs = {"part": part, "settings": own, "corpus": corpus.reference}
                done = start(study_runs, ctx, part, inputs).result()
            rows[part] = read_rows(done.path / f"{part}.jsonl")
            seconds += done.timings.get("cpu_seconds", done.timings["seconds"])
        log_candidates(ctx, rows)
        metrics, verdicts = metrics_and_verdicts(rows)
        return publish(
            ctx,
            "span_norm: placement of the norms",
            report_folder(ctx, config.report.folder),
            metrics,
            loss_table(rows),
            tables(rows),
            figures(rows),
            verdicts,
            notes=f"Processor seconds of the trainings, those of earlier runs counted: {seconds:.0f}.",
        )
