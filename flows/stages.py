"""The lifecycle's stages as functions on candidates; the lifecycle chains them, each step's own flow calls one."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from flows.task_runner import start
from methods.common.errors import ConfigError, DataError
from methods.common.reading_limit import longest_input
from tasks.candidates import Candidate, load_candidates
from tasks.compress.compress import check_compression
from tasks.compress.config import CompressSettings
from tasks.compress.record import parent_digest
from tasks.compress.steps import compress
from tasks.config import Config
from tasks.evaluate.config import EvaluateSettings
from tasks.evaluate.items import MAIN_SCORE
from tasks.evaluate.steps import evaluate
from tasks.merge.config import MergeSettings
from tasks.merge.experts import resolve_expert
from tasks.merge.steps import merge
from tasks.prepare.config import PrepareSettings
from tasks.prepare.steps import (
    prepare_model,
    prepare_tasks,
    prepare_text,
    source_fingerprint,
    task_fingerprints,
)
from tasks.prepare.task_sets import few_examples
from tasks.pretrain.config import CorpusSettings, PretrainSettings
from tasks.pretrain.steps import build_corpus, pretrain
from tasks.reference import Kind, Reference, reference_to
from tasks.report.compressed import log_compressed
from tasks.report.config import ReportSettings
from tasks.report.lifecycle import compare
from tasks.report.publish import Report, publish, report_folder
from tasks.report.registry import register
from tasks.step import StepResult
from tasks.tracking import (
    STAGE_PARAM,
    RunContext,
    candidate_run,
    log_input,
    log_metrics,
    log_params,
    set_tags,
)
from tasks.train.config import FinetuneSettings
from tasks.train.steps import finetune, replay_trace

logger = logging.getLogger("seedloom")
# The method of a model that somebody else made.
GIVEN = "given"
Group = TypeVar("Group", bound=Config)


class Prepared(Config):
    """What the prepare stage hands on."""

    PARTS: ClassVar[tuple[str, ...]] = ("model", "tasks", "text")

    model: Reference
    tasks: Reference
    text: Reference

    @property
    def calibration(self) -> Reference:
        """Text for compression, from other documents than the held-out text."""
        return reference_to(self.text.path / "calibration", "text")

    def parts(self) -> dict[str, Reference]:
        """What a person finds in the output folder, by name."""
        return {part: getattr(self, part) for part in self.PARTS}


class Steering(Config):
    """What the steer flow wrote, and the candidate that it was fitted on."""

    candidate: str
    reference: Reference


def prepare_inputs(ctx: RunContext, settings: PrepareSettings) -> Prepared:
    """Store the model, build task sets and text, side by side."""
    model = start(
        prepare_model,
        ctx,
        "prepare model",
        {
            "settings": settings.model,
            "fingerprint": source_fingerprint(settings.model.source, settings.model.revision, "model"),
        },
    )
    tasks = start(
        prepare_tasks,
        ctx,
        "prepare tasks",
        {"settings": settings.tasks, "fingerprints": task_fingerprints(settings.tasks)},
    )
    text = start(
        prepare_text,
        ctx,
        "prepare text",
        {"settings": settings.text, "fingerprint": source_fingerprint(settings.text.source)},
    )
    for name, record in tasks.result().summary.items():
        if line := few_examples(name, record["counts"]):
            logger.warning(line)
    prepared = Prepared(
        model=model.result().reference, tasks=tasks.result().reference, text=text.result().reference
    )
    for name, reference in (("base", prepared.model), ("tasks", prepared.tasks), ("text", prepared.text)):
        log_input(ctx, ctx.parent_run_id, name, reference, "training")
    return prepared


def task_folders(tasks: Reference) -> dict[str, Reference]:
    """Each task set below a folder of them, by name."""
    folders = sorted(p.parent for p in tasks.path.glob("*/task.json"))
    return {folder.name: reference_to(folder, "tasks") for folder in folders}


def pretrain_base(ctx: RunContext, settings: PretrainSettings) -> Candidate:
    """A base model from scratch: the text packed into rows, then trained."""
    corpus = start(
        build_corpus,
        ctx,
        "pretrain corpus",
        {"settings": settings.corpus, "fingerprint": source_fingerprint(settings.corpus.source)},
    ).result()
    log_input(ctx, ctx.parent_run_id, "corpus", corpus.reference, "training")
    label = f"base/{settings.shape.norm_scheme}"
    # Where the text came from is no part of the training's identity; the packed rows are.
    own = only(PretrainSettings, settings, corpus=CorpusSettings())
    result = start(pretrain, ctx, label, {"settings": own, "corpus": corpus.reference}).result()
    replay_trace(ctx, label, result.path)
    return _candidate(label, "base", settings.shape.norm_scheme, result)


def train_experts(
    ctx: RunContext, settings: FinetuneSettings, base: Reference, tasks: Reference
) -> list[Candidate]:
    """One expert a task and stopping rule."""
    futures = {}
    for stopping in settings.stoppings:
        # An expert's key must not change when a rule is added beside its own.
        own = only(FinetuneSettings, settings, stoppings=(stopping,))
        for name, task in task_folders(tasks).items():
            label = f"expert/{stopping}/{name}"
            futures[label] = (
                stopping,
                name,
                start(
                    finetune, ctx, label, {"settings": own, "base": base, "task": task, "stopping": stopping}
                ),
            )
    experts = []
    for label, (stopping, name, future) in futures.items():
        result = future.result()
        replay_trace(ctx, label, result.path)
        experts.append(_candidate(label, "expert", stopping, result, parents=("base",), task=name))
    return experts


def merge_experts(
    ctx: RunContext, settings: MergeSettings, base: Reference, experts: Sequence[Candidate], tasks: Reference
) -> list[Candidate]:
    """Each method over the experts of the first stopping rule; the baseline methods over those of the others.

    Experts that were trained elsewhere belong to every rule.
    """
    futures = []
    rules = list(dict.fromkeys(expert.method for expert in experts if expert.method != GIVEN)) or [GIVEN]
    for i, stopping in enumerate(rules):
        group = [expert for expert in experts if expert.method in (stopping, GIVEN)]
        for method in settings.baseline_methods if i else settings.methods:
            label = f"merge/{method}/{stopping}" if i else f"merge/{method}"
            inputs = {
                "settings": only(MergeSettings, settings, methods=(method,), baseline_methods=()),
                "method": method,
                "base": base,
                "experts": [expert.reference for expert in group],
                "tasks": tasks,
            }
            futures.append((label, method, group, start(merge, ctx, label, inputs)))
    return [
        _candidate(label, "merge", method, future.result(), parents=tuple(e.name for e in group))
        for label, method, group, future in futures
    ]


def compress_model(
    ctx: RunContext, settings: CompressSettings, model: Candidate, text: Reference
) -> list[Candidate]:
    """Each recipe on one model."""
    check_compression(settings.recipes, model.reference.path)
    futures = []
    for recipe in settings.recipes:
        label = f"compressed/{recipe.label}"
        # A recipe that reads no text is not done again when the text changes.
        calibration = text if recipe.uses_calibration else None
        inputs = {"recipe": recipe, "model": model.reference, "calibration": calibration}
        futures.append((label, recipe.label, start(compress, ctx, label, inputs)))
    made = [
        _candidate(label, "compressed", recipe, future.result(), parents=(model.name,))
        for label, recipe, future in futures
    ]
    for candidate in made:
        log_compressed(ctx, candidate)
    return made


def evaluate_candidates(
    ctx: RunContext,
    settings: EvaluateSettings,
    candidates: Sequence[Candidate],
    base: Reference,
    tasks: Reference,
    text: Reference | None,
    steering: Steering | None = None,
) -> dict[str, StepResult]:
    """Score each candidate and write the scores into its MLflow run."""
    futures = {}
    own = only(EvaluateSettings, settings)
    for candidate in candidates:
        inputs = {
            "settings": own,
            "model": candidate.reference,
            "base": base if candidate.reference.kind == "adapter" else None,
            "tasks": tasks,
            "text": text,
        }
        if settings.probe_prompts and (dense := dense_parent(candidate, candidates)):
            inputs["dense"] = dense
        if steering is not None and steering.candidate == candidate.name:
            inputs["steering"] = steering.reference
        futures[candidate.name] = start(evaluate, ctx, f"evaluate {candidate.name}", inputs)
    results = {name: future.result() for name, future in futures.items()}
    for candidate in candidates:
        _log_candidate(ctx, candidate, results[candidate.name], tasks)
    return results


def dense_parent(candidate: Candidate, candidates: Sequence[Candidate]) -> Reference | None:
    """The full model that a compressed candidate was made from, when it is among the candidates.

    By content, as the folder's record tells it: names differ from flow to flow.
    """
    digest = parent_digest(candidate.reference.path)
    models = [other.reference for other in candidates if other.reference.kind == "model"]
    return next((reference for reference in models if reference.digest == digest), None)


def check_steps(field: str, steps: int, model: Path) -> None:
    """Refuse to let a model write more than it can read. Raises ConfigError."""
    limit = longest_input(json.loads((model / "config.json").read_text(encoding="utf-8")))
    if limit is not None and steps >= limit:
        raise ConfigError(
            f"{field} {steps}: the model reads at most {limit} tokens, the prompt among them; set less"
        )


def check_probe(settings: EvaluateSettings, candidates: Sequence[Candidate]) -> None:
    """Refuse a probe that cannot be made, before any work starts.

    Raises:
        DataError: no compressed model, or one whose original is not given.
        ConfigError: more steps than the models can read.
    """
    if not settings.probe_prompts:
        return
    compressed = [c for c in candidates if parent_digest(c.reference.path)]
    if not compressed:
        raise DataError("probe_prompts: none of the models is a compressed one; set it to 0")
    for candidate in compressed:
        if dense_parent(candidate, candidates) is None:
            raise DataError(
                f"probe_prompts: the model that {candidate.name} was made from is not among the models, or was changed "
                "since; add its folder to models, or set probe_prompts to 0"
            )
        check_steps("probe_steps", settings.probe_steps, candidate.reference.path)


def _candidate(
    name: str, stage: str, method: str, result: StepResult, parents: tuple[str, ...] = (), task: str = ""
) -> Candidate:
    return Candidate.model_validate(
        {
            "name": name,
            "stage": stage,
            "method": method,
            "reference": result.reference,
            "parents": parents,
            "task": task,
            "facts": result.summary,
            "seconds": result.timings["seconds"],
        }
    )


def _log_candidate(ctx: RunContext, candidate: Candidate, result: StepResult, tasks: Reference) -> None:
    run = candidate_run(ctx, candidate.name)
    facts = {name: value for name, value in candidate.facts.items() if not isinstance(value, dict | list)}
    # MLflow's compare page opens with the first three names: what the candidate is, then what was found about it.
    told = {
        STAGE_PARAM: candidate.stage,
        "candidate.method": candidate.method,
        "candidate.task": candidate.task,
    }
    log_params(ctx, run, {**told, **{f"fact.{name}": value for name, value in facts.items()}})
    timings = {
        f"time/{name}": value for name, value in result.timings.items() if isinstance(value, int | float)
    }
    metrics = {**result.summary["metrics"], **timings}
    # The first metric is the one that MLflow's compare page plots.
    log_metrics(
        ctx, run, dict(sorted(metrics.items(), key=lambda item: item[0] != f"test/mean/{MAIN_SCORE}"))
    )
    log_input(ctx, run, "tasks", tasks, "evaluation")
    set_tags(
        ctx,
        run,
        {
            "model.path": str(candidate.reference.path),
            "model.digest": candidate.reference.digest,
            "model.parents": ", ".join(candidate.parents),
        },
    )
    ctx.client.set_terminated(run)


def only(group: type[Group], settings: Config, **changes: object) -> Group:
    """A step's settings without what its flow adds (paths in and out), so that both ways in share one key."""
    values = {name: getattr(settings, name) for name in group.model_fields}
    return group.model_validate(values | changes)


