"""The select score: one number by which coefficients are compared, from examples that trained and stopped nothing."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from methods.common.choice_scoring import ChoiceScorer, encode_rows
from methods.common.errors import DataError
from methods.merge_early_stop.stopper import evaluation_mode
from tasks.merge.config import MergeSettings
from tasks.train.loading import load_split


class TaskScore(NamedTuple):
    """Bits per byte of the right answers, accuracy per byte, and the accuracy of guessing, on one select part."""

    loss: float
    accuracy: float
    chance: float


class Selector:
    """Scores a model on the select parts of all tasks.

    Args:
        tasks: folder of task sets.
        tokenizer: the base's.
        settings: objective, number of examples, batches.

    Raises:
        DataError: there is no task set below the folder.
    """

    def __init__(self, tasks: Path, tokenizer: Any, settings: MergeSettings) -> None:
        folders = sorted(p.parent for p in tasks.glob("*/task.json"))
        if not folders:
            raise DataError(f"tasks: {tasks} holds no task set; give a folder that the prepare flow wrote")
        self.objective = settings.objective
        self.scorers = {
            folder.name: ChoiceScorer(
                encode_rows(
                    tokenizer,
                    load_split(folder, "select")[: settings.select_examples],
                    max_length=settings.max_length,
                ),
                batch_tokens=settings.batch_tokens,
            )
            for folder in folders
        }

    def __call__(self, model: Any) -> dict[str, TaskScore]:
        found = {}
        with evaluation_mode(model):
            for name, scorer in self.scorers.items():
                scores = scorer(model)
                found[name] = TaskScore(scores.gold_bits_per_byte, scores.accuracy_norm, scores.chance)
        return found

    def mean(self, scores: Mapping[str, TaskScore], base: Mapping[str, TaskScore]) -> float:
        """Mean over tasks of the normalised score; 0 is the base (loss) or guessing (accuracy), 1 is perfect."""
        if self.objective == "loss":
            return fmean(1 - scores[name].loss / base[name].loss for name in scores)
        # a task without choices cannot be got wrong; it counts nothing
        return fmean(
            (s.accuracy - s.chance) / (1 - s.chance) if s.chance < 1 else 0.0 for s in scores.values()
        )


# The base's scores are the same for every method of a run.
_known: dict[tuple[str, ...], dict[str, TaskScore]] = {}
_lock = threading.Lock()


def base_scores(key: tuple[str, ...], selector: Selector, model: Any) -> dict[str, TaskScore]:
    """Scores of the unchanged base, computed once a process for equal `key`s."""
    with _lock:
        if key not in _known:
            if len(_known) > 16:
                _known.clear()
            _known[key] = selector(model)
        return _known[key]
