"""The encoder bench of the study on early stopping for merging."""

from pathlib import Path

from prefect import flow

from flows.pipeline import open_run
from flows.stages import only
from flows.studies.merge_early_stop_encoder_config import MergeEarlyStopEncoderConfig
from flows.task_runner import start
from tasks.prepare.config import ModelSettings
from tasks.prepare.models import check_model_source
from tasks.prepare.sentiment import DOMAINS
from tasks.prepare.steps import prepare_model, source_fingerprint
from tasks.reference import reference_to
from tasks.report.merge_early_stop import log_candidates
from tasks.report.merge_early_stop_encoder import (
    figures,
    metrics_and_verdicts,
    rules_markdown,
    shown_table,
    tables,
)
from tasks.report.publish import Report, publish, report_folder
from tasks.study.merge_early_stop_encoder import check_tasks, encoder_study, read_encoder_frames
from tasks.study.merge_early_stop_encoder_config import EncoderBenchStudy
from tasks.tracking import log_input


def _model(config: EncoderBenchStudy) -> ModelSettings:
    return ModelSettings(source=config.model, dtype="float32", architecture="any")


def check(config: MergeEarlyStopEncoderConfig) -> None:
    """Refuse a model and texts that cannot be used."""
    check_model_source(_model(config))
    check_tasks(config)


@flow(
    name="merge_early_stop_encoder",
    description="When to stop experts that will be merged, on a sentence encoder: full fine-tuning and LoRA.",
)
def merge_early_stop_encoder(config: MergeEarlyStopEncoderConfig = MergeEarlyStopEncoderConfig()) -> Report:
    check(config)
    with open_run("merge_early_stop_encoder", config) as ctx:
        stored = {"settings": _model(config), "fingerprint": source_fingerprint(config.model, hub="model")}
        model = start(prepare_model, ctx, "prepare model", stored).result().reference
        rated = bool(set(config.tasks.names) & set(DOMAINS))
        sentences = reference_to(Path(config.data).expanduser(), "data") if rated else None
        if sentences is not None:
            log_input(ctx, ctx.parent_run_id, "sentences", sentences, "training")
        own = [reference_to(Path(file).expanduser(), "data") for file in config.tasks.own]
        # One step a kind and seed: its key holds neither the others nor where anything lies.
        texts = config.tasks.model_copy(update={"own": ()})
        settings = only(
            EncoderBenchStudy,
            config,
            model="given",
            data="given",
            tasks=texts,
            seeds=(0,),
            kinds=("full", "lora"),
        )
        inputs = {"settings": settings, "model": model, "sentences": sentences, "own": own}
        parts = {
            (kind, seed): start(
                encoder_study, ctx, f"study {kind} seed {seed}", {**inputs, "kind": kind, "seed": seed}
            )
            for seed in config.seeds
            for kind in config.kinds
        }
        done = [part.result() for part in parts.values()]
        frames = read_encoder_frames([(part.path, part.timings["costs"]) for part in done])
        log_candidates(ctx, frames, by="kind")
        metrics, verdicts = metrics_and_verdicts(frames)
        return publish(
            ctx,
            "merge_early_stop: experts of a sentence encoder",
            report_folder(ctx, config.report.folder),
            metrics,
            shown_table(frames),
            tables(frames),
            figures(frames),
            verdicts,
            notes=f"{rules_markdown(frames)}\n\nSeconds of work: {sum(p.timings['seconds'] for p in done):.0f}.",
        )
