"""The steer step's work: chains and forks of a model, the fitted steering, and its policies on other questions.

Chains and forks are kept part by part while they are made: what a killed run left is not drawn again.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from methods.common.errors import DataError
from methods.dynasteer.analysis import compare
from methods.dynasteer.decoding import Policy, Sentence, decode
from methods.dynasteer.forks import ForkSet, build_forks, contrastive
from methods.dynasteer.gate import ALWAYS, EntropyGate
from methods.dynasteer.heads import HeadActivations, capture_heads
from methods.dynasteer.sampling import GenConfig, encode
from methods.dynasteer.trajectories import VERIFIERS, Problem, Trajectory, answer_text, collect_trajectories
from tasks.evaluate.loading import load_candidate
from tasks.reference import Reference
from tasks.steer.config import DrawSettings, SteerSettings
from tasks.steer.questions import as_problems, read_questions
from tasks.train.expert_folder import write_json

RECORD, CHAINS, FORKS, HEADS, PARTS = (
    "steer.json",
    "chains.jsonl",
    "forks.jsonl",
    "heads.safetensors",
    ".parts",
)
QUESTIONS = "questions"
PART_QUESTIONS = 16
Rows = list[dict[str, Any]]


def generation(draw: DrawSettings, seed: int) -> GenConfig:
    """The method's settings of drawing."""
    stop = "" if draw.stop == "none" else draw.stop
    return GenConfig(**draw.model_dump(exclude={"stop"}), stop=stop, seed=seed)


def load(model: Path, dtype: str) -> tuple[Any, Any]:
    """Model and tokenizer in the number format of the step."""
    from methods.common.dtype import resolve_dtype
    from tasks.evaluate.loading import best_device

    return load_candidate(model, None, resolve_dtype(dtype, best_device()))


def draw_forks(
    out: Path, *, settings: SteerSettings, model: Reference, questions: Reference
) -> dict[str, Any]:
    """Chains of the training questions, the entropy gate, and labelled forks: chains.jsonl, forks.jsonl, gate.json.

    Args:
        out: an empty folder, or what a killed run of the same settings left.
        settings: of the step.
        model: a full model.
        questions: what `build_questions` wrote.

    Returns:
        questions, share answered right, gamma, doubtful sentences, forks by label, contexts of use.

    Raises:
        NoContrastError (a DataError): no context has right and wrong forks.
    """
    rows, record = read_questions(questions.expect("data"), "train")
    network, tokenizer = load(model.expect("model"), settings.dtype)
    problems = as_problems(rows, record, tokenizer)
    verifier, config = VERIFIERS[record["check"]], generation(settings.draw, settings.seed)
    parts = out / PARTS
    parts.mkdir(parents=True, exist_ok=True)

    def chains_of(begin: int, end: int) -> Rows:
        found = collect_trajectories(network, tokenizer, problems[begin:end], verifier, config, first=begin)
        return [asdict(chain) for chain in found]

    chains = [_chain(row) for row in _in_parts(parts, "chains", len(problems), chains_of)]
    gate = EntropyGate.fit(chains, settings.quantile, config.entropy, config.entropy_k)

    def forks_of(begin: int, end: int) -> Rows:
        found = build_forks(
            network,
            tokenizer,
            chains[begin:end],
            gate,
            problems,
            verifier,
            settings.forks,
            settings.completions,
            config,
        )
        return [asdict(fork_set) for fork_set in found]

    fork_rows = _in_parts(parts, "forks", len(problems), forks_of)
    forks = [ForkSet(**row) for row in fork_rows]
    used = contrastive(forks, settings.max_contexts, settings.seed)
    _write_rows(out / CHAINS, [asdict(chain) for chain in chains])
    _write_rows(out / FORKS, [asdict(fork_set) for fork_set in used])
    write_json(out / "gate.json", asdict(gate))
    shutil.rmtree(parts)
    labels = [label for fork_set in forks for label in fork_set.labels]
    return {
        "questions": len(problems),
        "accuracy": float(np.mean([chain.correct for chain in chains])),
        "finished": float(np.mean([chain.finished for chain in chains])),
        "gamma": gate.gamma,
        "sentences": sum(len(chain.sentences) for chain in chains),
        "doubtful": len(forks),
        "right_forks": labels.count(1),
        "wrong_forks": labels.count(0),
        "mixed_forks": labels.count(-1),
        "contexts": len(used),
    }


