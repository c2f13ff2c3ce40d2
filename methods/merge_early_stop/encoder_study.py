"""The study on a sentence encoder: training length and stopping rules, full fine-tuning and LoRA (bar 11).

Laid down before the first run, so that the result cannot choose the question:

    table    own and merged score (average, task arithmetic, TIES) for every length, kind of training and
             seed; lambda is chosen anew on the select split for every cell.
    effect   over-training harms merging if the length with the best *select* score beats the longest length
             on the test split by at least one point, in every seed. The best cell of the test row itself is
             not used: the largest of seven noisy numbers always "beats" the last.
    stopping `MergeEarlyStopping` against the habit: transformers' EarlyStoppingCallback, an evaluation an
             epoch, patience 3, best checkpoint restored; both merged by task arithmetic and by TIES as
             mergekit does it (trim per tensor), lambda chosen alike.

One job is one (kind, seed): parts of the tasks, order, dropout and LoRA's start are drawn from the seed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from methods.common.errors import ConfigError
from methods.merge_early_stop.encoder import LORA_TARGETS, EncoderBench
from methods.merge_early_stop.experts import EARLY_STOP, ExpertBank, Key, accuracy, split_size, train_experts
from methods.merge_early_stop.operators import Operator
from methods.merge_early_stop.study_stopping import best_length, strategy_row
from methods.merge_early_stop.sweep import MergeRule, MergeScorer, Sweep, length_sweep, own_scores

KINDS = ("full", "lora")
HABIT = "epoch_patience_3"
# Sums of task vectors want small factors, disjoint means large ones.
SUMS = (0.1, 0.2, 0.3, 0.45, 0.65, 1.0)
MEANS = (0.3, 0.6, 1.0, 1.5, 2.2, 3.2)
SWEPT: dict[str, MergeRule] = {
    "average": MergeRule(Operator("average"), (1.0,)),
    "task_arithmetic": MergeRule(Operator("task_arithmetic"), SUMS),
    "ties": MergeRule(Operator("ties"), MEANS),
}
STOPPED: dict[str, MergeRule] = {
    "average": SWEPT["average"],
    "task_arithmetic": SWEPT["task_arithmetic"],
    "ties_mergekit": MergeRule(Operator("ties", trim="per_tensor"), MEANS),
}


@dataclass(frozen=True)
class EncoderSettings:
    """What the encoder study computes.

    Args:
        steps: lengths of the sweep in optimiser steps; the largest is "trained to the end".
        kinds: `full` (all layers of the encoder) and `lora` (adapters on all linear layers).
        rates: peak learning rate of each kind, constant after `warmup` steps.
        stopper: constants of the judged `MergeEarlyStopping`; its warm-up is `warmup`.
        watchers: constants of further stoppers that watch the judged one's runs.
    """

    steps: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    seeds: tuple[int, ...] = (0, 1)
    kinds: tuple[str, ...] = KINDS
    rates: Mapping[str, float] = field(default_factory=lambda: {"full": 1e-4, "lora": 1e-3})
    rank: int = 8
    batch_size: int = 32
    warmup: int = 8
    weight_decay: float = 0.01
    stopper: Mapping[str, Any] = field(
        default_factory=lambda: {"every": 5, "patience": 3, "factor": 0.5, "max_reductions": 2}
    )
    watchers: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {"early_stop_aggressive": {"every": 5, "patience": 1, "max_reductions": 0}}
    )

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS or kind not in self.rates]
        if unknown or not self.kinds:
            raise ConfigError(
                f"kinds={list(self.kinds)} must be some of {', '.join(KINDS)}, each with a rate"
            )
        if len(self.steps) < 2 or min(self.steps) < 1 or not self.seeds:
            raise ConfigError(
                f"steps={list(self.steps)} needs two positive lengths, seeds={list(self.seeds)} one"
            )

    def lora(self, kind: str) -> Any:
        """The adapter's configuration, None for full fine-tuning; alpha is twice the rank."""
        if kind == "full":
            return None
        from peft import LoraConfig

        return LoraConfig(r=self.rank, lora_alpha=2 * self.rank, target_modules=LORA_TARGETS)


def encoder_jobs(settings: EncoderSettings) -> list[tuple[str, int]]:
    """The (kind, seed) pairs of a study."""
    return [(kind, seed) for seed in settings.seeds for kind in settings.kinds]


