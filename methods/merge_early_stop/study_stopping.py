"""Study of stopping rules: early stopping for merging against what people do, with its confound controls.

Strategies, each giving one checkpoint per task:
    full                every expert at the longest length
    own_optimum         each expert's best checkpoint by its own stop split, among all lengths (the habit to
                        beat)
    epoch_patience_3    transformers' EarlyStoppingCallback: an evaluation per epoch, patience 3, constant
                        rate, best restored
    best_uniform        the one length that is best for the method on the select split (needs the whole sweep)
    <stopper>           the stopper, with each of its settings
    fixed_step          one length for all: the stopper's mean kept step, constant rate
    own_steps_constant  each task's own kept step of the stopper, but constant rate
    selected            greedy checkpoint selection on the merged select score (upper bound, needs all tasks)

The gain over `full` splits into: shorter = fixed_step - full; task-dependent = own_steps_constant -
fixed_step; rate decay = stopper - own_steps_constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor

from methods.merge_early_stop.experts import EARLY_STOP, ExpertBank, Key, accuracy, split_size, train_experts
from methods.merge_early_stop.selection import select_checkpoints
from methods.merge_early_stop.shifted_digits import Bench
from methods.merge_early_stop.sweep import MergeRule, MergeScorer, mean, own_scores

if TYPE_CHECKING:
    from methods.merge_early_stop.study import StudySettings

SELECT_METHOD = "task_arithmetic"


def stopping_frame(
    bank: ExpertBank, bench: Bench, settings: StudySettings, seed: int, sweep: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, float]]:
    """Every strategy under every method.

    Returns: rows (strategy, method) with own and merged test scores and steps trained; rows (strategy, task)
    with kept and trained steps; and the seconds of training and of validation of each stopper.

    `full_share` is the share of optimiser steps against all tasks at the longest length.
    """
    scorer = MergeScorer(bank.base, bench.tasks)
    longest = max(settings.steps)
    chosen: dict[str, tuple[ExpertBank, list[Key], dict[str, int]]] = {}
    costs: dict[str, float] = {}

    def constant(steps: dict[str, int]) -> list[Key]:
        return [Key(task, seed, "constant", s) for task, s in steps.items()]

    def train_constant(steps: dict[str, int]) -> ExpertBank:
        made = ExpertBank(bank.base)
        for task, step in steps.items():
            train_experts(
                bank.base, {task: bench.tasks[task]}, steps=[step], seeds=(seed,), bank=made, lr=settings.lr,
                batch_size=settings.batch_size,
            )  # fmt: skip
        return made

    everywhere = dict.fromkeys(bench.tasks, longest)
    chosen["full"] = bank, constant(everywhere), everywhere
    best_own = {task: _own_optimum(bank, bench, settings, seed, task) for task in bench.tasks}
    chosen["own_optimum"] = bank, constant(best_own), everywhere

    epoch = -(-split_size(next(iter(bench.tasks.values())).train) // settings.batch_size)
    habit = {"warmup": 0, "every": epoch, "patience": 3, "max_reductions": 0}
    for name, constants in {"epoch_patience_3": habit, **settings.stoppers}.items():
        made = train_experts(
            bank.base, bench.tasks, steps=[longest], seeds=(seed,), stopper=constants, lr=settings.lr,
            batch_size=settings.batch_size,
        )  # fmt: skip
        runs = {task: made.run(task, seed, EARLY_STOP) for task in bench.tasks}
        kept = [Key(task, seed, EARLY_STOP, run.kept_step) for task, run in runs.items()]
        chosen[name] = made, kept, {task: run.optimiser_steps for task, run in runs.items()}
        costs[f"{name}/training"] = sum(run.seconds - run.eval_seconds for run in runs.values())
        costs[f"{name}/validation"] = sum(run.eval_seconds for run in runs.values())

    judged = next(iter(settings.stoppers))
    own_steps = {key.task: max(1, key.step) for key in chosen[judged][1]}
    fixed = dict.fromkeys(bench.tasks, max(1, round(mean(own_steps))))
    chosen["fixed_step"] = train_constant(fixed), constant(fixed), fixed
    chosen["own_steps_constant"] = train_constant(own_steps), constant(own_steps), own_steps

    if settings.select_budget:
        steps = _selected(bank, bench, settings, seed, sweep, scorer)
        chosen["selected"] = bank, constant(steps), everywhere

    rows, step_rows = [], []
    for strategy, (source, keys, trained) in chosen.items():
        own = own_scores(source, keys, scorer.test)
        taus = [source.tau(key) for key in keys]
        for method, rule in settings.stopping_rules.items():
            rows.append(
                strategy_row(strategy, method, taus, rule, scorer, seed, own, sum(trained.values()), longest)
            )
        step_rows += [
            {
                "strategy": strategy,
                "task": key.task,
                "kept_step": key.step,
                "trained_steps": trained[key.task],
            }
            for key in keys
        ]
    for method, rule in settings.stopping_rules.items():
        best = best_length(sweep, method)
        keys = constant(dict.fromkeys(bench.tasks, int(best["step"])))
        taus = [bank.tau(key) for key in keys]
        own = own_scores(bank, keys, scorer.test)
        steps_used = int(best["step"]) * len(keys)
        rows.append(strategy_row("best_uniform", method, taus, rule, scorer, seed, own, steps_used, longest))
    return pd.DataFrame(rows), pd.DataFrame(step_rows), costs


def best_length(sweep: pd.DataFrame, method: str) -> dict[str, Any]:
    """The sweep's row with the method's best select score; the shortest length wins a draw."""
    rows = sweep[sweep["method"] == method].sort_values("step").to_dict("records")
    return {str(k): v for k, v in max(rows, key=lambda row: (row["select"], -row["step"])).items()}


def _own_optimum(bank: ExpertBank, bench: Bench, settings: StudySettings, seed: int, task: str) -> int:
    """The length with the best score on the task's own stop split; the shortest wins a draw."""
    split = bench.tasks[task].get("stop", task)
    scores = {s: accuracy(bank.model(Key(task, seed, "constant", s)), split) for s in settings.steps}
    return max(scores, key=lambda s: (scores[s], -s))


