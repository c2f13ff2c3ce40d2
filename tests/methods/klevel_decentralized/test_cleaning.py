"""Data cleaning on scikit-learn's breast cancer table: agents without a server find out whose labels are wrong."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from methods.common.errors import ConfigError, DataError
from methods.klevel_decentralized import (
    DKVR,
    Graph,
    centralised_solution,
    data_cleaning,
    hypergradient_oracle,
)


def table(sources: int = 4, corrupted: int = 1, columns: int = 5) -> list[tuple[Any, Any, Any]]:
    """Validation, sources' rows and trusted rows; the labels of the last sources are turned round."""
    rows, labels = load_breast_cancer(return_X_y=True)
    rows = StandardScaler().fit_transform(rows)[:, :columns]
    order = np.random.default_rng(0).permutation(len(rows))
    source = np.arange(len(rows)) % sources
    noisy = np.where(source >= sources - corrupted, 1 - labels, labels)
    none = np.zeros(len(rows), dtype=int)
    validation, trusted, rest = order[:160], order[160:200], order[200:]
    return [
        (rows[validation], labels[validation], none[validation]),
        (rows[rest], noisy[rest], source[rest]),
        (rows[trusted], labels[trusted], none[trusted]),
    ]


def test_the_corrupted_source_loses_its_weight_as_at_the_centralised_optimum() -> None:
    task = data_cleaning(table(), agents=4, classes=2, sources=4)
    best = centralised_solution(task.problem, task.full, tolerance=1e-4)
    trust = task.weights(best.xs[0])
    assert trust[3] < 0.5 * trust[:3].min()
    run = DKVR(
        task.problem, Graph.ring(4), task.sample, lr=1.0, lower_lr=0.5, alpha=0.05, schedule="constant"
    )
    run.run(1_000)
    found = hypergradient_oracle(task.problem, run.mean_x1, task.full)
    assert found.value <= 1.02 * best.value
    trust = task.weights(run.mean_x1)
    assert trust[3] < 0.5 * trust[:3].min()


def test_the_second_level_is_scikit_learns_weighted_regression() -> None:
    task = data_cleaning(table(), agents=4, classes=2, sources=4, mu=0.05)
    x1 = torch.tensor([0.3, -0.2, 1.0, -2.0], dtype=torch.float64)
    found = hypergradient_oracle(task.problem, x1, task.full).xs[1].view(-1, 2)
    part = task.full[1]
    rows, labels = part["rows"].flatten(0, 1).numpy(), part["labels"].flatten().numpy()
    trust = (part["source_one_hot"] @ torch.sigmoid(x1)).flatten().numpy()
    # Two classes with their own weights: their difference is the peer's, with twice its strength of ridge.
    peer = LogisticRegression(C=2 / (0.05 * len(rows)), fit_intercept=False, tol=1e-10, max_iter=10_000)
    peer.fit(rows, labels, sample_weight=trust)
    np.testing.assert_allclose((found[:, 1] - found[:, 0]).numpy(), peer.coef_[0], atol=1e-5)


def test_tables_that_do_not_fit_are_refused() -> None:
    good = table()
    rows, labels, source = good[1]
    for part, said in (
        ((rows, labels[:-1], source), "sources: rows"),
        ((rows * np.nan, labels, source), "sources: rows hold values that are not finite"),
        ((rows, labels + 1, source), r"sources: labels must be whole numbers of 0 .. 1"),
        ((rows, labels, source + 9), r"sources: source must be whole numbers of 0 .. 3"),
        ((rows[:2], labels[:2], source[:2]), "sources: 2 rows for 4 agents"),
        ((rows[:, :3], labels, source), "columns"),
    ):
        with pytest.raises(DataError, match=said):
            data_cleaning([good[0], part, good[2]], agents=4, classes=2, sources=4)
    with pytest.raises(ConfigError, match="mu 0"):
        data_cleaning(good, agents=4, classes=2, sources=4, mu=0)
    with pytest.raises(ConfigError, match="parts: 2"):
        data_cleaning(good[:2], agents=4, classes=2, sources=4)
