"""Experts that merge: task-dependent early stopping, merging operators, and the diagnostics of over-training.

Horoi, Wolf, Belilovsky, Dziugaite, "From Memorization to Parameter Interference: How Overtraining Experts
Harms
Model Merging", ICML 2026 (arXiv 2506.14126).
"""

from __future__ import annotations

from typing import Any

from methods.merge_early_stop.merge import (
    LAMBDAS,
    MergeResult,
    merge,
    merge_direction,
    task_vector,
    tune_lambda,
)
from methods.merge_early_stop.operators import METHODS, Operator, average, dare, task_arithmetic, ties
from methods.merge_early_stop.stopper import PRESETS, MergeEarlyStopping

__all__ = [
    "LAMBDAS",
    "METHODS",
    "PRESETS",
    "MergeEarlyStopping",
    "MergeEarlyStoppingCallback",
    "MergeResult",
    "Operator",
    "average",
    "dare",
    "latest_resumable_checkpoint",
    "merge",
    "merge_direction",
    "task_arithmetic",
    "task_vector",
    "ties",
    "tune_lambda",
]

_LAZY = ("MergeEarlyStoppingCallback", "latest_resumable_checkpoint")  # these need transformers


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from methods.merge_early_stop import trainer_callback

        return getattr(trainer_callback, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
