"""What the study measures: the planted truth, and every policy in the small world, one seed at a time.

A seed is a whole pipeline: a reasoner of its own, chains, forks, fit, choice of the strength on problems that no claim
is made on, and policies on test problems, all drawn with the same numbers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from methods.dynasteer.analysis import compare, lookaheads
from methods.dynasteer.baselines import fit_caa, fit_control_vector, fit_iti, self_consistency
from methods.dynasteer.decoding import Decoded, Policy, decode
from methods.dynasteer.directions import fit_patterns, held_out_problems
from methods.dynasteer.edits import HeadEdit
from methods.dynasteer.forks import build_forks
from methods.dynasteer.gate import ALWAYS, EntropyGate
from methods.dynasteer.heads import HeadActivations, capture_heads
from methods.dynasteer.numbers import answered_number
from methods.dynasteer.planted import make_planted, planted_problems
from methods.dynasteer.sampling import GenConfig
from methods.dynasteer.steering import DynaSteer
from methods.dynasteer.trajectories import Problem, answer_text, collect_trajectories
from methods.dynasteer.world import STEPS, make_problems, make_tokenizer

DRAW = GenConfig(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=40, batch_size=1000)
HEADS = 8  # of 12, as in the brief's trial: 8 of 18
PATTERNS = (1, 5)
SENTENCES = STEPS + 1
PAIRS = 1  # random directions, each with its opposite
Row = dict[str, Any]
Say = Callable[[str], None]


def run_planted(seed: int, problems: int = 500, tests: int = 2000) -> Row:
    """The causal positive control: the truth is planted, so steering must gain and controls must not."""
    made = make_planted(seed, head_dim=16)
    config = replace(DRAW, max_new_tokens=8, seed=seed)
    asked = planted_problems(problems, seed)
    chains = collect_trajectories(made.model, made.tokenizer, asked, config=config)
    gate = EntropyGate.fit(chains)
    forks = build_forks(made.model, made.tokenizer, chains, gate, asked, n_forks=10, n_label=3, config=config)
    acts = capture_heads(made.model, made.tokenizer, forks, batch_size=512)
    steering = DynaSteer(n_clusters=1, n_heads=1, alpha=3.0, alpha_unit="sigma").fit(acts)
    test = planted_problems(tests, seed + 1000)
    world = _World(made.model, made.tokenizer, test, config)
    right = {
        "plain": world.right(Policy()),
        "resample": world.right(Policy(gate)),
        "steer": world.right(steering.policy(gate)),
    }
    draws = [world.right(Policy(gate, edit)).mean() for edit in random_edits(steering, 4)]
    found = compare(right["steer"], right["plain"])
    return {
        "seed": seed,
        "cosine": float(steering.directions_.w[0, 0].numpy() @ made.direction),
        **{name: float(value.mean()) for name, value in right.items()},
        "random": float(np.mean(draws)),
        "random_draws": [float(value) for value in draws],
        "fixed": found.fixed,
        "harmed": found.harmed,
        "tests": tests,
        "contexts": len(np.unique(acts.groups)),
    }


def random_edits(steering: DynaSteer, pairs: int) -> list[HeadEdit]:
    """Edits along random directions, each with its opposite, so that first-order effects cancel in their mean."""
    edit = steering.edit()
    return [
        replace(edit, directions=steering.random_directions(draw, sign))
        for draw in range(pairs)
        for sign in (1.0, -1.0)
    ]


@dataclass
class _World:
    """Problems that policies answer with the same numbers."""

    model: Any
    tokenizer: Any
    problems: Sequence[Problem]
    config: GenConfig

    def decode(self, policy: Policy, seed: int = 0) -> list[Decoded]:
        prompts = [list(problem.prompt) for problem in self.problems]  # ids
        config = replace(self.config, seed=self.config.seed + 7919 * seed)
        return decode(self.model, self.tokenizer, prompts, config, policy)  # type: ignore[arg-type]

    def numbers(self, answers: Sequence[Decoded]) -> list[str | None]:
        return [answered_number(answer_text(self.tokenizer, answer)) for answer in answers]

    def right(self, policy: Policy) -> np.ndarray:
        return self.is_right(self.decode(policy))

    def is_right(self, answers: Sequence[Decoded]) -> np.ndarray:
        given = self.numbers(answers)
        return np.array([float(a == p.answer) for a, p in zip(given, self.problems, strict=True)])


@dataclass(frozen=True)
class WorldPlan:
    """Sizes of a seed's pipeline, and the strengths that are tried: of DynaSteer in sigma, of the others always on."""

    problems: int = 600
    select: int = 600
    test: int = 2000
    laws: int = 1000
    forks: int = 12
    completions: int = 3
    alphas: tuple[float, ...] = (1.0, 3.0, 6.0, 12.0, 24.0)
    always: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.0)


