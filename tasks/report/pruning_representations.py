"""The study of `pruning_representations` as people read it: figures, verdicts, metrics, one MLflow run a variant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from methods.pruning_representations.study_claims import (
    ABOVE_CHANCE,
    Claim,
    decoding_claims,
    first_divergence,
    gap_claim,
    inner,
    layer_claims,
    layer_summary,
    option_claims,
    perplexity_claims,
    ranking_claims,
    retrieval_claims,
    task_frame,
)
from methods.pruning_representations.tables import OptionTable, StepTable
from methods.pruning_representations.verdict import Survival, task_verdict
from tasks.report.pruning_representations_plots import (
    SPACES,
    TASKS,
    names_of,
    plot_decoding,
    plot_estimates,
    plot_layers,
    plot_sweep,
    plot_tasks,
    readable,
    sweep_table,
)
from tasks.report.verdict import Verdict
from tasks.step import StepResult
from tasks.study.pruning.items import CHANCE, LETTERS
from tasks.study.pruning_representations import item_scores, read_frame
from tasks.tracking import STAGE_PARAM, RunContext, candidate_run, log_metrics, log_params, log_trace

# The variant whose details are shown, when it is among those judged.
REFERENCE = "drop-attn-4"


class Results:
    """What the study's steps found, as frames by variant.

    Args:
        found: step results by key: kind, then variant or sublayer and seed.
        recipes: the recipes that were judged, by label.
    """

    def __init__(self, found: Mapping[tuple[str, ...], StepResult], recipes: Mapping[str, Any]) -> None:
        self.recipes = recipes
        self.layers = {key[1:]: read_frame(r.path) for key, r in found.items() if key[0] == "layers"}
        self.temperatures = {
            float(key[1]): read_frame(r.path) for key, r in found.items() if key[0] == "temperature"
        }
        raw = found.get(("raw_head",))
        self.raw_head = None if raw is None else read_frame(raw.path)
        self.decoding = {key[1]: read_frame(r.path) for key, r in found.items() if key[0] == "decoding"}
        asked: dict[str, list[pd.DataFrame]] = {}
        for key, result in found.items():
            if key[0] == "options":
                asked.setdefault(key[1], []).append(read_frame(result.path))
        self.options = {name: pd.concat(parts, ignore_index=True) for name, parts in asked.items()}
        self.scores: dict[str, dict[str, list[float]]] = {}
        for key, result in found.items():
            if key[0] in ("scores", "chat", "more"):
                self.scores.setdefault(key[1], {}).update(item_scores(result.path))
        self.perplexity = {
            key[1]: float(r.summary["perplexity"]) for key, r in found.items() if key[0] == "perplexity"
        }
        retrieval = found.get(("retrieval",))
        self.retrieval = None if retrieval is None else read_frame(retrieval.path)
        self.tasks = task_frame(self.scores, CHANCE)

    @property
    def attention_layers(self) -> list[pd.DataFrame]:
        """The attention probe, a frame a seed."""
        return [frame for (kind, _), frame in self.layers.items() if kind == "attn"]

    def outlooks(self) -> dict[str, tuple[Survival, ...]]:
        """The probes' verdict on each variant."""
        found = {}
        for name, frame in self.decoding.items():
            options = None
            if name in self.options:
                cued = self.options[name][self.options[name].cue == "cued"]
                options = OptionTable(cued, LETTERS, 1.0).summary()
            found[name] = task_verdict(StepTable(frame, 1.0).summary(), options)
        return found


@dataclass(frozen=True)
class Parts:
    """What `publish` needs."""

    metrics: dict[str, Any]
    shown: pd.DataFrame
    tables: dict[str, pd.DataFrame]
    figures: dict[str, Figure]
    verdicts: list[Verdict]
    notes: str


