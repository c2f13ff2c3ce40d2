"""The length sweep (section 2.2): own and merged scores of experts that were all trained for s steps.

For every length lambda is chosen anew on the select split: task vectors grow 10 to 100 times with training,
and at a fixed lambda the effect would be scale alone. The norm-matched control goes further: every tau_t(s)
is scaled to its norm at the length where the method peaks (on the select split), and merged with that
length's lambda.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError
from methods.merge_early_stop.experts import (
    STEPS,
    ExpertBank,
    Key,
    Schedule,
    Split,
    TaskSplits,
    accuracy,
    predictions,
    split_size,
)
from methods.merge_early_stop.interference import interference
from methods.merge_early_stop.merge import LAMBDAS
from methods.merge_early_stop.operators import Operator, StateDict, merge_vectors
from methods.merge_early_stop.stopper import load_trainable

ScoreFn = Callable[[nn.Module, Split], float]


@dataclass(frozen=True)
class MergeRule:
    """An operator with the lambdas that may be chosen on the select split; a single one fixes it."""

    operator: Operator
    lambdas: Sequence[float] = LAMBDAS


RULES: dict[str, MergeRule] = {
    "average": MergeRule(Operator("average"), (1.0,)),
    "task_arithmetic": MergeRule(Operator("task_arithmetic")),
    "ties": MergeRule(Operator("ties")),
    "ties_lambda_1": MergeRule(Operator("ties"), (1.0,)),
    "dare": MergeRule(Operator("dare")),
}


@dataclass(frozen=True)
class Sweep:
    """Rows of the sweep.

    `to_frame` has a row for each (step, method, seed), `per_task` one for each task of it.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)

    def to_frame(self) -> pd.DataFrame:
        """One row a step, method and seed.

        Columns: `step, method, seed, schedule, own, zero_shot, merged, merged_min, normalised, norm_matched,
        lambda, select, norm, cosine, sign_conflict, weighted_sign_conflict, keep_rate`. Scores are means over
        tasks on the test split, `select` the one that chose lambda, `normalised` the mean of merged/own.
        """
        return pd.DataFrame(self.rows)

    def per_task(self) -> pd.DataFrame:
        """Columns: `step, method, seed, schedule, task, own, zero_shot, merged`."""
        return pd.DataFrame(self.tasks)

    def __add__(self, other: Sweep) -> Sweep:
        return Sweep(self.rows + other.rows, self.tasks + other.tasks)


class TaskScores:
    """Scores of one model on the same part of all tasks.

    Inputs of equal shape go through the model together.
    """

    def __init__(self, tasks: Mapping[str, TaskSplits], part: str, score_fn: ScoreFn = accuracy) -> None:
        self.splits = {task: splits.get(part, task) for task, splits in tasks.items()}
        self.score_fn = score_fn
        self._joint: tuple[Tensor, Tensor] | None = None
        tensors = [s for s in self.splits.values() if isinstance(s, tuple)]
        if (
            score_fn is accuracy
            and len(tensors) == len(self.splits)
            and len({s[0].shape[1:] for s in tensors}) == 1
        ):
            self._joint = torch.cat([s[0] for s in tensors]), torch.cat([s[1] for s in tensors])

    def __call__(self, model: nn.Module) -> dict[str, float]:
        if self._joint is None:
            return {task: float(self.score_fn(model, split)) for task, split in self.splits.items()}
        logits, labels = predictions(model, self._joint)
        hits = (logits.argmax(1) == labels).double().split([split_size(s) for s in self.splits.values()])
        return {task: float(hit.mean()) for task, hit in zip(self.splits, hits, strict=True)}


def mean(scores: Mapping[str, float]) -> float:
    return sum(scores.values()) / len(scores)


class MergeScorer:
    """Merges task vectors under a rule, chooses lambda on the select split, scores on the test split."""

    def __init__(
        self, base: nn.Module, tasks: Mapping[str, TaskSplits], score_fn: ScoreFn = accuracy
    ) -> None:
        self.select, self.test = TaskScores(tasks, "select", score_fn), TaskScores(tasks, "test", score_fn)
        self._work = copy.deepcopy(base)
        self._origin = {n: p.detach().clone() for n, p in base.named_parameters()}
        self.zero_shot = self.test(self._work)

    def model(self, delta: StateDict, lambda_: float) -> nn.Module:
        """theta_0 + lambda delta; one object that the next call changes."""
        load_trainable(self._work, self._origin)
        load_trainable(self._work, {n: self._origin[n] + lambda_ * d for n, d in delta.items()})
        return self._work

    def delta(self, taus: Sequence[StateDict], rule: MergeRule, seed: int = 0) -> dict[str, Tensor]:
        """The merged vector at lambda = 1."""
        return merge_vectors(taus, replace(rule.operator, lambda_=1.0, seed=seed))

    def choose(self, delta: StateDict, rule: MergeRule) -> tuple[float, float]:
        """lambda with the best mean score on the select split (the smallest wins a draw), and that score.

        Of a grid of more than eight, every third value is tried first, then all between the neighbours of the
        best: the curve over lambda has one hump up to noise, and validation is what a sweep spends its time
        on.
        """
        grid = sorted(rule.lambdas)
        scores: dict[float, float] = {}

        def try_all(values: Sequence[float]) -> float:
            for lam in values:
                if lam not in scores:
                    scores[lam] = mean(self.select(self.model(delta, lam)))
            return max(scores, key=lambda lam: (scores[lam], -lam))

        if len(grid) > 8:
            coarse = grid.index(try_all([*grid[::3], grid[-1]]))
            grid = grid[max(0, coarse - 2) : coarse + 3]
        best = try_all(grid)
        return best, scores[best]

    def merged(
        self, taus: Sequence[StateDict], rule: MergeRule, seed: int = 0
    ) -> tuple[dict[str, float], float, float]:
        """Test scores of each task, the chosen lambda, its select score."""
        delta = self.delta(taus, rule, seed)
        lambda_, select = self.choose(delta, rule)
        return self.test(self.model(delta, lambda_)), lambda_, select