def fit_steering(out: Path, *, settings: SteerSettings, model: Reference, forks: Reference) -> dict[str, Any]:
    """Capture the heads, fit and save: steering.safetensors, steering.json, heads.safetensors, forks.json.

    Returns:
        blocks, heads and width of the model, samples, the chosen heads' mean probe accuracy and Fisher ratio.
    """
    from methods.dynasteer.steering import DynaSteer

    folder = forks.expect("data")
    network, tokenizer = load(model.expect("model"), settings.dtype)
    sets = [ForkSet(**row) for row in _read_rows(folder / FORKS)]
    acts = capture_heads(network, tokenizer, sets, settings.draw.batch_size, hidden=True)
    gate = EntropyGate(**json.loads((folder / "gate.json").read_text(encoding="utf-8")))
    steering = DynaSteer(
        n_clusters=settings.clusters,
        n_heads=settings.heads,
        alpha=settings.alpha,
        alpha_unit=settings.alpha_unit,
        cluster=settings.cluster,
        rank=settings.rank,
        direction=settings.direction,
        random_state=settings.seed,
    ).fit(acts)
    steering.save(out, gate)
    acts.save(out)
    d = steering.directions_
    chosen = list(zip(d.layers.tolist(), d.heads.tolist(), strict=True))
    return {
        "blocks": steering.shape_[0],
        "heads_a_block": steering.shape_[1],
        "head_width": steering.shape_[2],
        "samples": len(acts),
        "contexts": len(np.unique(acts.groups)),
        "steered_heads": len(chosen),
        "probe_accuracy": float(np.nanmean([steering.accuracy_[place] for place in chosen])),
        "probe_accuracy_of_all": float(np.nanmean(steering.accuracy_)),
        "fisher_ratio": float(np.nanmean([steering.ratio_[place] for place in chosen])),
    }


def answer_questions(
    out: Path,
    *,
    settings: SteerSettings,
    model: Reference,
    questions: Reference,
    steering: Reference,
) -> dict[str, Any]:
    """Answer the test questions under each policy: `<policy>.jsonl`, one row a question.

    A policy that a killed run finished is not drawn again. All policies draw with the same numbers.

    Returns:
        by policy: see `policy_facts`; seconds a question under `timings`.
    """
    from methods.dynasteer.steering import DynaSteer

    rows, record = read_questions(questions.expect("data"), "test")
    network, tokenizer = load(model.expect("model"), settings.dtype)
    problems = as_problems(rows, record, tokenizer)
    fitted = DynaSteer.load(steering.expect("data"))
    fitted.check_model(network)
    fitted.set_params(alpha=settings.alpha, alpha_unit=settings.alpha_unit, cluster=settings.cluster)
    acts = HeadActivations.load(steering.path) if set(settings.policies) & {"mean", "caa", "iti"} else None
    config = generation(settings.draw, settings.seed)
    clock = out / "timings.json"
    timings: dict[str, float] = json.loads(clock.read_text(encoding="utf-8")) if clock.is_file() else {}
    for name in settings.policies:
        file = out / f"{name}.jsonl"
        if not file.is_file() or name not in timings:
            started = time.perf_counter()
            drawn = [
                answers(network, tokenizer, problems, record["check"], config, policy)
                for policy in policies_named(name, fitted, acts, settings)
            ]
            timings[name] = (time.perf_counter() - started) / len(problems) / len(drawn)
            _write_rows(file, _mean_rows(drawn))
            write_json(clock, timings)
    by_policy = {name: _read_rows(out / f"{name}.jsonl") for name in settings.policies}
    return {
        "policies": policy_facts(by_policy, rows),
        "timings": {f"{name}_seconds_per_question": timings[name] for name in settings.policies},
    }


def policies_named(
    name: str, fitted: Any, acts: HeadActivations | None, settings: SteerSettings
) -> list[Policy]:
    """A policy of the settings' list; the random one is a draw and its opposite, so that what a direction does by
    chance cancels in their mean."""
    if name == "random":
        edit = fitted.edit()
        return [
            Policy(
                fitted.gate_,
                replace(edit, directions=fitted.random_directions(fitted.random_state, sign)),
                settings.scope,
                last=settings.tau_decay or None,
            )
            for sign in (1.0, -1.0)
        ]
    return [_policy_named(name, fitted, acts, settings)]


