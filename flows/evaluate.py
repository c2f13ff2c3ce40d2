"""The evaluate step as a flow of its own."""

from prefect import flow

from flows.pipeline import open_run
from flows.stages import evaluate_candidates, existing, given_candidates, publish_comparison
from flows.steps_config import EvaluateConfig
from flows.task_runner import task_runner
from tasks.report.publish import Report


def check(config: EvaluateConfig) -> None:
    """Refuse missing inputs."""
    given_candidates(config.models, existing("base", config.base) if config.base else None)
    for kind in ("tasks", "text"):
        if path := getattr(config, kind):
            existing(kind, path)


@flow(
    name="evaluate",
    description="Score models on task sets, text, size and speed, and compare them.",
    task_runner=task_runner(),
)
def evaluate(config: EvaluateConfig = EvaluateConfig()) -> Report:
    check(config)
    with open_run("evaluate", config) as ctx:
        base = existing("base", config.base) if config.base else None
        candidates = given_candidates(config.models, base)
        text = existing("text", config.text) if config.text else None
        tasks = existing("tasks", config.tasks)
        scores = evaluate_candidates(ctx, config, candidates, base, tasks, text)
        return publish_comparison(ctx, "Comparison", config.report, candidates, scores)
