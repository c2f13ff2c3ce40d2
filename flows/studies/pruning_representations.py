"""The study of the paper on pruning and representations."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect import flow

from flows.pipeline import open_run
from flows.stages import check_steps, existing
from flows.studies.pruning_representations_config import PruningRepresentationsConfig
from flows.task_runner import Started, start, task_runner
from methods.common.errors import ConfigError, DataError
from tasks.compress.compress import check_compression
from tasks.compress.recipes import DropRecipe, MagnitudeRecipe, Recipe, SparseGPTRecipe, WandaRecipe
from tasks.compress.record import refuse_seen_text
from tasks.compress.steps import compress
from tasks.evaluate.loading import check_candidate
from tasks.prepare.config import ModelSettings
from tasks.prepare.models import check_model_source
from tasks.prepare.steps import prepare_model, prepare_text, source_fingerprint
from tasks.prepare.text import check_text_source
from tasks.reference import Reference
from tasks.report.pruning_representations import REFERENCE, Results, log_candidates, report_parts
from tasks.report.publish import Report, publish, report_folder
from tasks.study.pruning.items import CHAT, CORE, MORE
from tasks.study.pruning.retrieval import check_encoder
from tasks.study.pruning_representations import (
    config_of,
    decoding_step,
    documents,
    items_step,
    layers_step,
    options_step,
    perplexity_step,
    retrieval_step,
    scores_step,
)
from tasks.tracking import RunContext, log_input

NO_ENCODER = "none"
# Of the full profile: numbers of layers whose tasks are scored, without the probes of the recipes that the user names.
SWEEP: tuple[Recipe, ...] = (
    *(DropRecipe(layers=n) for n in (2, 4, 6, 8, 10, 12)),
    *(DropRecipe(sublayer="mlp", layers=n) for n in (1, 2, 4, 6)),
    *(DropRecipe(sublayer="block", layers=n) for n in (1, 2, 4)),
    # An extension beside the paper's ranking, at equal n.
    *(DropRecipe(layers=n, criterion="kl_estimate") for n in (4, 8, 12)),
)
FULL_PERPLEXITY: tuple[Recipe, ...] = (
    MagnitudeRecipe(pattern="2:4"),
    WandaRecipe(pattern="2:4", calibration_sequences=32),
    SparseGPTRecipe(pattern="2:4", calibration_sequences=32),
)
TEMPERATURES = (0.25, 0.5, 1.0, 2.0)
PERPLEXITY_CHARACTERS = 32_000
OUTLOOK_QUESTIONS = 64
RETRIEVAL_QUESTIONS = 600


def check(config: PruningRepresentationsConfig) -> None:
    """Refuse sources and settings that cannot be used, before any work starts."""
    check_model_source(ModelSettings(source=config.model))
    check_text_source(config.text)
    if config.encoder != NO_ENCODER:
        check_model_source(ModelSettings(source=config.encoder, architecture="any"))
        if Path(config.encoder).expanduser().is_dir():
            check_encoder(Path(config.encoder).expanduser())
    for folder in config.compressed:
        try:
            check_candidate(Path(folder).expanduser(), None)
        except DataError as error:
            raise DataError(f"compressed: {error}") from error
    if Path(config.model).expanduser().is_dir():
        check_fit(config, Path(config.model).expanduser())


def check_fit(config: PruningRepresentationsConfig, model: Path) -> None:
    """Refuse recipes, steps and compressed models that do not fit the model. Raises DataError, ConfigError."""
    check_compression((*config.recipes, *config.perplexity_recipes), model)
    check_steps("steps", config.steps, model)
    size = config_of(model).get("vocab_size")
    for folder in config.compressed:
        other = config_of(Path(folder).expanduser()).get("vocab_size")
        if other != size:
            raise DataError(
                f"compressed: {folder} has {other} tokens, the model {size}; give compressed versions of the model"
            )


def fitting(recipes: tuple[Recipe, ...], model: Path) -> tuple[Recipe, ...]:
    """Those of the full profile's recipes that a model of this size can take."""
    found = []
    for recipe in recipes:
        try:
            check_compression((recipe,), model)
        except ConfigError:
            continue
        found.append(recipe)
    return tuple(found)