class Kept:
    """What is measured already, as JSON files of a folder, so that a killed seed goes on where it was."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """The value of that name, made now if it is not there."""
        if self.folder is None:
            return make()
        file = self.folder / f"{name.replace(' ', '_')}.json"
        if not file.is_file():
            part = file.with_suffix(".part")
            part.write_text(json.dumps(make()), encoding="utf-8")
            part.replace(file)
        return json.loads(file.read_text(encoding="utf-8"))


def run_world(
    model: Any, seed: int, plan: WorldPlan, say: Say = lambda _line: None, folder: Path | None = None
) -> Row:
    """A seed's pipeline on its trained reasoner; `folder` keeps what was measured, policy by policy.

    Returns:
        offline (counts), heads (probe accuracy by block and head), probes (by block and sentence), select (gain by
        setting), chosen (names), policies (name -> accuracy, cost, harm, correctness as text of 0 and 1), laws (gain by
        sentence and by entropy); wall `seconds` a question by policy apart.
    """
    tokenizer = make_tokenizer()
    config = replace(DRAW, seed=seed)
    kept = Kept(folder)
    acts_folder = folder if folder is not None and (folder / "heads.safetensors").is_file() else None
    made: list[HeadActivations] = [] if acts_folder is None else [HeadActivations.load(acts_folder)]

    def collect() -> Row:
        acts, found = _collect(model, tokenizer, make_problems(plan.problems, 4 * seed), plan, config)
        if folder is not None:
            acts.save(folder)
        made[:] = [acts]
        return found

    offline = kept.get("offline", collect)
    acts, gate = made[0], EntropyGate(offline["gamma"])
    say(f"seed {seed}: {len(acts)} labelled forks in {len(np.unique(acts.groups))} contexts")
    fitted = {m: _fit(acts, m) for m in PATTERNS}
    means = {m: _fit(acts, m, direction="mean") for m in PATTERNS}
    select = _World(model, tokenizer, make_problems(plan.select, 4 * seed + 1), config)
    chosen, gains, edits = _choose(select, plan, acts, fitted, means, gate, kept)
    say(f"seed {seed}: chosen {chosen['steer']}")
    test = _World(model, tokenizer, make_problems(plan.test, 4 * seed + 2), config)
    policies, seconds = _policies(test, plan, acts, fitted, means, gate, chosen, edits, kept)
    say(
        f"seed {seed}: "
        + ", ".join(f"{n} {policies[n]['accuracy']:.3f}" for n in ("plain", "resample", "steer"))
    )
    laws = _laws(
        _World(model, tokenizer, make_problems(plan.laws, 4 * seed + 3), config), edits[chosen["steer"]], kept
    )
    return {
        "seed": seed,
        "offline": offline,
        "heads": fitted[1].accuracy_.tolist(),
        "probes": probes_by_sentence(acts),
        "select": gains,
        "chosen": chosen,
        "policies": policies,
        "laws": laws,
        "seconds": seconds,
    }


def _collect(
    model: Any, tokenizer: Any, problems: Sequence[Problem], plan: WorldPlan, config: GenConfig
) -> tuple[HeadActivations, Row]:
    """Chains, gate, forks and heads of the training problems."""
    chains = collect_trajectories(model, tokenizer, problems, config=config)
    gate = EntropyGate.fit(chains)
    forks = build_forks(
        model,
        tokenizer,
        chains,
        gate,
        problems,
        n_forks=plan.forks,
        n_label=plan.completions,
        config=config,
    )
    acts = capture_heads(model, tokenizer, forks, batch_size=512, hidden=True)
    labels = [label for fork_set in forks for label in fork_set.labels]
    return acts, {
        "accuracy": float(np.mean([chain.correct for chain in chains])),
        "gamma": gate.gamma,
        "doubtful": len(forks),
        "contexts": len(np.unique(acts.groups)),
        "truth": labels.count(1),
        "fallacy": labels.count(0),
        "mixed": labels.count(-1),
    }


def _fit(acts: HeadActivations, patterns: int, **options: Any) -> DynaSteer:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # opposed patterns are a result here
        return DynaSteer(n_clusters=patterns, n_heads=HEADS, alpha_unit="sigma", **options).fit(acts)


def _at(fitted: DynaSteer, alpha: float) -> HeadEdit:
    return replace(fitted.edit(), alpha=alpha)


def _choose(
    world: _World,
    plan: WorldPlan,
    acts: HeadActivations,
    fitted: dict[int, DynaSteer],
    means: dict[int, DynaSteer],
    gate: EntropyGate,
    kept: Kept,
) -> tuple[dict[str, str], dict[str, float], dict[str, Any]]:
    """The best setting of DynaSteer and of each baseline on the select problems: names, gains, and every edit."""

    def accuracy(name: str, policy: Policy) -> float:
        return float(kept.get(f"select {name}", lambda: float(world.right(policy).mean())))

    resample, plain = accuracy("resample", Policy(gate)), accuracy("plain", Policy())
    edits: dict[str, Any] = {
        f"m{m} alpha{alpha:g}": _at(fitted[m], alpha) for m in PATTERNS for alpha in plan.alphas
    }
    own_means: dict[str, Any] = {
        f"mean m{m} alpha{alpha:g}": _at(means[m], alpha) for m in PATTERNS for alpha in plan.alphas
    }
    named = {f"steer {name}": edit for name, edit in edits.items()} | own_means
    gains = {name: accuracy(name, Policy(gate, edit)) - resample for name, edit in named.items()}
    always: dict[str, Any] = {f"iti alpha{a:g}": fit_iti(acts, HEADS, a) for a in plan.always}
    blocks = acts.z.shape[1]
    for layer in range(blocks):
        for m in plan.always:
            always[f"caa block{layer} times{m:g}"] = fit_caa(acts, layer, m)
    always["control vector"] = fit_control_vector(acts, blocks // 2, 0.25)
    for alpha in plan.always:
        always[f"constant alpha{alpha:g}"] = replace(_at(fitted[1], alpha), constant=True)
    for name, edit in always.items():
        gains[name] = accuracy(name, Policy(edit=edit, scope="always")) - plain
    best = max(edits, key=lambda name: gains[f"steer {name}"])
    chosen = {"steer": best, "mean": max(own_means, key=lambda name: gains[name])}
    for kind in ("iti", "caa", "constant"):
        chosen[kind] = max((name for name in always if name.startswith(kind)), key=lambda name: gains[name])
    return chosen, gains, edits | own_means | always


def _policies(
    world: _World,
    plan: WorldPlan,
    acts: HeadActivations,
    fitted: dict[int, DynaSteer],
    means: dict[int, DynaSteer],
    gate: EntropyGate,
    chosen: dict[str, str],
    edits: dict[str, Any],
    kept: Kept,
) -> tuple[dict[str, Row], dict[str, float]]:
    """Every policy on the test problems; each with the control that has its gate and no edit."""
    best: HeadEdit = edits[chosen["steer"]]
    patterns = int(chosen["steer"].split()[0][1:])
    asked: dict[str, tuple[Policy, str]] = {
        "plain": (Policy(), ""),
        "resample": (Policy(gate), "plain"),
        "resample no gate": (Policy(ALWAYS), "plain"),
        "resample tau 2": (Policy(gate, last=2), "plain"),
        "steer": (Policy(gate, best), "resample"),
        "no gate": (Policy(ALWAYS, best), "resample no gate"),
        "no rollback": (Policy(gate, best, rollback=False), "plain"),
        "tau 2": (Policy(gate, best, last=2), "resample tau 2"),
        "whole sentence": (Policy(gate, best, scope="sentence"), "resample"),
        "restored": (Policy(gate, best, restore=True), "resample"),
        "nearest pattern": (Policy(gate, replace(best, cluster="nearest")), "resample"),
        "mean difference": (Policy(gate, _at(means[patterns], best.alpha)), "resample"),
        "mean difference, own strength": (Policy(gate, edits[chosen["mean"]]), "resample"),
        "ITI 3 sigma": (Policy(edit=fit_iti(acts, HEADS, 3.0), scope="always"), "plain"),
    }
    for name in ("iti", "caa", "constant"):
        asked[name] = (Policy(edit=edits[chosen[name]], scope="always"), "plain")
    for m in PATTERNS:
        for alpha in plan.alphas:
            asked[f"m{m} alpha{alpha:g}"] = (Policy(gate, edits[f"m{m} alpha{alpha:g}"]), "resample")
    chosen_fit = fitted[patterns].set_params(alpha=best.alpha)
    for draw, edit in enumerate(random_edits(chosen_fit, PAIRS)):
        asked[f"random {draw}"] = (Policy(gate, edit), "resample")
    found: dict[str, Row] = {}
    right: dict[str, np.ndarray] = {}
    seconds: dict[str, float] = {}
    for name, (policy, control) in asked.items():
        # The chosen setting is one of the grid: the same numbers.
        source = "steer" if name == chosen["steer"] else name
        measured = kept.get(f"policy {source}", partial(_measured, world, policy, gate))
        seconds[name] = measured["seconds"] / len(world.problems)
        right[name] = np.array([float(c) for c in measured["right"]])
        found[name] = _facts(measured, right, name, control)
    steer = found["steer"]
    extra = steer["tokens"] / found["plain"]["tokens"] - 1
    votes = [kept.get(f"votes {s}", partial(_votes, world, s)) for s in range(3)]
    expected, share = self_consistency(
        list(zip(*votes, strict=True)), [p.answer for p in world.problems], 3, max(0.0, extra)
    )
    everyone, _ = self_consistency(list(zip(*votes, strict=True)), [p.answer for p in world.problems], 3, 2.0)
    for name, value in (("self-consistency", expected), ("self-consistency of 3", everyone)):
        found[name] = {
            "accuracy": float(value.mean()),
            "tokens": found["plain"]["tokens"] * (1 + extra if name == "self-consistency" else 3),
            "share_voting": share if name == "self-consistency" else 1.0,
        }
        seconds[name] = seconds["plain"] * found[name]["tokens"] / found["plain"]["tokens"]
    return found, seconds


def _votes(world: _World, seed: int) -> list[str | None]:
    return world.numbers(world.decode(Policy(), seed))


def _measured(world: _World, policy: Policy, gate: EntropyGate) -> Row:
    """A policy's answers: what they cost, and which are right as text of 0 and 1."""
    started = time.perf_counter()
    decoded = world.decode(policy)
    seconds = time.perf_counter() - started
    return {
        "accepted": sum(len(answer.ids) for answer in decoded),
        "discarded": sum(answer.discarded for answer in decoded),
        "sentences": sum(len(answer.sentences) for answer in decoded),
        "triggers": sum(answer.triggers for answer in decoded),
        "doubtful": sum(gate.triggers(s.lookahead) for answer in decoded for s in answer.sentences),
        "right": "".join(str(int(value)) for value in world.is_right(decoded)),
        "seconds": seconds,
    }


