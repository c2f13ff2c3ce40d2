"""Scores of single items, and what follows from them: metrics, their standard errors and intervals.

The main score of a task, `score`, is `acc_norm` for multiple choice: the share of items whose right answer has the
highest log-likelihood per character, the usual score of such benchmarks when answers differ in length. For free text,
where there is nothing to choose from, it is the mean over items of the probability per byte,
exp(log-likelihood / bytes). Both lie between 0 and 1, and more is better, but they are different things: a mean over
tasks is taken over those with choices, and over free text only where there is nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from methods.common.choice_scoring import shown_length
from methods.common.errors import DataError, NumericalError

MAIN_SCORE = "score"
ITEMS_FILE = "items.parquet"
Z95 = 1.959963984540054


def item_rows(
    task: str, docs: Sequence[dict[str, Any]], answers: Sequence[Sequence[tuple[float, bool]]]
) -> pd.DataFrame:
    """One row an item.

    Args:
        task: name of the task.
        docs: items with `id`, `context`, `choices` and `gold`.
        answers: for each item, (log-likelihood in nats, whether greedy decoding gives it) of each choice.

    Returns:
        columns `task`, `id`, `gold`, `choices` (count), `acc`, `acc_norm`, `exact_match`, `score` (0 to 1), `bits` and
        `bytes` of the right answer, and `loglikelihoods`.

    Raises:
        NumericalError: a log-likelihood is NaN or infinite.
    """
    rows = []
    for doc, given in zip(docs, answers, strict=True):
        scores = np.array([value for value, _ in given])
        if not np.isfinite(scores).all():
            raise NumericalError(f"task {task}: the log-likelihood of item {doc['id'][:12]} is not finite")
        gold = int(doc["gold"])
        lengths = np.array([shown_length(text) for text in doc["choices"]])
        size = len(doc["choices"][gold].encode("utf-8"))
        acc_norm = float(np.argmax(scores / lengths) == gold)
        many = len(scores) > 1
        rows.append(
            {
                "task": task,
                "id": doc["id"],
                "gold": gold,
                "choices": len(scores),
                "acc": float(np.argmax(scores) == gold),
                "acc_norm": acc_norm,
                "exact_match": float(given[gold][1]),
                MAIN_SCORE: acc_norm if many else math.exp(scores[gold] / size),
                "bits": -scores[gold] / math.log(2),
                "bytes": size,
                "loglikelihoods": scores.tolist(),
            }
        )
    return pd.DataFrame(rows)


def main_tasks(items: pd.DataFrame) -> list[str]:
    """The tasks over which the main score is averaged: multiple choice, or free text where there is no other."""
    many = items.groupby("task", sort=True).choices.max() > 1
    return [str(task) for task in (many[many] if many.any() else many).index]


def split_of(metrics: Mapping[str, float]) -> str:
    """The part of the task sets that an evaluation scored, from the names of its metrics."""
    return next(name.split("/")[0] for name in metrics if name.endswith(f"/mean/{MAIN_SCORE}"))


def write_items(items: pd.DataFrame, out: Path) -> None:
    items.to_parquet(out / ITEMS_FILE, index=False)


def read_items(folder: Path) -> pd.DataFrame:
    """The items of an evaluation (see `item_rows`), for paired comparisons between candidates.

    Raises:
        DataError: the folder is no output of the evaluate step.
    """
    path = folder / ITEMS_FILE
    if not path.is_file():
        raise DataError(f"{folder}: holds no {ITEMS_FILE}; give the output of the evaluate step")
    return pd.read_parquet(path)


def mean_stderr(values: np.ndarray) -> float:
    """Standard error of a mean, with the sample's standard deviation."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def ratio_stderr(numerators: np.ndarray, denominators: np.ndarray) -> float:
    """Standard error of sum(numerators) / sum(denominators) over independent items (delta method)."""
    if len(numerators) < 2:
        return 0.0
    ratio = numerators.sum() / denominators.sum()
    residuals = numerators - ratio * denominators
    return float(np.std(residuals, ddof=1) / math.sqrt(len(numerators)) / denominators.mean())


def task_metrics(items: pd.DataFrame, split: str) -> dict[str, float]:
    """Metrics of each task and their means over tasks, each with `_stderr`; the main score's over `main_tasks`.

    Accuracies are only given for multiple choice, exact match only for free text. `bits_per_byte` is of the right
    answers together: sum of bits / sum of bytes.
    """
    metrics: dict[str, float] = {}
    collected: dict[str, list[tuple[float, float]]] = {}
    averaged = main_tasks(items)
    for task, rows in items.groupby("task", sort=True):
        many = bool((rows.choices > 1).any())
        for name in (MAIN_SCORE, *(("acc", "acc_norm") if many else ("exact_match",))):
            values = rows[name].to_numpy(float)
            found = float(values.mean()), mean_stderr(values)
            _put(metrics, f"{split}/{task}/{name}", found)
            if name != MAIN_SCORE or task in averaged:
                collected.setdefault(name, []).append(found)
        bits, size = rows.bits.to_numpy(float), rows.bytes.to_numpy(float)
        collected.setdefault("bits_per_byte", []).append(
            (float(bits.sum() / size.sum()), ratio_stderr(bits, size))
        )
        _put(metrics, f"{split}/{task}/bits_per_byte", collected["bits_per_byte"][-1])
    for name, values in collected.items():
        mean = sum(value for value, _ in values) / len(values)
        error = math.sqrt(sum(error**2 for _, error in values)) / len(values)
        _put(metrics, f"{split}/mean/{name}", (mean, error))
    return metrics


def intervals(metrics: dict[str, float]) -> dict[str, tuple[float, float]]:
    """95 % intervals (normal approximation) of every metric that has a standard error."""
    found = {}
    for name, value in metrics.items():
        if (error := metrics.get(f"{name}_stderr")) is not None:
            low, high = value - Z95 * error, value + Z95 * error
            share = name.rsplit("/", 1)[-1] in (MAIN_SCORE, "acc", "acc_norm", "exact_match")
            found[name] = (max(0.0, low), min(1.0, high)) if share else (low, high)
    return found


def _put(metrics: dict[str, float], name: str, value: tuple[float, float]) -> None:
    metrics[name], metrics[f"{name}_stderr"] = value