def _policy_named(name: str, fitted: Any, acts: HeadActivations | None, settings: SteerSettings) -> Policy:
    from methods.dynasteer.baselines import fit_caa, fit_iti
    from methods.dynasteer.steering import DynaSteer

    how = {"tau_decay": settings.tau_decay or None, "scope": settings.scope}
    if name == "always":
        return Policy(ALWAYS, fitted.edit(), settings.scope, last=settings.tau_decay or None)
    if name in ("plain", "resample", "steer"):
        found: Policy = fitted.policy(policy=name, **how)
        return found
    assert acts is not None
    if name == "mean":
        mean = DynaSteer(**{**fitted.get_params(), "direction": "mean"}).fit(acts)
        return Policy(fitted.gate_, mean.edit(), settings.scope, last=settings.tau_decay or None)
    if name == "caa":
        return Policy(edit=fit_caa(acts, fitted.shape_[0] // 2), scope="always")
    return Policy(edit=fit_iti(acts, settings.heads, settings.alpha, seed=settings.seed), scope="always")


def answers(
    network: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    check: str,
    config: GenConfig,
    policy: Policy,
) -> Rows:
    """One row a question: right, tokens kept and thrown away, triggers, sentences, finished."""
    verifier = VERIFIERS[check]
    decoded = decode(network, tokenizer, encode(tokenizer, [p.prompt for p in problems]), config, policy)
    found = []
    for answer, problem in zip(decoded, problems, strict=True):
        text = answer_text(tokenizer, answer)
        found.append(
            {
                "right": bool(verifier(text, problem)),
                "accepted_tokens": len(answer.ids),
                "discarded_tokens": answer.discarded,
                "triggers": answer.triggers,
                "sentences": len(answer.sentences),
                "finished": answer.finished,
                "text": text,
            }
        )
    return found


def _mean_rows(drawn: Sequence[Rows]) -> Rows:
    """One row a question of several draws of a policy: means of the numbers, the first one's text."""
    if len(drawn) == 1:
        return drawn[0]
    return [
        {
            key: value if isinstance(value, str) else float(np.mean([row[key] for row in rows]))
            for key, value in rows[0].items()
        }
        for rows in zip(*drawn, strict=True)
    ]


def policy_facts(found: dict[str, Rows], questions: Sequence[dict[str, str]]) -> dict[str, dict[str, Any]]:
    """Accuracy, tokens and, against plain and against both controls, who was fixed and who was harmed."""
    groups = [row["group"] for row in questions]
    right = {name: np.array([float(row["right"]) for row in rows]) for name, rows in found.items()}
    facts: dict[str, dict[str, Any]] = {}
    for name, rows in found.items():
        sentences = sum(row["sentences"] for row in rows)
        facts[name] = {
            "accuracy": float(right[name].mean()),
            "tokens_per_question": float(
                np.mean([r["accepted_tokens"] + r["discarded_tokens"] for r in rows])
            ),
            "discarded_per_question": float(np.mean([r["discarded_tokens"] for r in rows])),
            "trigger_rate": sum(row["triggers"] for row in rows) / max(1, sentences),
            "finished": float(np.mean([row["finished"] for row in rows])),
        }
        for other in ("plain", "resample", "random"):
            if other in found and other != name:
                c = compare(right[name], right[other], groups)
                facts[name] |= {
                    f"gain_over_{other}": c.gain,
                    f"gain_over_{other}_low": c.low,
                    f"gain_over_{other}_high": c.high,
                    f"fixed_of_{other}": c.fixed,
                    f"harmed_of_{other}": c.harmed,
                }
    return facts


def _in_parts(parts: Path, name: str, count: int, make: Callable[[int, int], Rows]) -> Rows:
    """Rows of questions `begin` to `end`, part by part; a part that is there is read."""
    rows: Rows = []
    for begin in range(0, count, PART_QUESTIONS):
        file = parts / f"{name}-{begin:07d}.jsonl"
        if not file.is_file():
            _write_rows(file, make(begin, min(begin + PART_QUESTIONS, count)))
        rows.extend(_read_rows(file))
    return rows


def _write_rows(path: Path, rows: Rows) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows), encoding="utf-8")
    part.replace(path)


def _read_rows(path: Path) -> Rows:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: is missing or damaged ({type(error).__name__}); run the step again"
        ) from error


def _chain(row: dict[str, Any]) -> Trajectory:
    sentences = tuple(Sentence(**{**s, "ids": tuple(s["ids"])}) for s in row["sentences"])
    return Trajectory(**{**row, "prompt": tuple(row["prompt"]), "sentences": sentences})
