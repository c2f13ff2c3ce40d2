"""The projection against a conic solver, its properties, its gradients and its errors."""

import gc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.common.errors import ConfigError, DataError
from methods.fairness_layer import (
    AffineRows,
    EqualizedOddsMean,
    FairnessLayer,
    InfeasibleParityError,
    MeanParity,
    MeanResidual,
)
from methods.fairness_layer.projection import project
from tests.methods.fairness_layer.oracle import conic, kkt_residual


def two_groups(draw, b):
    groups = np.zeros(b, dtype=int)
    groups[draw.choice(b, size=int(draw.integers(1, b)), replace=False)] = 1
    return groups


def one_row_problem(seed, largest=400):
    draw = np.random.default_rng(seed)
    b = int(np.exp(draw.uniform(np.log(2), np.log(largest))))
    groups = two_groups(draw, b)
    z = draw.normal(size=b) + draw.uniform(-1, 1) * groups
    low, high = draw.choice([-np.inf, -1.0, 0.0]), draw.choice([np.inf, 0.5, 1.0])
    return z, groups, float(draw.choice([0.0, draw.uniform(0, 0.2)])), low, high


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_one_row_equals_the_conic_solver(first):
    acted, apart = 0, []
    for seed in range(first, first + 50):
        z, groups, eps, low, high = one_row_problem(seed)
        rows = MeanParity().rows(groups[:, None])
        found = project(z, rows.matrix, rows.centre, eps, low, high)
        gap = abs(float(rows.matrix[0] @ found.scores))
        assert gap <= eps + 1e-10
        assert found.scores.min() >= low
        assert found.scores.max() <= high
        problem = (z, rows.matrix, rows.centre, eps, low, high)
        assert kkt_residual(*problem, found.scores, found.nu) <= 1e-12, seed
        apart.append(np.abs(found.scores - conic(*problem)).max())
        acted += bool(found.active[0])
    assert acted > 20
    # An interior point's entries near the box are off by the square root of its tolerance on a few problems, where
    # the certificate above shows who is right.
    assert max(apart) <= 1e-6
    assert np.mean(np.array(apart) <= 1e-7) >= 0.96


def test_one_row_of_4096_equals_the_conic_solver():
    draw = np.random.default_rng(3)
    groups = two_groups(draw, 4096)
    z = draw.normal(size=4096) + 0.4 * groups
    rows = MeanParity().rows(groups[:, None])
    found = project(z, rows.matrix, rows.centre, 0.01, -1.0, 1.0)
    problem = (z, rows.matrix, rows.centre, 0.01, -1.0, 1.0)
    assert kkt_residual(*problem, found.scores, found.nu) <= 1e-12
    assert np.abs(found.scores - conic(*problem)).max() <= 1e-6


@pytest.mark.parametrize("box", [(-np.inf, np.inf), (-0.8, 1.5)])
def test_fourteen_groups_in_91_pairs_equal_the_conic_solver(box):
    draw = np.random.default_rng(1)
    groups = np.concatenate((np.arange(14), draw.integers(0, 14, 286)))
    z = draw.normal(size=300) + 0.1 * groups
    rows = MeanParity().rows(groups[:, None])
    assert len(rows.matrix) == 91
    found = project(z, rows.matrix, rows.centre, 0.01, *box)
    assert np.abs(rows.matrix @ found.scores).max() <= 0.01 + 1e-9
    assert np.abs(found.scores - conic(z, rows.matrix, rows.centre, 0.01, *box)).max() <= 1e-6


@pytest.mark.parametrize("box", [(-np.inf, np.inf), (-2.5, 2.5)])
@pytest.mark.parametrize("eps", [1e-4, 0.0, 0.05])
def test_ten_overlapping_rows_of_residuals_equal_the_conic_solver(box, eps):
    draw = np.random.default_rng(2)
    groups = draw.integers(0, 2, (400, 5))
    targets = draw.normal(size=400) + groups.sum(axis=1) * 0.1
    z = 0.5 * targets + draw.normal(size=400)
    rows = MeanResidual().rows(groups, targets)
    assert len(rows.matrix) == 10
    found = project(z, rows.matrix, rows.centre, eps, *box)
    assert np.abs(rows.matrix @ found.scores - rows.centre).max() <= eps + 1e-9
    assert np.abs(found.scores - conic(z, rows.matrix, rows.centre, eps, *box)).max() <= 1e-6