def _facts(measured: Row, right: dict[str, np.ndarray], name: str, control: str) -> Row:
    accepted, discarded = measured["accepted"], measured["discarded"]
    facts: Row = {
        "accuracy": float(right[name].mean()),
        "tokens": (accepted + discarded) / len(right[name]),
        "discarded_share": discarded / accepted,
        "trigger_rate": measured["triggers"] / measured["sentences"],
        "doubtful": measured["doubtful"] / measured["sentences"],
        "right": measured["right"],
        "control": control,
    }
    for other in dict.fromkeys((control, "plain")):
        if other and other != name:
            c = compare(right[name], right[other])
            key = "plain" if other == "plain" else "control"
            facts[f"over_{key}"] = {
                "gain": c.gain,
                "low": c.low,
                "high": c.high,
                "fixed": c.fixed,
                "harmed": c.harmed,
            }
    if control == "plain":
        facts["over_control"] = facts["over_plain"]
    return facts


def _laws(world: _World, edit: HeadEdit, kept: Kept) -> list[Row]:
    """One sentence steered, whatever its entropy: who gained over drawing the same sentence again."""
    plain = np.array(kept.get("law plain", lambda: world.right(Policy()).tolist()))
    return [
        kept.get(f"law {number}", partial(_law, world, edit, plain, number))
        for number in range(1, SENTENCES + 1)
    ]