def encoder_job(
    bench: EncoderBench,
    kind: str,
    seed: int,
    settings: EncoderSettings,
    bank: str | Path | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, pd.DataFrame]:
    """Frames `sweep`, `per_task`, `stopping`, `stop_steps` and `costs` of one kind and seed.

    Args:
        bench: the tasks as drawn for this seed.
        bank: a folder for the experts, from which a killed job goes on.
        progress: called with a line after each part.

    `costs` holds seconds and is not the same in two equal runs; all others are.
    """
    begin = time.perf_counter()
    longest = max(settings.steps)
    epoch = -(-split_size(next(iter(bench.tasks.values())).train) // settings.batch_size)
    experts = ExpertBank(bench.base, bank)
    common: dict[str, Any] = {
        "seeds": (seed,), "lora": settings.lora(kind), "lr": settings.rates[kind], "bank": experts,
        "weight_decay": settings.weight_decay, "batch_size": settings.batch_size,
    }  # fmt: skip
    habit = {"warmup": 0, "every": epoch, "patience": 3, "max_reductions": 0}
    train_experts(
        bench.base,
        bench.tasks,
        steps=settings.steps,
        warmup=settings.warmup,
        watchers={HABIT: habit},
        **common,
    )
    train_experts(
        bench.base, bench.tasks, steps=[longest], stopper={"warmup": settings.warmup, **settings.stopper},
        watchers={n: {"warmup": settings.warmup, **w} for n, w in settings.watchers.items()}, **common,
    )  # fmt: skip
    trained = time.perf_counter()
    progress(f"{kind}, seed {seed}: experts trained in {trained - begin:.0f} s")
    scorer = MergeScorer(bench.base, bench.tasks)
    sweep = Sweep()
    for method, rule in SWEPT.items():
        sweep += _kept_sweep(experts, bench, settings, seed, method, rule, scorer)
    swept = time.perf_counter()
    progress(f"{kind}, seed {seed}: lengths swept in {swept - trained:.0f} s")
    stopping, stop_steps = _stopping(experts, bench, settings, seed, sweep.to_frame(), scorer)
    done = time.perf_counter()
    progress(f"{kind}, seed {seed}: stopping rules compared in {done - swept:.0f} s")
    judged = [experts.run(task, seed, EARLY_STOP) for task in bench.tasks]
    times = {
        "train": trained - begin, "sweep": swept - trained, "stopping": done - swept,
        "stopper": sum(run.seconds for run in judged), "validation": sum(run.eval_seconds for run in judged),
    }  # fmt: skip
    frames = {
        "sweep": sweep.to_frame(), "per_task": sweep.per_task(), "stopping": stopping, "stop_steps": stop_steps,
        "costs": pd.DataFrame([{"part": name, "seconds": value} for name, value in times.items()]),
    }  # fmt: skip
    return {name: frame.assign(kind=kind, seed=seed) for name, frame in frames.items()}


Rows = list[dict[str, Any]]


def _kept(bank: ExpertBank, name: str, make: Callable[[], dict[str, Rows]]) -> dict[str, Rows]:
    """What `make` gives, or gave before the job was killed: kept beside the experts."""
    if bank.folder is None:
        return make()
    path = bank.folder / f"{name}.json"
    if not path.is_file():
        made = json.dumps(make())
        path.with_suffix(".part").write_text(made, encoding="utf-8")
        path.with_suffix(".part").replace(path)
    found: dict[str, Rows] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _kept_sweep(
    bank: ExpertBank,
    bench: EncoderBench,
    settings: EncoderSettings,
    seed: int,
    method: str,
    rule: MergeRule,
    scorer: MergeScorer,
) -> Sweep:
    """The lengths under one method.

    The average has no lambda: its norm-matched control would be that of task arithmetic.
    """

    def make() -> dict[str, Rows]:
        made = length_sweep(
            bank, bench.tasks, steps=settings.steps, methods={method: rule}, seeds=(seed,), scorer=scorer,
            norm_matched=method != "average",
        )  # fmt: skip
        return {"rows": made.rows, "tasks": made.tasks}

    return Sweep(**_kept(bank, f"sweep_{method}", make))


def _stopping(
    bank: ExpertBank,
    bench: EncoderBench,
    settings: EncoderSettings,
    seed: int,
    sweep: pd.DataFrame,
    scorer: MergeScorer,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows (strategy, method) with own and merged test scores; rows (strategy, task) with steps.

    Strategies: `full`, `own_optimum` (each expert's best swept length on its own stop split), the habit, the
    judged stopper, its watchers, and `best_uniform` (one length for all, by the method's select score).
    """
    longest = max(settings.steps)
    everywhere = dict.fromkeys(bench.tasks, longest)

    def constant(steps: Mapping[str, int]) -> list[Key]:
        return [Key(task, seed, "constant", step) for task, step in steps.items()]

    chosen = {"full": (constant(everywhere), everywhere)}
    best = {task: _own_optimum(bank, bench, settings, seed, task) for task in bench.tasks}
    chosen["own_optimum"] = constant(best), everywhere
    for name in (HABIT, EARLY_STOP, *settings.watchers):
        runs = {task: bank.run(task, seed, name) for task in bench.tasks}
        keys = [Key(task, seed, name, run.kept_step) for task, run in runs.items()]
        chosen[name] = keys, {task: run.optimiser_steps for task, run in runs.items()}

    def measure(strategy: str, keys: list[Key], spent: int) -> dict[str, Rows]:
        own = own_scores(bank, keys, scorer.test)
        taus = [bank.tau(key) for key in keys]
        made = [
            strategy_row(strategy, m, taus, r, scorer, seed, own, spent, longest) for m, r in STOPPED.items()
        ]
        return {"rows": made}

    rows: Rows = []
    steps: Rows = []
    for strategy, (keys, trained) in chosen.items():
        spent = sum(trained.values())
        rows += _kept(bank, f"stopping_{strategy}", partial(measure, strategy, keys, spent))["rows"]
        steps += [
            {"strategy": strategy, "task": k.task, "kept_step": k.step, "trained_steps": trained[k.task]}
            for k in keys
        ]
    for method in SWEPT:  # the sweep has measured these merges already
        row = best_length(sweep, method)
        share = row["step"] / longest
        rows.append({
            "strategy": "best_uniform", "method": method, "own": row["own"], "merged": row["merged"],
            "merged_min": row["merged_min"], "lambda": row["lambda"], "select": row["select"],
            "optimiser_steps": int(row["step"]) * len(bench.tasks), "full_share": share,
        })  # fmt: skip
    return pd.DataFrame(rows), pd.DataFrame(steps)


def _own_optimum(
    bank: ExpertBank, bench: EncoderBench, settings: EncoderSettings, seed: int, task: str
) -> int:
    """The swept length with the best score on the task's own stop split; the shortest wins a draw."""
    split = bench.tasks[task].get("stop", task)
    scores = {s: accuracy(bank.model(Key(task, seed, "constant", s)), split) for s in settings.steps}
    return max(scores, key=lambda s: (scores[s], -s))