def test_equalised_odds_and_rows_of_ones_own_hold_on_every_class():
    draw = np.random.default_rng(4)
    groups, targets = draw.integers(0, 3, 200), draw.integers(0, 2, 200)
    z = torch.tensor(draw.normal(size=200) + groups * 0.5)
    y = FairnessLayer(EqualizedOddsMean(), 0.02)(z, groups, targets).numpy()
    for label in (0, 1):
        means = [y[(groups == g) & (targets == label)].mean() for g in range(3)]
        assert max(means) - min(means) <= 0.02 + 1e-9
    layer = FairnessLayer(AffineRows(function=lambda g, t: (np.ones((1, len(g))) / len(g), [3.0])), 0.0)
    assert float(layer(z, groups).mean()) == pytest.approx(3.0, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_a_projection_is_idempotent_nonexpansive_and_blind_to_order(seed):
    z, groups, eps, low, high = one_row_problem(seed, largest=60)
    draw = np.random.default_rng(seed + 1)
    other = z + draw.normal(size=len(z))
    rows = MeanParity().rows(groups[:, None])
    y = project(z, rows.matrix, rows.centre, eps, low, high).scores
    again = project(y, rows.matrix, rows.centre, eps, low, high).scores
    assert np.abs(again - y).max() <= 1e-10
    moved = project(other, rows.matrix, rows.centre, eps, low, high).scores
    assert np.linalg.norm(moved - y) <= np.linalg.norm(other - z) * (1 + 1e-10)
    order = draw.permutation(len(z))
    turned = project(z[order], rows.matrix[:, order], rows.centre, eps, low, high).scores
    assert np.abs(turned - y[order]).max() <= 1e-10


def layers():
    draw = np.random.default_rng(7)
    groups = draw.integers(0, 3, (40, 2))
    targets = draw.integers(0, 2, 40).astype(float)
    yield FairnessLayer(MeanParity(), 0.01, bounds=(0.0, 1.0)), groups[:, :1] % 2, None
    yield FairnessLayer(MeanParity(), 0.01, bounds=(0.0, 1.0)), groups, None
    yield FairnessLayer(MeanResidual(), 0.05), groups, targets
    yield FairnessLayer(EqualizedOddsMean(), 0.02, bounds=(-1.0, 2.0)), groups[:, :1], targets


@pytest.mark.parametrize("case", range(4))
def test_gradients_equal_central_differences_and_the_jacobian_is_a_projection(case):
    layer, groups, targets = list(layers())[case]
    draw = np.random.default_rng(8)
    z = torch.tensor(draw.normal(0.5, 0.6, 40) + 0.4 * groups[:, 0], requires_grad=True)
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x, groups, targets), z).numpy()
    assert layer.last_info.active_rows
    step, numeric = 1e-6, np.zeros((40, 40))
    for i in range(40):
        moved = torch.zeros(40, dtype=torch.float64)
        moved[i] = step
        up, down = layer(z.detach() + moved, groups, targets), layer(z.detach() - moved, groups, targets)
        numeric[:, i] = ((up - down) / (2 * step)).numpy()
    assert np.abs(jacobian - numeric).max() <= 1e-6
    assert np.abs(jacobian - jacobian.T).max() <= 1e-12
    assert np.abs(jacobian @ jacobian - jacobian).max() <= 1e-10
    assert torch.autograd.gradcheck(lambda x: layer(x, groups, targets), (z,), eps=1e-6, atol=1e-6)
    assert torch.autograd.gradgradcheck(lambda x: layer(x, groups, targets) ** 2, (z,), eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_shape_and_dtype_stay_and_the_solve_is_in_float64(dtype):
    groups = np.arange(64) % 2
    z = torch.randn(64, 1, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    layer = FairnessLayer(MeanParity(), 1e-6)
    y = layer(z, groups)
    assert (y.dtype, y.shape) == (dtype, z.shape)
    assert layer.last_info.gap_after <= 1e-6 + 1e-13
    y.sum().backward()
    assert z.grad.dtype == dtype


def test_a_satisfied_batch_passes_unchanged():
    z = torch.tensor([0.1, 0.2, 0.1, 0.2], requires_grad=True)
    y = FairnessLayer(MeanParity(), 0.01)(z, [0, 0, 1, 1])
    assert torch.equal(y, z)


def test_groups_missing_from_a_batch_are_named_and_the_others_hold():
    layer = FairnessLayer(MeanParity(levels=[[0, 1, 2]]), 0.0)
    y = layer(torch.tensor([0.0, 1.0, 2.0]), [0, 1, 1])
    assert layer.last_info.missing_groups == ("attribute 0=2",)
    assert float(y[1:].mean()) == pytest.approx(float(y[0]), abs=1e-6)
    layer(torch.tensor([0.0]), [0])
    assert layer.last_info.missing_groups == ("attribute 0=1", "attribute 0=2")


def test_nothing_is_kept_from_step_to_step():
    layer, groups = FairnessLayer(MeanParity(), 0.01), np.arange(64) % 2

    def tensors(steps):
        for _ in range(steps):
            layer(torch.randn(64, requires_grad=True), groups).sum().backward()
        gc.collect()
        return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())

    assert tensors(10) == tensors(300)


def test_a_box_that_leaves_no_solution_is_refused_with_the_least_eps():
    layer = FairnessLayer(MeanResidual(), 0.1, bounds=(0.0, 1.0))
    with pytest.raises(InfeasibleParityError, match="least eps is 1"):
        layer(torch.zeros(2), [0, 0], [2.0, 2.0])
    with pytest.raises(InfeasibleParityError, match=r"attribute 0=1.*least eps is 2"):
        layer(torch.zeros(4), [0, 0, 1, 1], [0.5, 0.5, 3.0, 3.0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: FairnessLayer(MeanParity(), -0.1), ConfigError, "eps -0.1"),
        (lambda: FairnessLayer(MeanParity(), bounds=(1, 0)), ConfigError, "bounds"),
        (lambda: FairnessLayer("parity"), ConfigError, "constraint 'parity'"),
        (
            lambda: FairnessLayer(MeanParity())(torch.tensor([np.nan, 1.0]), [0, 1]),
            DataError,
            "scores hold NaN",
        ),
        (lambda: FairnessLayer(MeanParity())(torch.zeros(0), []), DataError, "scores are empty"),
        (lambda: FairnessLayer(MeanParity())(torch.zeros(2, 2), [0, 1]), DataError, "scores of shape"),
        (lambda: FairnessLayer(MeanParity())(torch.zeros(2), [0, 1, 1]), DataError, "groups of shape"),
        (lambda: FairnessLayer(MeanParity())(torch.zeros(2), [0, 0.5]), DataError, "groups of dtype"),
        (lambda: FairnessLayer(MeanParity([[0, 1]]))(torch.zeros(2), [0, 7]), DataError, "unseen code 7"),
        (lambda: FairnessLayer(MeanParity([[0, 1]]))(torch.zeros(1), [[0, 1]]), ConfigError, "levels for 1"),
        (lambda: FairnessLayer(MeanResidual())(torch.zeros(2), [0, 1]), DataError, "targets None"),
        (
            lambda: FairnessLayer(MeanResidual())(torch.zeros(2), [0, 1], [1.0]),
            DataError,
            "targets of length 1",
        ),
        (
            lambda: FairnessLayer(MeanResidual())(torch.zeros(2), [0, 1], [1, np.inf]),
            DataError,
            "targets hold",
        ),
        (
            lambda: FairnessLayer(EqualizedOddsMean())(torch.zeros(2), [0, 1], [1, 2]),
            DataError,
            "other than 0 and 1",
        ),
        (lambda: FairnessLayer(AffineRows())(torch.zeros(2), [0, 1]), ConfigError, "function None"),
        (
            lambda: FairnessLayer(AffineRows(function=lambda g, t: (np.ones((1, 3)), [0])))(
                torch.zeros(2), [0, 1]
            ),
            DataError,
            "function gave A",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()