@dataclass
class Study:
    """The steps of one run, started in the order in which they help to judge."""

    ctx: RunContext
    config: PruningRepresentationsConfig
    started: dict[tuple[str, ...], Started] = field(default_factory=dict)

    def run(self, step: Any, label: str, **inputs: Any) -> Started:
        return start(step, self.ctx, label, inputs)

    @property
    def full(self) -> bool:
        return self.config.profile == "full"

    def prepare(self) -> None:
        """The model, the text, the tasks, and the encoder."""
        config = self.config
        model = self.run(
            prepare_model,
            "prepare model",
            settings=ModelSettings(source=config.model),
            fingerprint=source_fingerprint(config.model, hub="model"),
        )
        self.dense = model.result().reference
        check_fit(config, self.dense.path)
        text = self.run(
            prepare_text,
            "prepare text",
            settings=config.text,
            fingerprint=source_fingerprint(config.text.source),
        )
        self.text = text.result().reference
        for folder in config.compressed:
            refuse_seen_text(Path(folder).expanduser(), folder, documents(self.text))
        log_input(self.ctx, self.ctx.parent_run_id, "model", self.dense, "training")
        log_input(self.ctx, self.ctx.parent_run_id, "text", self.text, "evaluation")
        items = self.run(
            items_step,
            "items",
            text=self.text,
            count=config.items,
            seed=config.seeds[0],
            fingerprint=source_fingerprint("bundled:"),
        )
        self.items = items.result().reference
        self.encoder: Reference | None = None
        if config.encoder != NO_ENCODER:
            encoder = self.run(
                prepare_model,
                "prepare encoder",
                settings=ModelSettings(source=config.encoder, dtype="float32", architecture="any"),
                fingerprint=source_fingerprint(config.encoder, hub="model"),
            )
            self.encoder = encoder.result().reference
            check_encoder(self.encoder.path)

    def compress(self) -> None:
        """Every recipe once, and the models that were compressed elsewhere."""
        config = self.config
        self.sweep = {r.label: r for r in (fitting(SWEEP, self.dense.path) if self.full else ())}
        further = fitting(FULL_PERPLEXITY, self.dense.path) if self.full else ()
        self.recipes = {r.label: r for r in config.recipes}
        every = {r.label: r for r in (*config.perplexity_recipes, *further)} | self.sweep | self.recipes
        given = {"model": self.dense, "calibration": self.text, "seed": config.seeds[0]}
        made = {
            name: self.run(compress, f"compress {name}", recipe=recipe, **given)
            for name, recipe in every.items()
        }
        elsewhere = {Path(folder).name: existing("model", folder) for folder in config.compressed}
        self.models = {name: step.result().reference for name, step in made.items()} | elsewhere
        # What the user asked about: all tasks and all probes.
        self.judged = [*self.recipes, *elsewhere]

    def probe(self) -> None:
        """Protocols A, B and C."""
        config = self.config
        for s in config.seeds:
            self.probe_layers(("layers", "attn", str(s)), f"layers attn seed {s}", seed=s)
        reference = REFERENCE if REFERENCE in self.judged else self.judged[0]
        for name in self.judged:
            pair = {"model": self.dense, "other": self.models[name], "temperature": config.temperature}
            self.started["decoding", name] = self.run(
                decoding_step,
                f"decoding {name}",
                **pair,
                text=self.text,
                prompts=config.prompts,
                steps=config.steps,
                seed=config.seeds[0],
            )
            # All questions for one variant; of the others, in the full profile, what the outlook needs.
            for cue in ("plain", "cued") if name == reference else ("cued",) if self.full else ():
                self.started["options", name, cue] = self.run(
                    options_step,
                    f"options {name} {cue}",
                    **pair,
                    items=self.items,
                    cue=cue,
                    questions=config.items if name == reference else OUTLOOK_QUESTIONS,
                )

    def probe_layers(self, key: tuple[str, ...], label: str, **changes: Any) -> None:
        usual = {
            "model": self.dense,
            "text": self.text,
            "sublayer": "attn",
            "tokens": self.config.probe_tokens,
            "temperature": self.config.temperature,
            "final_norm": True,
            "seed": self.config.seeds[0],
        }
        self.started[key] = self.run(layers_step, label, **(usual | changes))

    def score(self) -> None:
        """Tasks and perplexity."""
        tasks = {"scores": CORE, "chat": CHAT} | ({"more": MORE} if self.full else {})
        models = {"dense": self.dense} | self.models
        for name in dict.fromkeys(("dense", *self.judged, *self.sweep)):
            for kind, names in tasks.items():
                given = {"model": models[name], "items": self.items, "tasks": list(names)}
                self.started[kind, name] = self.run(scores_step, f"{kind} {name}", **given)
        for name, model in models.items():
            given = {"model": model, "text": self.text, "characters": PERPLEXITY_CHARACTERS}
            self.started["perplexity", name] = self.run(perplexity_step, f"perplexity {name}", **given)
        if self.encoder is not None:
            self.started["retrieval",] = self.run(
                retrieval_step,
                "retrieval",
                encoder=self.encoder,
                items=self.items,
                text=self.text,
                questions=RETRIEVAL_QUESTIONS,
                seed=self.config.seeds[0],
            )

    def probe_further(self) -> None:
        """What the full profile adds to protocol A."""
        self.probe_layers(("layers", "mlp", str(self.config.seeds[0])), "layers mlp", sublayer="mlp")
        for t in TEMPERATURES:
            self.probe_layers(("temperature", str(t)), f"layers at temperature {t}", tokens=64, temperature=t)
        self.probe_layers(("raw_head",), "layers without the final norm", tokens=64, final_norm=False)


@flow(
    name="pruning_representations",
    description="Which tasks a pruned model will still do: the paper's claims, or the verdict on your own model.",
    task_runner=task_runner(),
)
def pruning_representations(
    config: PruningRepresentationsConfig = PruningRepresentationsConfig(),
) -> Report:
    check(config)
    with open_run("pruning_representations", config) as ctx:
        study = Study(ctx, config)
        study.prepare()
        study.compress()
        study.probe()
        study.score()
        if study.full:
            study.probe_further()
        results = Results(
            {key: step.result() for key, step in study.started.items()}, study.recipes | study.sweep
        )
        log_candidates(ctx, results)
        parts = report_parts(results)
        seconds = sum(float(step.result().timings["seconds"]) for step in study.started.values())
        return publish(
            ctx,
            "pruning_representations: which tasks a pruned model will still do",
            report_folder(ctx, config.report.folder),
            parts.metrics,
            parts.shown,
            parts.tables,
            parts.figures,
            parts.verdicts,
            notes=f"Seconds of work: {seconds:.0f}.\n\n{parts.notes}",
        )
