"""Metrics from item scores: means, standard errors against a bootstrap, intervals."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from methods.common.errors import DataError, NumericalError
from tasks.evaluate.items import (
    MAIN_SCORE,
    intervals,
    item_rows,
    mean_stderr,
    ratio_stderr,
    read_items,
    task_metrics,
    write_items,
)

DOCS = [
    {"id": "a", "context": "x", "choices": [" yes", " definitely"], "gold": 1},
    {"id": "b", "context": "y", "choices": [" yes", " no"], "gold": 0},
]


def test_an_item_by_hand() -> None:
    rows = item_rows("t", DOCS, [[(-2.0, False), (-3.0, True)], [(-1.0, False), (-4.0, False)]])
    assert rows.acc.tolist() == [0.0, 1.0]  # -2 beats -3
    assert rows.acc_norm.tolist() == [1.0, 1.0]  # but -3 over 10 characters beats -2 over 3
    assert rows.exact_match.tolist() == [1.0, 0.0]
    assert rows[MAIN_SCORE].tolist() == rows.acc_norm.tolist()
    assert rows.bits.tolist() == pytest.approx([3 / math.log(2), 1 / math.log(2)])
    assert rows.bytes.tolist() == [11, 4]


def test_free_text_scores_probability_per_byte() -> None:
    rows = item_rows("t", [{"id": "a", "context": "x", "choices": [" für"], "gold": 0}], [[(-5.0, False)]])
    assert rows[MAIN_SCORE][0] == pytest.approx(math.exp(-5.0 / 5))  # ü has two bytes
    metrics = task_metrics(rows, "test")
    assert "test/t/acc" not in metrics
    assert metrics["test/t/exact_match"] == 0.0


def test_means_over_tasks_and_their_errors() -> None:
    rng = np.random.default_rng(0)
    frames = []
    for task, count in (("one", 40), ("two", 90)):
        docs = [{"id": str(i), "context": "", "choices": [" a", " b"], "gold": 0} for i in range(count)]
        answers = [[(float(x), False), (-1.0, False)] for x in rng.normal(-1, 1, count)]
        frames.append(item_rows(task, docs, answers))
    metrics = task_metrics(pd.concat(frames), "test")
    one, two = frames
    assert metrics["test/mean/acc"] == pytest.approx((one.acc.mean() + two.acc.mean()) / 2)
    error = math.hypot(one.acc.sem(), two.acc.sem()) / 2
    assert metrics["test/mean/acc_stderr"] == pytest.approx(error)
    low, high = intervals(metrics)["test/mean/acc"]
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=1e-3)


def test_errors_agree_with_a_bootstrap() -> None:
    rng = np.random.default_rng(1)
    size = rng.integers(2, 30, 300).astype(float)
    bits = size * rng.gamma(2.0, 0.5, 300)
    picks = rng.integers(0, 300, (4000, 300))
    means = bits[picks].mean(1)
    ratios = bits[picks].sum(1) / size[picks].sum(1)
    assert mean_stderr(bits) == pytest.approx(means.std(), rel=0.06)
    assert ratio_stderr(bits, size) == pytest.approx(ratios.std(), rel=0.06)


def test_shares_keep_within_zero_and_one() -> None:
    rows = item_rows("t", DOCS, [[(-9.0, False), (-1.0, True)], [(-1.0, False), (-4.0, False)]])
    low, high = intervals(task_metrics(rows, "test") | {"test/t/acc_stderr": 0.3})["test/t/acc"]
    assert high == 1.0
    assert low < 1.0


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_scores_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(NumericalError, match="task t: the log-likelihood of item a"):
        item_rows("t", DOCS[:1], [[(value, False), (-1.0, False)]])


def test_items_come_back_as_written(tmp_path: Path) -> None:
    rows = item_rows("t", DOCS, [[(-2.0, False), (-3.0, True)], [(-1.0, False), (-4.0, False)]])
    write_items(rows, tmp_path)
    back = read_items(tmp_path)
    assert back.loglikelihoods.map(list).tolist() == rows.loglikelihoods.tolist()
    pd.testing.assert_frame_equal(back.drop(columns="loglikelihoods"), rows.drop(columns="loglikelihoods"))
    with pytest.raises(DataError, match=r"items\.parquet"):
        read_items(tmp_path / "none")
