"""The transport solver against a conic solver, against POT, and against its own mathematics."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from methods.common.errors import ConfigError, DataError
from methods.sc_fagc import double_bounded_sinkhorn
from tests.methods.sc_fagc.oracle import alternating_projections, conic_plan, random_problem, value_of


@pytest.mark.parametrize("solver", ["sinkhorn", "newton"])
def test_it_finds_what_a_conic_solver_finds(solver: str) -> None:
    rng = np.random.default_rng(0)
    for i in range(50 if solver == "newton" else 12):
        eps = (0.1, 0.3, 1.0)[i % 3]
        m, c = int(rng.integers(3, 16)), int(rng.integers(2, 6))
        scores, low, high = random_problem(rng, m, c)
        mass = rng.uniform(0.5, 1.5, m) if i % 5 == 0 else None
        if mass is not None:
            low, high = low * mass.sum() / m, high * mass.sum() / m
        wanted = conic_plan(scores, low, high, eps, mass)
        plan, _, info = double_bounded_sinkhorn(
            scores, low, high, eps=eps, row_mass=mass, tol=1e-10, solver=solver
        )
        assert info.converged
        assert np.abs(plan - wanted).max() <= 1e-4
        best = value_of(scores, wanted, eps)
        assert abs(info.primal - best) <= 1e-6 * abs(best)
        assert info.violation <= 1e-6
        assert abs(info.dual - info.primal) <= 1e-8 * max(1.0, abs(info.primal))


def test_the_plain_alternating_projections_would_be_caught() -> None:
    """Feasible, but not the optimum: the bars above tell such a solver from this one."""
    rng = np.random.default_rng(1)
    misses, losses = [], []
    for _ in range(12):
        scores = rng.uniform(size=(12, 4)) + np.array([0.6, 0, 0, 0])
        low, high = np.full(4, 2.0), np.full(4, 4.0)
        plan, _, info = double_bounded_sinkhorn(scores, low, high, eps=0.1, tol=1e-10)
        wrong = alternating_projections(scores, low, high, 0.1)
        assert (wrong.sum(axis=0) <= high + 1e-3).all()
        misses.append(np.abs(wrong - plan).max())
        losses.append(info.primal - value_of(scores, wrong, 0.1))
    assert max(misses) > 1e-2
    assert max(losses) > 1e-2
    assert min(losses) > -1e-6


def test_equal_bounds_are_classical_transport() -> None:
    rng = np.random.default_rng(2)
    for eps in (0.05, 0.5):
        scores = rng.uniform(size=(30, 5))
        sizes = np.array([4.0, 5, 6, 7, 8])
        wanted = ot.sinkhorn(np.ones(30), sizes, -scores, eps, stopThr=1e-14, numItermax=20_000)
        plan, _, _ = double_bounded_sinkhorn(scores, sizes, sizes, eps=eps, tol=1e-13)
        assert np.abs(plan - wanted).max() <= 1e-8


def test_without_bounds_it_is_a_softmax() -> None:
    scores = np.random.default_rng(3).normal(size=(9, 4))
    plan, g, info = double_bounded_sinkhorn(scores, 0, np.inf, eps=0.3)
    assert np.abs(plan - softmax(scores / 0.3, axis=1)).max() <= 1e-14
    assert (g == 0).all()
    assert info.converged


@given(
    seed=st.integers(0, 10_000),
    m=st.integers(2, 200),
    c=st.integers(2, 20),
    eps=st.sampled_from([1e-3, 0.02, 0.2, 2.0]),
    tight=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_its_laws(seed: int, m: int, c: int, eps: float, tight: bool) -> None:
    rng = np.random.default_rng(seed)
    scores, low, high = random_problem(rng, m, c, tight)
    plan, g, info = double_bounded_sinkhorn(scores, low, high, eps=eps, tol=1e-9, solver="newton")
    assert np.isfinite(plan).all()
    assert np.abs(plan.sum(axis=1) - 1).max() <= 1e-12
    assert info.dual >= info.primal - 1e-7 * max(1, abs(info.primal))
    assert info.converged
    sums = plan.sum(axis=0)
    assert info.violation <= 1e-6
    assert info.dual - info.primal <= 1e-7 * max(1.0, abs(info.primal))
    # The sign of a multiplier says which bound binds: the price of what is left of it is nothing.
    finite = np.isfinite(g)
    at_low, at_high = (low, high) if low.sum() < m < high.sum() else (sums, sums)  # else all sizes are fixed
    paid = eps * np.where(g > 0, sums - at_low, at_high - sums)[finite] * np.abs(g[finite])
    assert np.abs(paid).max(initial=0) <= 1e-7 * max(1.0, abs(info.primal))

    order = rng.permutation(c)
    turned, _, _ = double_bounded_sinkhorn(
        scores[:, order], low[order], high[order], eps=eps, tol=1e-9, solver="newton"
    )
    assert np.abs(turned - plan[:, order]).max() <= 1e-5
    lifted, _, _ = double_bounded_sinkhorn(
        scores + rng.normal(size=(m, 1)), low, high, eps=eps, tol=1e-9, solver="newton"
    )
    assert np.abs(lifted - plan).max() <= 1e-5


def test_a_warm_start_saves_sweeps_and_changes_nothing() -> None:
    scores, low, high = random_problem(np.random.default_rng(4), 100, 6)
    plan, g, cold = double_bounded_sinkhorn(scores, low, high, eps=0.1)
    again, _, warm = double_bounded_sinkhorn(scores, low, high, eps=0.1, g0=g)
    assert warm.sweeps <= 2 < cold.sweeps
    assert np.abs(again - plan).max() <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_torch_gives_the_same_plan_as_a_tensor(dtype: torch.dtype) -> None:
    scores, low, high = random_problem(np.random.default_rng(5), 60, 5)
    tol = 1e-9 if dtype == torch.float64 else 1e-5
    wanted, g, _ = double_bounded_sinkhorn(scores, low, high, eps=0.2, tol=tol)
    plan, found, info = double_bounded_sinkhorn(
        torch.tensor(scores, dtype=dtype), low, high, eps=0.2, tol=tol
    )
    assert plan.dtype == dtype
    assert info.converged
    assert np.abs(plan.numpy() - wanted).max() <= 10 * tol
    assert np.abs(found - g).max() <= 100 * tol


def test_one_sweep_does_not_pass_for_a_solution() -> None:
    scores, low, high = random_problem(np.random.default_rng(6), 40, 4, tight=True)
    plan, _, info = double_bounded_sinkhorn(scores, low, high, eps=0.05, max_iter=1, solver="sweeps")
    assert not info.converged
    assert info.sweeps == 1
    assert info.violation > 1e-3
    assert np.abs(plan.sum(axis=1) - 1).max() <= 1e-12
    _, _, done = double_bounded_sinkhorn(scores, low, high, eps=0.05, max_iter=1, solver="sinkhorn")
    assert done.converged
    assert done.newton_steps > 0


def test_an_empty_column_and_far_scores_do_no_harm() -> None:
    scores = np.random.default_rng(7).uniform(size=(10, 3)) * 1e4
    plan, _, info = double_bounded_sinkhorn(scores, 0, [0, 10, 10], eps=1e-3)
    assert info.converged
    assert (plan[:, 0] == 0).all()
    assert np.isfinite(plan).all()
    assert np.isfinite(info.dual)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"eps": 0.0}, "eps=0.0: give a finite number above 0"),
        (
            {"lower": 3, "upper": 3},
            "the lower ones add up to 6 and the upper ones to 6; the mass 4 must lie between",
        ),
        ({"lower": [3, 0], "upper": [2, 4]}, r"lower\[0\]=3 is above upper\[0\]=2; lower it"),
        ({"lower": [1, 1, 1]}, r"lower: has shape \(3,\); give one number or 2"),
        ({"lower": -1}, "lower=-1"),
        ({"upper": np.nan}, "upper=nan"),
        ({"row_mass": [1, 1, 0, 1]}, "row_mass: give 4 finite numbers above 0"),
    ],
)
def test_bad_settings(changes: dict, says: str) -> None:
    given = {"lower": 0, "upper": 4, "eps": 1.0} | changes
    with pytest.raises(ConfigError, match=says):
        double_bounded_sinkhorn(np.zeros((4, 2)), given.pop("lower"), given.pop("upper"), **given)


@pytest.mark.parametrize("scores", [np.zeros(3), np.full((2, 2), np.nan), np.zeros((0, 2))])
def test_bad_scores(scores: np.ndarray) -> None:
    with pytest.raises(DataError, match="scores: needs a finite matrix"):
        double_bounded_sinkhorn(scores, 0, 2, eps=1.0)
