"""The study of the paper on RoPE-perturbed self-distillation."""

from typing import Any

from prefect import flow

from flows.pipeline import open_run
from flows.stages import only
from flows.studies.rope_psd_config import RopePSDConfig
from flows.task_runner import start
from tasks.prepare.config import ModelSettings
from tasks.prepare.models import check_model_source
from tasks.prepare.steps import prepare_model, source_fingerprint
from tasks.report.publish import Report, publish, report_folder
from tasks.report.rope_psd import figures, log_candidates, metrics_and_verdicts, shown_table, tables
from tasks.study.rope_psd import (
    check_study,
    corpus_settings,
    parts_of,
    real_text,
    study_corpus,
    study_real,
    study_real_text,
    study_runs,
)
from tasks.study.rope_psd_config import RopePSDStudy
from tasks.study.run_bank import read_rows
from tasks.tracking import RunContext, log_input


def check(config: RopePSDConfig) -> None:
    """Refuse text or a model that is not there."""
    check_study(config)
    if "real" in parts_of(config):
        check_model_source(ModelSettings(source=config.real_model))


def _real(ctx: RunContext, config: RopePSDConfig) -> dict[str, Any]:
    """The real model and rows of its tokens."""
    source = config.real_model
    found = start(
        prepare_model,
        ctx,
        "real model",
        {"settings": ModelSettings(source=source), "fingerprint": source_fingerprint(source, "", "model")},
    ).result()
    text = {
        "text": real_text(config),
        "model": found.reference,
        "fingerprint": source_fingerprint(config.real_text),
    }
    rows = start(study_real_text, ctx, "real text", text).result()
    return {"model": found.reference, "corpus": rows.reference}


@flow(
    name="rope_psd",
    description="Self-distillation from moved positions: the paper's claims against its baselines.",
)
def rope_psd(config: RopePSDConfig = RopePSDConfig()) -> Report:
    check(config)
    with open_run("rope_psd", config) as ctx:
        corpus = start(
            study_corpus,
            ctx,
            "corpus",
            {"settings": corpus_settings(config), "fingerprint": source_fingerprint(config.data)},
        ).result()
        log_input(ctx, ctx.parent_run_id, "text", corpus.reference, "training")
        # Where the text lies and what else is done are no part of a part's identity.
        given = {"data": "given", "parts": ("main",), "real_model": "given", "real_text": "given"}
        own = only(RopePSDStudy, config, **given)
        rows, seconds = {}, 0.0
        for part in parts_of(config):
            inputs: dict[str, Any] = {"part": part, "settings": own}
            if part == "real":
                done = start(study_real, ctx, part, {**inputs, **_real(ctx, config)}).result()
            else:
                done = start(study_runs, ctx, part, {**inputs, "corpus": corpus.reference}).result()
            rows[part] = read_rows(done.path / f"{part}.jsonl")
            seconds += done.timings["cpu_seconds"]
        log_candidates(ctx, rows)
        metrics, verdicts = metrics_and_verdicts(rows)
        return publish(
            ctx,
            "rope_psd: answers that do not depend on the evidence's place",
            report_folder(ctx, config.report.folder),
            metrics,
            shown_table(rows),
            tables(rows),
            figures(rows),
            verdicts,
            notes=f"Processor seconds of the adaptations, those of earlier runs counted: {seconds:.0f}.",
        )
