"""Experts that merge: task-dependent early stopping, merging operators, and the diagnostics of over-training.

Horoi, Wolf, Belilovsky, Dziugaite, "From Memorization to Parameter Interference: How Overtraining Experts
Harms Model Merging", ICML 2026 (arXiv 2506.14126).
"""

from __future__ import annotations

from typing import Any

from methods.merge_early_stop.difficulty import (
    bin_statistics,
    difficulty_bins,
    el2n,
    el2n_scores,
    forgetting_rates,
    forgetting_report,
)
from methods.merge_early_stop.experts import STEPS, ExpertBank, Key, TaskSplits, train_experts
from methods.merge_early_stop.interference import (
    Interference,
    increments,
    interference,
    lora_cosine,
    lora_gram,
)
from methods.merge_early_stop.merge import (
    LAMBDAS,
    MergeResult,
    merge,
    merge_direction,
    task_vector,
    tune_lambda,
)
from methods.merge_early_stop.operators import METHODS, Operator, average, dare, task_arithmetic, ties
from methods.merge_early_stop.selection import Selection, select_checkpoints
from methods.merge_early_stop.stopper import PRESETS, MergeEarlyStopping
from methods.merge_early_stop.sweep import MergeRule, Sweep, length_sweep

__all__ = [
    "LAMBDAS",
    "METHODS",
    "PRESETS",
    "STEPS",
    "ExpertBank",
    "Interference",
    "Key",
    "MergeEarlyStopping",
    "MergeEarlyStoppingCallback",
    "MergeResult",
    "MergeRule",
    "Operator",
    "Selection",
    "Sweep",
    "TaskSplits",
    "average",
    "bin_statistics",
    "dare",
    "difficulty_bins",
    "el2n",
    "el2n_scores",
    "forgetting_rates",
    "forgetting_report",
    "increments",
    "interference",
    "latest_resumable_checkpoint",
    "length_sweep",
    "lora_cosine",
    "lora_gram",
    "merge",
    "merge_direction",
    "select_checkpoints",
    "task_arithmetic",
    "task_vector",
    "ties",
    "train_experts",
    "tune_lambda",
]

_LAZY = ("MergeEarlyStoppingCallback", "latest_resumable_checkpoint")  # these need transformers


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from methods.merge_early_stop import trainer_callback

        return getattr(trainer_callback, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