def report_parts(results: Results) -> Parts:
    """Everything that is published."""
    claims = all_claims(results)
    tables = {
        "layers": layer_table(results),
        "task_gap": results.tasks,
        "decoding": decoding_table(results),
        "estimates": estimate_table(results),
    }
    figures = {
        "layers": plot_layers(tables["layers"]),
        "task_gap": plot_tasks(results.tasks),
        "decoding": plot_decoding(tables["decoding"]),
        "estimates": plot_estimates(tables["estimates"]),
    }
    if (figure := plot_sweep(results.tasks)) is not None:
        figures["sweep"], tables["sweep"] = figure, sweep_table(results.tasks)
    if results.retrieval is not None:
        kept = results.retrieval.groupby("variant", sort=False)[["found", "cos_h"]].mean().reset_index()
        tables["retrieval"] = kept
    return Parts(
        metrics(results, claims),
        shown_table(results),
        tables,
        figures,
        [_verdict(claim) for claim in claims],
        notes(results),
    )


def all_claims(results: Results) -> list[Claim]:
    """Every claim that this run can test."""
    found = layer_claims(results.attention_layers)
    # The paper's ranking; the extension beside it has a claim of its own.
    variants = [name for name in results.scores if name in results.recipes and "-by-kl" not in name]
    families = {
        "attn": ("Dropping attentions", [v for v in variants if v.startswith("drop-attn-")]),
        "mlp": ("Dropping MLPs", [v for v in variants if v.startswith("drop-mlp-")]),
        "block": ("Dropping blocks", [v for v in variants if v.startswith("drop-block-")]),
        "weights": ("Setting weights to zero", [v for v in variants if not v.startswith("drop-")]),
    }
    for name, (what, members) in families.items():
        claim = gap_claim(results.tasks, members, name, what)
        found += [] if claim is None else [claim]
    found += ranking_claims(results.tasks, results.perplexity)
    if results.decoding:
        reference = REFERENCE if REFERENCE in results.decoding else next(iter(results.decoding))
        found += decoding_claims(results.decoding, reference)
        found += option_claims(results.options[reference], reference)
    found += perplexity_claims(results.perplexity)
    if results.retrieval is not None:
        found += retrieval_claims(results.retrieval)
    rank = outlook_rank(results)
    if rank is not None:
        found.append(rank)
    return found


def outlook_rank(results: Results) -> Claim | None:
    """Whether the probes order the variants as the written tasks do (an extension of this module)."""
    names = [name for name in results.decoding if name in results.scores]
    if len(names) < 4:
        return None
    forced = [float(f[f["mode"] == "forced"].agree.mean()) for f in (results.decoding[n] for n in names)]
    written = results.tasks[results.tasks.kind == "written"].groupby("variant").kept.mean()
    rank = float(pd.Series(forced).corr(written.reindex(names).reset_index(drop=True), method="spearman"))
    return Claim(
        "outlook/rank",
        "Extension: agreement of the next token, from a few prompts, orders the variants as their mean score on "
        "written tasks does (Spearman at least 0.7)",
        (rank,),
        0.0,
        rank >= 0.7,
        f"{len(names)} variants",
    )


def _verdict(claim: Claim) -> Verdict:
    values = ", ".join(f"{value:.3g}" for value in claim.values)
    measured = f"{claim.mean:.3g} ± {claim.spread:.2g}" + (
        f", seeds {values}" if len(claim.values) > 1 else ""
    )
    return Verdict(
        claim=f"{claim.name}: {claim.text}",
        held=claim.held,
        measured=measured + (f"; {claim.note}" if claim.note else ""),
    )