def length_sweep(
    bank: ExpertBank,
    tasks: Mapping[str, TaskSplits],
    *,
    steps: Sequence[int] = STEPS,
    methods: Mapping[str, MergeRule] | Sequence[str] = ("task_arithmetic", "ties"),
    seeds: Sequence[int] = (0,),
    schedule: Schedule = "constant",
    score_fn: ScoreFn = accuracy,
    norm_matched: bool = True,
    scorer: MergeScorer | None = None,
) -> Sweep:
    """Own and merged scores at each length, with interference metrics.

    Args:
        bank: experts from `train_experts` for all tasks, seeds and steps.
        tasks: with select and test splits. methods: names of `RULES`, or rules by name.
        score_fn: (model, split) -> score, higher is better.
        norm_matched: also compute the control column `norm_matched` (NaN otherwise).
        scorer: of the same base, tasks and score_fn, when several sweeps share what it has scored already.

    Errors: `ConfigError` for an unknown method or no steps; `DataError` for a missing expert or split.
    """
    rules = dict(methods) if isinstance(methods, Mapping) else {}
    if not isinstance(methods, Mapping):
        for name in methods:
            if name not in RULES:
                raise ConfigError(f"methods: {name!r} is unknown; choose from {', '.join(RULES)}")
            rules[name] = RULES[name]
    if not steps or not rules:
        raise ConfigError("steps and methods must not be empty")
    scorer = scorer or MergeScorer(bank.base, tasks, score_fn)
    result = Sweep()
    for seed in seeds:
        for name, rule in rules.items():
            _sweep_one(result, bank, tasks, sorted(steps), name, rule, seed, schedule, scorer, norm_matched)
    return result


def _sweep_one(
    result: Sweep,
    bank: ExpertBank,
    tasks: Mapping[str, TaskSplits],
    steps: Sequence[int],
    name: str,
    rule: MergeRule,
    seed: int,
    schedule: str,
    scorer: MergeScorer,
    norm_matched: bool,
) -> None:
    rows: list[dict[str, Any]] = []
    for step in steps:
        keys = [Key(task, seed, schedule, step) for task in tasks]
        taus = [bank.tau(key) for key in keys]
        own, metrics = _of_step(bank, keys, taus, scorer)
        merged, lambda_, select = scorer.merged(taus, rule, seed)
        rows.append({
            "step": step, "method": name, "seed": seed, "schedule": schedule, "own": mean(own),
            "zero_shot": mean(scorer.zero_shot), "merged": mean(merged), "merged_min": min(merged.values()),
            "normalised": mean({t: merged[t] / own[t] if own[t] else 0.0 for t in own}),
            "norm_matched": float("nan"), "lambda": lambda_, "select": select, **metrics,
        })  # fmt: skip
        for task in tasks:
            result.tasks.append({
                "step": step, "method": name, "seed": seed, "schedule": schedule, "task": task, "own": own[task],
                "zero_shot": scorer.zero_shot[task], "merged": merged[task],
            })  # fmt: skip
    if norm_matched:
        peak = max(rows, key=lambda row: (row["select"], -row["step"]))
        target = [bank.tau(Key(task, seed, schedule, peak["step"])) for task in tasks]
        for row in rows:
            taus = [bank.tau(Key(task, seed, schedule, row["step"])) for task in tasks]
            scaled = [scale_to(tau, norm(goal)) for tau, goal in zip(taus, target, strict=True)]
            model = scorer.model(scorer.delta(scaled, rule, seed), peak["lambda"])
            row["norm_matched"] = mean(scorer.test(model))
    result.rows.extend(rows)


def _of_step(
    bank: ExpertBank, keys: Sequence[Key], taus: Sequence[StateDict], scorer: MergeScorer
) -> tuple[dict[str, float], dict[str, float]]:
    """Own test scores and interference metrics; the same for every method, so kept with the bank."""
    cache: dict[tuple[Key, ...], tuple[dict[str, float], dict[str, float]]]
    cache = scorer.__dict__.setdefault("of_step", {})
    place = tuple(keys)
    if place not in cache:
        own = own_scores(bank, keys, scorer.test)
        cache[place] = own, interference(taus).means()
    return cache[place]


def own_scores(bank: ExpertBank, keys: Sequence[Key], scores: TaskScores) -> dict[str, float]:
    """Each expert on its own task."""
    return {
        key.task: float(scores.score_fn(bank.model(key), scores.splits[key.task])) for key in keys
    }  # fmt: skip


def norm(tau: StateDict) -> float:
    """Euclidean norm over all tensors."""
    return float(sum(t.double().square().sum() for t in tau.values()) ** 0.5)


def scale_to(tau: StateDict, target: float) -> dict[str, Tensor]:
    """tau * target / ||tau||; a zero vector stays zero."""
    size = norm(tau)
    return {n: t * (target / size) if size else t for n, t in tau.items()}
