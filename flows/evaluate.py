"""The evaluate step as a flow of its own."""

from prefect import flow

from flows.pipeline import open_run
from flows.stages import evaluate_candidates, existing, given_candidates, publish_comparison
from flows.steps_config import NONE, EvaluateConfig
from flows.task_runner import task_runner
from tasks.reference import Reference
from tasks.report.publish import Report


def check(config: EvaluateConfig) -> None:
    """Refuse missing inputs."""
    given_candidates(config.models, optional("base", config.base))
    existing("tasks", config.tasks)
    optional("text", config.text)


def optional(kind: str, path: str) -> Reference | None:
    return None if path == NONE else existing(kind, path)


@flow(
    name="evaluate",
    description="Score models on task sets, text, size and speed, and compare them.",
    task_runner=task_runner(),
)
def evaluate(config: EvaluateConfig = EvaluateConfig()) -> Report:
    check(config)
    with open_run("evaluate", config) as ctx:
        base = optional("base", config.base)
        candidates = given_candidates(config.models, base)
        text = optional("text", config.text)
        tasks = existing("tasks", config.tasks)
        scores = evaluate_candidates(ctx, config, candidates, base, tasks, text)
        return publish_comparison(ctx, "Comparison", config.report, candidates, scores)