def metrics(results: Results, claims: list[Claim]) -> dict[str, Any]:
    """The numbers of metrics.json; the same for the same inputs."""
    found: dict[str, Any] = {
        "claims": {
            c.name: {
                "mean": c.mean,
                "spread": c.spread,
                "held": c.held,
                "values": list(c.values),
                "note": c.note,
            }
            for c in claims
        },
        "perplexity": results.perplexity,
        "tasks": {
            str(variant): {
                row.task: {
                    "score": row.score,
                    "kept": row.kept,
                    "kept_low": row.kept_low,
                    "kept_high": row.kept_high,
                    "kept_above_chance": row.kept_above_chance,
                }
                for row in part.itertuples()
            }
            for variant, part in results.tasks.groupby("variant", sort=False)
        },
        "decoding": {
            name: StepTable(frame, 1.0).summary() | {"divergence_mean": float(first_divergence(frame).mean())}
            for name, frame in results.decoding.items()
        },
        "options": {
            name: {
                str(cue): {
                    **OptionTable(part, LETTERS, 1.0).summary(),
                    "right_dense": float((part.choice == part.gold).mean()),
                    "right": float((part.choice_other == part.gold).mean()),
                }
                for cue, part in frame.groupby("cue")
            }
            for name, frame in results.options.items()
        },
        "outlook": {
            name: {item.kind: item.outlook for item in items} for name, items in results.outlooks().items()
        },
    }
    if results.retrieval is not None:
        found["retrieval"] = {
            str(name): {"recall_at_10": float(part.found.mean()), "cos_h": float(part.cos_h.median())}
            for name, part in results.retrieval.groupby("variant", sort=False)
        }
    if results.temperatures:
        found["temperature"] = _temperatures(results.temperatures)
    if results.raw_head is not None:
        part = inner(layer_summary(results.raw_head))
        found["raw_head"] = {
            "estimate_within_25pct": float(((part.kl_estimate_q50 / part.kl_q50 - 1).abs() <= 0.25).mean()),
            "median_ratio": float((part.kl_estimate_q50 / part.kl_q50).median()),
        }
    mlp = [frame for (kind, _), frame in results.layers.items() if kind == "mlp"]
    if mlp:
        found["mlp_layers"] = {c.name: {"mean": c.mean, "held": c.held} for c in layer_claims(mlp)}
    return found


def _temperatures(frames: Mapping[float, pd.DataFrame]) -> dict[str, Any]:
    """Median KL by temperature, and in how many layers it grows each time the temperature is halved."""
    medians = {t: inner(layer_summary(frame)).kl_q50.to_numpy() for t, frame in sorted(frames.items())}
    ordered = sorted(medians)
    grows = np.all([medians[a] > medians[b] for a, b in pairwise(ordered)], axis=0)
    return {
        "median_kl": {f"{t:g}": float(np.median(values)) for t, values in medians.items()},
        "layers_where_kl_grows_as_T_falls": float(np.mean(grows)),
        "layers_where_kl_is_larger_at_the_lowest_T": float(
            np.mean(medians[ordered[0]] > medians[ordered[-1]])
        ),
    }


def shown_table(results: Results) -> pd.DataFrame:
    """A row a variant: scores with what they keep, perplexity, and the probes' outlook."""
    outlooks = results.outlooks()
    tasks = results.tasks.set_index(["variant", "task"])
    names = sorted(set(results.tasks.task), key=list(TASKS).index)
    variants = names_of(results.scores)
    rows = []
    for variant in results.scores:
        row = {"variant": variants[variant]}
        for task in names:
            head = f"{TASKS[task]} % (kept)"
            if (variant, task) in tasks.index:
                item = tasks.loc[(variant, task)]
                kept = "" if variant == "dense" else f" ({100 * item.kept:.0f})"
                row[head] = f"{100 * item.score:.0f}{kept}"
        row["perplexity"] = f"{results.perplexity[variant]:.1f}" if variant in results.perplexity else "-"
        if variant in results.decoding:
            frame = results.decoding[variant]
            row["same next token %"] = f"{100 * frame[frame['mode'] == 'forced'].agree.mean():.0f}"
            row["outlook"] = "; ".join(f"{item.kind}: {item.outlook}" for item in outlooks[variant])
        rows.append(row)
    return pd.DataFrame(rows).fillna("-")


