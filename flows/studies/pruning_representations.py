"""The study of the paper on pruning and representations."""

from pathlib import Path
from typing import Any

from prefect import flow

from flows.pipeline import open_run
from flows.stages import existing
from flows.studies.pruning_representations_config import PruningRepresentationsConfig
from flows.task_runner import Started, start, task_runner
from tasks.compress.recipes import DropRecipe, MagnitudeRecipe, Recipe, SparseGPTRecipe, WandaRecipe
from tasks.compress.steps import compress
from tasks.prepare.config import ModelSettings
from tasks.prepare.models import check_model_source
from tasks.prepare.steps import prepare_model, prepare_text, source_fingerprint
from tasks.prepare.text import check_text_source
from tasks.reference import Reference
from tasks.report.pruning_representations import REFERENCE, Results, log_candidates, report_parts
from tasks.report.publish import Report, publish, report_folder
from tasks.study.pruning.items import CHAT, CORE, MORE
from tasks.study.pruning_representations import (
    decoding_step,
    items_step,
    layers_step,
    options_step,
    perplexity_step,
    retrieval_step,
    scores_step,
)
from tasks.tracking import log_input

NO_ENCODER = "none"
FULL_RECIPES: tuple[Recipe, ...] = (
    *(DropRecipe(layers=n) for n in (2, 6, 8, 10)),
    DropRecipe(sublayer="mlp", layers=4),
)
FULL_PERPLEXITY: tuple[Recipe, ...] = (
    MagnitudeRecipe(pattern="2:4"),
    WandaRecipe(pattern="2:4", calibration_sequences=32),
    SparseGPTRecipe(pattern="2:4", calibration_sequences=32),
)
# An extension beside the paper's ranking, at equal n.
EXTENSION: tuple[Recipe, ...] = (DropRecipe(layers=8, criterion="kl_estimate"),)
TEMPERATURES = (0.25, 0.5, 1.0, 2.0)
PERPLEXITY_CHARACTERS = 32_000
OUTLOOK_QUESTIONS = 64


def check(config: PruningRepresentationsConfig) -> None:
    """Refuse sources that cannot be used, before any work starts."""
    check_model_source(ModelSettings(source=config.model))
    check_text_source(config.text)
    if config.encoder != NO_ENCODER:
        check_model_source(ModelSettings(source=config.encoder, architecture="any"))
    for folder in config.compressed:
        existing("model", folder)


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
        seed = config.seeds[0]

        def run(step: Any, label: str, **inputs: Any) -> Started:
            return start(step, ctx, label, inputs)

        prepared = run(
            prepare_model,
            "prepare model",
            settings=ModelSettings(source=config.model),
            fingerprint=source_fingerprint(config.model, hub="model"),
        )
        texts = run(
            prepare_text,
            "prepare text",
            settings=config.text,
            fingerprint=source_fingerprint(config.text.source),
        )
        dense, text = prepared.result().reference, texts.result().reference
        log_input(ctx, ctx.parent_run_id, "model", dense, "training")
        log_input(ctx, ctx.parent_run_id, "text", text, "evaluation")
        items = (
            run(
                items_step,
                "items",
                text=text,
                count=config.items,
                seed=seed,
                fingerprint=source_fingerprint("bundled:"),
            )
            .result()
            .reference
        )

        def compressed(recipes: tuple[Recipe, ...]) -> dict[str, Started]:
            given = {"model": dense, "calibration": text, "seed": seed}
            return {r.label: run(compress, f"compress {r.label}", recipe=r, **given) for r in recipes}

        full = config.profile == "full"
        judged = {r.label: r for r in (*config.recipes, *(FULL_RECIPES if full else ()))}
        rest = {
            r.label: r
            for r in (*config.perplexity_recipes, *((*FULL_PERPLEXITY, *EXTENSION) if full else ()))
        }
        made = compressed(tuple((rest | judged).values()))
        models: dict[str, Reference] = {"dense": dense}
        models |= {name: started.result().reference for name, started in made.items()}
        models |= {Path(folder).name: existing("model", folder) for folder in config.compressed}
        scored = ["dense", *judged, *(Path(folder).name for folder in config.compressed)]
        # The full profile's further numbers of layers are scored on the core tasks alone.
        wanted = {r.label for r in config.recipes} | {Path(folder).name for folder in config.compressed}
        extra = [r.label for r in EXTENSION] if full else []

        started: dict[tuple[str, ...], Started] = {}
        probe = {"model": dense, "text": text, "final_norm": True}
        for s in config.seeds:
            started["layers", "attn", str(s)] = run(
                layers_step,
                f"layers attn seed {s}",
                **probe,
                sublayer="attn",
                tokens=config.probe_tokens,
                temperature=config.temperature,
                seed=s,
            )
        reference = REFERENCE if REFERENCE in scored else scored[1]
        for name in scored[1:]:
            given = {"prompts": config.prompts, "steps": config.steps, "temperature": config.temperature}
            started["decoding", name] = run(
                decoding_step,
                f"decoding {name}",
                model=dense,
                other=models[name],
                text=text,
                seed=seed,
                **given,
            )
            # All questions for one variant; of the others, in the full profile, what the outlook needs.
            for cue in ("plain", "cued") if name == reference else ("cued",) if full else ():
                started["options", name, cue] = run(
                    options_step,
                    f"options {name} {cue}",
                    model=dense,
                    other=models[name],
                    items=items,
                    cue=cue,
                    questions=config.items if name == reference else OUTLOOK_QUESTIONS,
                    temperature=config.temperature,
                )
        for name in [*scored, *extra]:
            given = {"model": models[name], "items": items}
            started["scores", name] = run(scores_step, f"scores {name}", **given, tasks=list(CORE))
            if name == "dense" or name in wanted:
                started["chat", name] = run(scores_step, f"chat scores {name}", **given, tasks=list(CHAT))
                if full:
                    started["more", name] = run(scores_step, f"more scores {name}", **given, tasks=list(MORE))
        for name, model in models.items():
            given = {"model": model, "text": text, "characters": PERPLEXITY_CHARACTERS}
            started["perplexity", name] = run(perplexity_step, f"perplexity {name}", **given)
        if config.encoder != NO_ENCODER:
            encoder_settings = ModelSettings(source=config.encoder, dtype="float32", architecture="any")
            encoder = run(
                prepare_model,
                "prepare encoder",
                settings=encoder_settings,
                fingerprint=source_fingerprint(config.encoder, hub="model"),
            )
            started["retrieval",] = run(
                retrieval_step,
                "retrieval",
                encoder=encoder.result().reference,
                items=items,
                text=text,
                seed=seed,
            )
        if full:
            common = {**probe, "seed": seed}
            started["layers", "mlp", str(seed)] = run(
                layers_step,
                "layers mlp",
                **common,
                sublayer="mlp",
                tokens=config.probe_tokens,
                temperature=config.temperature,
            )
            for t in TEMPERATURES:
                started["temperature", str(t)] = run(
                    layers_step,
                    f"layers at temperature {t}",
                    **common,
                    sublayer="attn",
                    tokens=64,
                    temperature=t,
                )
            started["raw_head",] = run(
                layers_step,
                "layers without the final norm",
                **{**common, "final_norm": False},
                sublayer="attn",
                tokens=64,
                temperature=config.temperature,
            )
        results = Results({key: value.result() for key, value in started.items()}, judged)
        log_candidates(ctx, results)
        parts = report_parts(results)
        seconds = sum(float(value.result().timings["seconds"]) for value in started.values())
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
