"""Study of difficulty, memorisation and forgetting, with the controls of section 2.3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from methods.merge_early_stop.difficulty import bin_statistics, difficulty_bins, el2n, forgetting_report
from methods.merge_early_stop.experts import ExpertBank, Key, TaskSplits, train_experts
from methods.merge_early_stop.shifted_digits import Bench, DigitNet, train_base
from methods.merge_early_stop.sweep import MergeScorer, TaskScores, mean, own_scores

if TYPE_CHECKING:
    from methods.merge_early_stop.study import StudySettings

FORGET_METHOD = "task_arithmetic"


def difficulty_frames(
    bank: ExpertBank, bench: Bench, settings: StudySettings, seed: int, sweep: pd.DataFrame
) -> dict[str, pd.DataFrame]:
    """Frames by name, and what a row of each is.

    `difficulty` (task), `shares` (step, bin), `forgetting` (difficulty source, bin), `dropped` (share left
    out).
    """
    base = bank.base
    groups = [range(settings.el2n_seeds), range(settings.el2n_seeds, 2 * settings.el2n_seeds)]
    other = train_base(
        bench.base,
        steps=settings.base_steps,
        batch_size=settings.batch_size,
        seed=seed + 1000,
        channels=(8, 16),
        hidden=32,
    )  # the independent architecture of control (c)
    scores: dict[str, Tensor] = {}
    foreign: dict[str, Tensor] = {}
    rows = []
    for task, splits in bench.tasks.items():
        first, second = (_el2n(base, splits, settings, group) for group in groups)
        scores[task] = (first + second) / 2
        foreign[task] = _el2n(other, splits, settings, groups[0])
        row: dict[str, Any] = {
            "task": task, "spearman": float(spearmanr(first, second).statistic),
            "spearman_other_network": float(spearmanr(first, foreign[task]).statistic),
            "smallest": float(scores[task].min()), "largest": float(scores[task].max()),
        }  # fmt: skip
        flipped = bench.flipped[task]
        if bool(flipped.any()):
            top = difficulty_bins(first, settings.bins) >= settings.bins - settings.bins // 5
            row |= {
                "flipped_in_top_fifth": float((flipped & top).sum() / flipped.sum()),
                "top_fifth_precision": float((flipped & top).sum() / top.sum()),
            }
        rows.append(row)
    sources = {"same_network": scores, "other_network": foreign}
    return {
        "difficulty": pd.DataFrame(rows),
        "shares": _shares(bank, bench, settings, seed, scores),
        "forgetting": _forgetting(bank, bench, settings, seed, sweep, sources),
        "dropped": _dropped(bank, bench, settings, seed, sweep, scores),
    }  # fmt: skip


def _el2n(base: nn.Module, splits: TaskSplits, settings: StudySettings, seeds: range) -> Tensor:
    return el2n(
        lambda _: base, splits.train, step=settings.el2n_step, seeds=list(seeds), lr=settings.lr,
        batch_size=settings.batch_size,
    )  # fmt: skip


def _features(model: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(model, DigitNet)
    return model.features(x)


def _shares(
    bank: ExpertBank, bench: Bench, settings: StudySettings, seed: int, scores: dict[str, Tensor]
) -> pd.DataFrame:
    """Means over tasks of each bin's accuracy, loss, and shares.

    The shares are those of the loss and of the last layer's squared gradient.
    """
    frames = []
    for step in settings.steps:
        for task, splits in bench.tasks.items():
            model = bank.model(Key(task, seed, "constant", step))
            frame = bin_statistics(
                model,
                splits.train,
                scores[task],
                bins=settings.bins,
                gradient="last_layer",
                features_fn=_features,
            )
            frames.append(frame.assign(step=step, task=task))
    together = pd.concat(frames).drop(columns="task")
    return together.groupby(["step", "bin"], as_index=False).mean()


def _forgetting(
    bank: ExpertBank,
    bench: Bench,
    settings: StudySettings,
    seed: int,
    sweep: pd.DataFrame,
    sources: dict[str, dict[str, Tensor]],
) -> pd.DataFrame:
    """Forgetting by the merge of the longest-trained experts, binned by each difficulty.

    lambda is that of the sweep.
    """
    longest = max(settings.steps)
    method = FORGET_METHOD if FORGET_METHOD in settings.methods else settings.methods[0]
    keys = [Key(task, seed, "constant", longest) for task in bench.tasks]
    scorer = MergeScorer(bank.base, bench.tasks)
    rule = settings.rules[method]
    at = sweep[(sweep["method"] == method) & (sweep["step"] == longest)].iloc[0]
    merged = scorer.model(scorer.delta([bank.tau(k) for k in keys], rule, seed), float(at["lambda"]))
    experts = {key.task: bank.model(key) for key in keys}
    data = {task: splits.train for task, splits in bench.tasks.items()}
    noisy = any(bool(f.any()) for f in bench.flipped.values())
    return pd.concat([
        forgetting_report(
            experts, merged, data, scores, bins=settings.bins, flipped=bench.flipped if noisy else None
        ).assign(difficulty=name, method=method, step=longest)
        for name, scores in sources.items()
    ], ignore_index=True)  # fmt: skip


def _dropped(
    bank: ExpertBank,
    bench: Bench,
    settings: StudySettings,
    seed: int,
    sweep: pd.DataFrame,
    scores: dict[str, Tensor],
) -> pd.DataFrame:
    """Control (b): retrain without the hardest examples.

    Own and merged scores against those with all of them.
    """
    if not settings.drop_fractions:
        return pd.DataFrame(columns=["dropped", "own", "merged", "step"])
    method = FORGET_METHOD if FORGET_METHOD in settings.methods else settings.methods[0]
    rule = settings.rules[method]
    scorer = MergeScorer(bank.base, bench.tasks)
    test = TaskScores(bench.tasks, "test")
    rows = []
    for share in (0.0, *settings.drop_fractions):
        tasks = {}
        for task, splits in bench.tasks.items():
            assert isinstance(splits.train, tuple)
            keep = (
                torch.argsort(scores[task], stable=True)[: round((1 - share) * len(scores[task]))]
                .sort()
                .values
            )
            tasks[task] = TaskSplits((splits.train[0][keep], splits.train[1][keep]))
        made = train_experts(
            bank.base,
            tasks,
            steps=[settings.drop_steps],
            seeds=(seed,),
            lr=settings.lr,
            batch_size=settings.batch_size,
        )
        keys = [Key(task, seed, "constant", settings.drop_steps) for task in tasks]
        merged, _, _ = scorer.merged([made.tau(k) for k in keys], rule, seed)
        own = own_scores(made, keys, test)
        rows.append({"dropped": share, "own": mean(own), "merged": mean(merged), "step": settings.drop_steps})
    return pd.DataFrame(rows)
