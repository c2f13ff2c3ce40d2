"""Difficulty scores, bins, shares and forgetting on cases that can be done by hand."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from methods.common.errors import ConfigError, DataError
from methods.merge_early_stop import bin_statistics, difficulty_bins, el2n, el2n_scores, forgetting_report
from methods.merge_early_stop.difficulty import forgetting_rates, per_sample_gradient_squares


def test_el2n_is_exact_with_three_classes() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    scores = el2n_scores(probabilities.clamp_min(1e-300).log(), torch.tensor([0, 0, 0]))
    expected = [math.sqrt(0.25 + 0.09 + 0.04), 0.0, math.sqrt(2.0)]
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(0.0, 1000.0), classes=st.integers(2, 12))
def test_el2n_stays_in_its_range(seed: int, scale: float, classes: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(30, classes, generator=draw)
    scores = el2n_scores(logits, torch.randint(0, classes, (30,), generator=draw))
    assert float(scores.min()) >= 0
    assert float(scores.max()) <= math.sqrt(2)


def test_el2n_of_text_is_the_mean_over_target_tokens_within_the_label_words() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 6, generator=draw)
    labels = torch.tensor([[4, -100, 2], [-100, 4, -100]])
    scores = el2n_scores(logits, labels, classes=[2, 4])
    one = el2n_scores(logits[0, [0, 2]][:, [2, 4]], torch.tensor([1, 0]))
    assert float(scores[0]) == pytest.approx(float(one.mean()))
    assert float(scores[1]) == pytest.approx(float(el2n_scores(logits[1, 1:2][:, [2, 4]], torch.tensor([1]))))
    with pytest.raises(DataError, match="not among"):
        el2n_scores(logits, torch.full((2, 3), 5), classes=[2, 4])
    with pytest.raises(DataError, match="no target"):
        el2n_scores(logits, torch.full((2, 3), -100))
    with pytest.raises(DataError, match=r"0\.\.5"):
        el2n_scores(logits[:, 0], torch.tensor([0, 6]))


def test_bins_are_equal_and_break_ties_by_index() -> None:
    bins = difficulty_bins(torch.tensor([0.5, 0.1, 0.5, 0.5, 0.9, 0.1]), 3)
    assert bins.tolist() == [1, 0, 1, 2, 2, 0]
    counts = torch.bincount(difficulty_bins(torch.rand(103, generator=torch.Generator().manual_seed(0)), 10))
    assert int(counts.max() - counts.min()) <= 1
    for wrong in (0, 7):
        with pytest.raises(ConfigError, match=f"bins={wrong}"):
            difficulty_bins(torch.rand(6), wrong)
    with pytest.raises(DataError, match="NaN"):
        difficulty_bins(torch.tensor([0.0, float("nan")]), 2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.body(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


@pytest.fixture
def task() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=draw)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def test_gradient_shares_equal_autograd(task: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = Net()
    x, y = task
    difficulty = torch.rand(60, generator=torch.Generator().manual_seed(1))
    head, whole = [], []
    for i in range(60):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        head.append(sum(float(p.grad.square().sum()) for p in model.head.parameters()))
        whole.append(sum(float(p.grad.square().sum()) for p in model.parameters()))
    where = difficulty_bins(difficulty, 4)
    options = {"bins": 4, "features_fn": lambda m, inputs: m.features(inputs)}
    for kind, squares in (("last_layer", head), ("full", whole)):
        share = torch.bincount(where, weights=torch.tensor(squares, dtype=torch.float64)) / sum(squares)
        got = bin_statistics(model, task, difficulty, gradient=kind, **options)
        np.testing.assert_allclose(got["gradient_share"], share, rtol=1e-5)
        assert got["loss_share"].sum() == pytest.approx(1.0)
        assert got["n"].tolist() == [15] * 4
    model.head.requires_grad_(False)
    frozen = per_sample_gradient_squares(model, task, torch.arange(60))
    assert float((frozen - (torch.tensor(whole) - torch.tensor(head))).abs().max()) < 1e-5
    with pytest.raises(ConfigError, match="features_fn"):
        bin_statistics(model, task, difficulty, gradient="last_layer")
    with pytest.raises(ConfigError, match="gradient='all'"):
        bin_statistics(model, task, difficulty, gradient="all")


def test_el2n_trains_briefly_from_the_base_and_averages_seeds(
    task: tuple[torch.Tensor, torch.Tensor],
) -> None:
    torch.manual_seed(0)
    base = Net()
    before = {n: p.clone() for n, p in base.named_parameters()}
    both = el2n(lambda seed: base, task, step=5, seeds=2, batch_size=16)
    each = [el2n(lambda seed: base, task, step=5, seeds=[s], batch_size=16) for s in (0, 1)]
    torch.testing.assert_close(both, (each[0] + each[1]) / 2)
    assert not torch.equal(each[0], each[1])
    assert all(torch.equal(before[n], p) for n, p in base.named_parameters())
    untouched = el2n(lambda seed: base, task, seeds=1, train=lambda model, data, step, seed: model)
    torch.testing.assert_close(untouched, el2n_scores(base(task[0]).detach(), task[1]))
    with pytest.raises(ConfigError, match="seeds=0"):
        el2n(lambda seed: base, task, seeds=0)


def test_forgetting_by_hand() -> None:
    difficulty = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    expert = torch.tensor([True, True, True, True, True, False])
    merged = torch.tensor([True, True, True, False, False, False])
    flipped = torch.tensor([False, False, False, False, True, True])
    frame = forgetting_rates(expert, merged, difficulty, 3, flipped)
    assert frame["memorised"].tolist() == [2, 2, 1]
    assert frame["forgetting_rate"].tolist() == [0.0, 0.5, 1.0]
    assert frame["flipped_memorised"].tolist() == [0, 0, 1]
    assert frame["flipped_forgotten"].tolist() == [0, 0, 1]
    nothing = forgetting_rates(torch.zeros(6, dtype=torch.bool), merged, difficulty, 3)
    assert nothing["forgetting_rate"].isna().all()


def test_forgetting_report_sums_tasks(task: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.manual_seed(0)
    experts, merged = {"a": Net(), "b": Net()}, Net()
    data = {"a": task, "b": (task[0].flip(0), task[1].flip(0))}
    scores = {t: torch.rand(60, generator=torch.Generator().manual_seed(i)) for i, t in enumerate(data)}
    frame = forgetting_report(experts, merged, data, scores, bins=4)
    total = frame[frame["task"] == "all"]
    parts = frame[frame["task"] != "all"]
    assert total["memorised"].sum() == parts["memorised"].sum()
    by_bin = parts.groupby("bin")[["memorised", "forgotten"]].sum()
    np.testing.assert_allclose(total["forgetting_rate"], by_bin["forgotten"] / by_bin["memorised"])
    with pytest.raises(ConfigError, match="same tasks"):
        forgetting_report(experts, merged, data, {"a": scores["a"]})