def notes(results: Results) -> str:
    """The outlook on each variant in words, and perplexities of the others."""
    lines = [
        f"- `{name}`: " + "; ".join(f"{item.kind}: **{item.outlook}** ({item.reason})" for item in items)
        for name, items in results.outlooks().items()
    ]
    dense = results.tasks[results.tasks.variant == "dense"]
    near = dense[dense.dense_above_chance < ABOVE_CHANCE]
    if len(near):
        told = ", ".join(f"{row.task} ({100 * float(row.score):.0f} %)" for row in near.itertuples())  # type: ignore[arg-type]
        lines.append(f"\nNear chance for the dense model, so no evidence for or against a gap: {told}.")
    rest = ", ".join(f"{name} {value:.1f}" for name, value in results.perplexity.items())
    return "\n".join(["Outlook by the probes:", *lines, "", f"Perplexity: {rest}."])


def layer_table(results: Results) -> pd.DataFrame:
    """Quantiles of the first seed, a row a layer and space."""
    summary = layer_summary(results.attention_layers[0])
    rows = [
        {
            "layer": int(line.layer),
            "space": space,
            "q05": line[f"{column}_q05"],
            "median": line[f"{column}_q50"],
            "q95": line[f"{column}_q95"],
        }
        for _, line in summary.iterrows()
        for column, space in SPACES.items()
    ]
    return pd.DataFrame(rows)


def estimate_table(results: Results) -> pd.DataFrame:
    """Measured and estimated median KL, a row a seed and layer."""
    parts = []
    for seed, frame in enumerate(results.attention_layers):
        summary = layer_summary(frame)
        parts.append(summary[["layer", "kl_q50", "kl_estimate_q50", "spearman"]].assign(seed=seed))
    return pd.concat(parts, ignore_index=True)


def decoding_table(results: Results) -> pd.DataFrame:
    """Medians over prompts by variant, mode and step."""
    parts = [StepTable(frame, 1.0).curves().assign(variant=name) for name, frame in results.decoding.items()]
    return pd.concat(parts, ignore_index=True)


def log_candidates(ctx: RunContext, results: Results) -> None:
    """One MLflow run a variant, with its scores and decoding curves; the layers' curves in the run of the flow."""
    for variant, tasks in results.scores.items():
        run = candidate_run(ctx, variant)
        recipe = results.recipes.get(variant)
        settings = {} if recipe is None else recipe.model_dump(mode="json")
        told = {
            STAGE_PARAM: "base" if variant == "dense" else "compressed",
            "candidate.method": variant,
            "candidate.what": readable(variant),
        }
        log_params(ctx, run, told | {f"recipe.{name}": value for name, value in settings.items()})
        own = results.tasks[results.tasks.variant == variant]
        # By their names the first metrics, and of every variant: MLflow's page of comparison opens with them.
        found = {f"keeps/{kind}": float(part.kept.mean()) for kind, part in own.groupby("kind")}
        found |= {f"test/{task}": float(np.mean(values)) for task, values in tasks.items()}
        if variant in results.perplexity:
            found["text/perplexity"] = results.perplexity[variant]
        if variant in results.decoding:
            table = StepTable(results.decoding[variant], 1.0)
            found |= {f"probe/{name}": value for name, value in table.summary().items()}
            for mode, part in table.curves().groupby("mode"):
                names = [f"{mode}/{name}" for name in ("kl", "cos_p", "agree")]
                curve = zip(part.step, part.kl, part.cos_p, part.agree, strict=True)
                log_trace(
                    ctx,
                    run,
                    [
                        {"step": int(step), **dict(zip(names, map(float, row), strict=True))}
                        for step, *row in curve
                    ],
                )
        log_metrics(ctx, run, found)
        ctx.client.set_terminated(run)
    columns = ["cos_h_q50", "cos_z_q05", "cos_p_q05", "cos_p_q50", "kl_q50", "kl_estimate_q50"]
    summary = layer_summary(results.attention_layers[0])
    rows = zip(summary.layer, summary[columns].to_dict("records"), strict=True)
    log_trace(
        ctx,
        ctx.parent_run_id,
        [
            {"step": int(layer), **{f"layer/{name}": float(v) for name, v in row.items()}}
            for layer, row in rows
        ],
    )