def _selected(
    bank: ExpertBank,
    bench: Bench,
    settings: StudySettings,
    seed: int,
    sweep: pd.DataFrame,
    scorer: MergeScorer,
) -> dict[str, int]:
    method = SELECT_METHOD if SELECT_METHOD in settings.methods else settings.methods[0]
    best = best_length(sweep, method)
    rule = settings.rules[method]

    def objective(steps: dict[str, int]) -> float:
        taus = [bank.tau(Key(task, seed, "constant", s)) for task, s in steps.items()]
        return mean(scorer.select(scorer.model(scorer.delta(taus, rule, seed), float(best["lambda"]))))

    start = dict.fromkeys(bench.tasks, int(best["step"]))
    found = select_checkpoints(
        {task: sorted(settings.steps) for task in bench.tasks},
        objective,
        start=start,
        budget=settings.select_budget,
    )
    return found.steps


def strategy_row(
    strategy: str,
    method: str,
    taus: list[dict[str, Tensor]],
    rule: MergeRule,
    scorer: MergeScorer,
    seed: int,
    own: dict[str, float],
    trained: int,
    longest: int,
) -> dict[str, Any]:
    """Merge one checkpoint per task (`taus`) by the rule; `trained` optimiser steps over all tasks made them."""
    merged, lambda_, select = scorer.merged(taus, rule, seed)
    return {
        "strategy": strategy, "method": method, "own": mean(own), "own_min": min(own.values()),
        "merged": mean(merged), "merged_min": min(merged.values()), "lambda": lambda_, "select": select,
        "optimiser_steps": trained, "full_share": trained / (longest * len(taus)),
    }  # fmt: skip