def _law(world: _World, edit: HeadEdit, plain: np.ndarray, number: int) -> Row:
    steered = world.decode(Policy(ALWAYS, edit, first=number, last=number))
    again = world.right(Policy(ALWAYS, first=number, last=number))
    right = world.is_right(steered)
    entropy = lookaheads(steered, number)
    known = np.isfinite(entropy)
    return {
        "sentence": number,
        "gain": float((right - again).mean()),
        "stderr": float((right - again).std(ddof=1) / len(right) ** 0.5),
        "resample_gain": float((again - plain).mean()),
        "entropy": [round(float(value), 4) for value in entropy[known]],
        "steer_minus_again": [int(value) for value in (right - again)[known]],
        "again_minus_plain": [int(value) for value in (again - plain)[known]],
    }


def probes_by_sentence(acts: HeadActivations) -> list[Row]:
    """Probe accuracy on other problems, by block and sentence: mean and best over heads."""
    rows = []
    test = held_out_problems(np.asarray(acts.problems), 0.3, 0)
    for number in sorted(set(np.asarray(acts.sentences).tolist())):
        inside = np.asarray(acts.sentences) == number
        groups, labels = np.asarray(acts.groups)[inside], np.asarray(acts.labels)[inside]
        if len(np.unique(groups)) < 20:
            continue
        for layer in range(acts.z.shape[1]):
            z = acts.z[inside, layer].double().numpy()
            found = [
                fit_patterns(z[:, head], labels, groups, test[inside], 1).accuracy
                for head in range(z.shape[1])
            ]
            rows.append(
                {
                    "sentence": int(number),
                    "block": layer,
                    "accuracy": float(np.nanmean(found)),
                    "best": float(np.nanmax(found)),
                    "samples": int(inside.sum()),
                }
            )
    return rows
