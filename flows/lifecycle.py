"""The main job: one model through every step, every candidate side by side."""

from prefect import flow

from flows.lifecycle_config import LifecycleConfig
from flows.pipeline import open_run
from flows.stages import (
    compress_model,
    evaluate_candidates,
    merge_experts,
    prepare_inputs,
    publish_comparison,
    train_experts,
)
from flows.task_runner import task_runner
from tasks.candidates import Candidate, best_on_select
from tasks.compress.compress import check_compression
from tasks.prepare.steps import check_sources
from tasks.report.publish import Report


def check(config: LifecycleConfig) -> None:
    """Refuse sources that cannot be used, before any work starts."""
    check_sources(config.prepare)


@flow(
    name="lifecycle",
    description="Prepare, fine-tune, merge, compress and evaluate one model, and compare every candidate.",
    task_runner=task_runner(),
)
def lifecycle(config: LifecycleConfig = LifecycleConfig()) -> Report:
    check(config)
    with open_run("lifecycle", config) as ctx:
        prepared = prepare_inputs(ctx, config.prepare)
        base, tasks = prepared.model, prepared.tasks
        check_compression(config.compress.recipes, base.path)  # before hours of training
        experts = train_experts(ctx, config.finetune, base, tasks)
        merges = merge_experts(ctx, config.merge, base, experts, tasks)
        original = Candidate(name="base", stage="base", method="given", reference=base)
        best = best_on_select(merges, original) or original
        compressed = compress_model(ctx, config.compress, best, prepared.calibration)
        candidates = [original, *experts, *merges, *compressed]
        scores = evaluate_candidates(ctx, config.evaluate, candidates, base, tasks, prepared.text)
        return publish_comparison(ctx, "Lifecycle", config.report, candidates, scores)