def existing(kind: str, path: str) -> Reference:
    """A reference to a folder that the user named in the field `kind`.

    Raises:
        DataError: nothing is there, naming the field.
    """
    kinds: dict[str, Kind] = {
        "model": "model",
        "base": "model",
        "tasks": "tasks",
        "text": "text",
        "steering": "data",
    }
    try:
        return reference_to(Path(path).expanduser(), kinds[kind])
    except DataError as error:
        raise DataError(f"{kind}: {error}") from error


def given_candidates(sources: Sequence[str], base: Reference | None = None) -> list[Candidate]:
    """The models that the user named.

    Args:
        sources: each the folder of a model, of an adapter, or what another flow wrote; or a hub id of an expert.
        base: the model that is called `base`, as in the lifecycle, whatever its folder is called.

    Raises:
        DataError: a folder holds no model, the hub does not give one, or two models have the same name.
    """
    found = [candidate for source in sources for candidate in _candidates_at(source)]
    if base is not None:
        found = [
            c.model_copy(update={"name": "base"})
            if c.stage == "base" and c.reference.digest == base.digest
            else c
            for c in found
        ]
    names = [candidate.name for candidate in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"two models are called {twice[0]!r}; rename one folder")
    return found


def _candidates_at(source: str) -> list[Candidate]:
    path = Path(source).expanduser()
    if path.exists():
        return load_candidates(path)
    # A hub cache folder is called after its commit: the id names the model.
    return [
        c.model_copy(update={"name": source.rsplit("/", 1)[-1]})
        for c in load_candidates(resolve_expert(source).path)
    ]


def publish_comparison(
    ctx: RunContext,
    title: str,
    settings: ReportSettings,
    candidates: Sequence[Candidate],
    scores: dict[str, StepResult],
) -> Report:
    """Compare, publish everywhere, and register the best model."""
    compared = compare(candidates, scores)
    report: Report = publish(
        ctx,
        title,
        report_folder(ctx, settings.folder),
        compared.metrics,
        compared.shown,
        compared.tables,
        compared.figures,
        compared.verdicts,
        best=compared.best,
        notes=compared.notes,
    )
    best = next(candidate for candidate in candidates if candidate.name == compared.best)
    if settings.register_model and best.reference.kind == "model":
        register(ctx, settings.model_name, best, compared.metrics["candidates"][best.name])
    return report
