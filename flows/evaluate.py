"""The evaluate step as a flow of its own."""

from collections.abc import Sequence

from prefect import flow

from flows.pipeline import open_run
from flows.stages import (
    Steering,
    check_probe,
    evaluate_candidates,
    existing,
    given_candidates,
    publish_comparison,
)
from flows.steps_config import NONE, EvaluateConfig
from flows.task_runner import task_runner
from methods.common.errors import DataError
from tasks.candidates import Candidate
from tasks.compress.record import refuse_seen_text
from tasks.evaluate.perplexity import read_text
from tasks.merge.experts import expert_doubts
from tasks.notices import say_once
from tasks.reference import Reference
from tasks.report.publish import Report
from tasks.steer.artefact import read_record
from tasks.train.loading import weights_digest


def check(config: EvaluateConfig) -> None:
    """Refuse missing inputs, a probe without an original, and text that a model's compression has read."""
    candidates = given_candidates(config.models, optional("base", config.base))
    existing("tasks", config.tasks)
    text = optional("text", config.text)
    check_probe(config, candidates)
    with_steering(config.steering, candidates)
    if text is not None:
        documents = read_text(text.path)
        for candidate in candidates:
            refuse_seen_text(candidate.reference.path, candidate.name, documents)


def with_steering(folder: str, candidates: Sequence[Candidate]) -> Steering | None:
    """The steering and the candidate that it was fitted on.

    Raises:
        DataError: the folder is no output of the steer flow, or none of the candidates is its model.
    """
    if folder == NONE:
        return None
    reference = existing("steering", folder)
    wanted = read_record(reference.path)["model"]
    for candidate in candidates:
        if candidate.reference.kind == "model" and weights_digest(candidate.reference.path) == wanted:
            return Steering(candidate=candidate.name, reference=reference)
    raise DataError(
        f"steering {folder}: was fitted on none of {', '.join(c.name for c in candidates)}; name its model in models"
    )


def optional(kind: str, path: str) -> Reference | None:
    return None if path == NONE else existing(kind, path)


def with_doubts(candidates: Sequence[Candidate], base: Reference | None) -> list[Candidate]:
    """The candidates, each adapter of which nothing proves that it belongs to the base with a note that says so."""
    if base is None:
        return list(candidates)
    digest = weights_digest(base.path)
    found = []
    for candidate in candidates:
        if candidate.reference.kind == "adapter":
            doubts = expert_doubts(base.path, digest, {candidate.name: candidate.reference.path})
            say_once(doubts)
            candidate = candidate.model_copy(update={"facts": {**candidate.facts, "notes": doubts}})
        found.append(candidate)
    return found


@flow(
    name="evaluate",
    description="Score models on task sets, text, size and speed, and compare them.",
    task_runner=task_runner(),
)
def evaluate(config: EvaluateConfig = EvaluateConfig()) -> Report:
    check(config)
    with open_run("evaluate", config) as ctx:
        base = optional("base", config.base)
        candidates = with_doubts(given_candidates(config.models, base), base)
        text = optional("text", config.text)
        tasks = existing("tasks", config.tasks)
        steering = with_steering(config.steering, candidates)
        scores = evaluate_candidates(ctx, config, candidates, base, tasks, text, steering)
        return publish_comparison(ctx, "Comparison", config.report, candidates, scores)
