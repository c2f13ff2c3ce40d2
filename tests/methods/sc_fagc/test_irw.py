"""The loop never loses; the critical entropy is where the mathematics puts it; a collapse is told."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from methods.common.errors import ConfigError
from methods.sc_fagc import SCFAGC, critical_eps, objective_value, reweighted
from methods.sc_fagc import irw as module
from methods.sc_fagc.start import one_hot, random_labels


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return load_digits().data


@pytest.fixture(scope="module")
def similarity(digits: np.ndarray) -> np.ndarray:
    return SCFAGC(10, n_anchors=256, n_init=1, random_state=0).fit(digits).affinity_


def small_similarity(rng: np.random.Generator, m: int) -> np.ndarray:
    factor = rng.uniform(size=(m, m + 5)) ** 4
    factor /= np.linalg.norm(factor, 2)
    return factor @ factor.T


@pytest.mark.parametrize("objective", ["sum", "ratio"])
@given(
    seed=st.integers(0, 999),
    m=st.integers(6, 40),
    c=st.integers(2, 5),
    share=st.sampled_from([0.05, 0.4, 0.9]),
)
@settings(max_examples=25, deadline=None)
def test_the_objective_never_falls(objective: str, seed: int, m: int, c: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    similarity = small_similarity(rng, m)
    low, high = np.full(c, m // (2 * c)), np.full(c, -(-3 * m // (2 * c)))
    start = one_hot(random_labels(m, low, high, np.random.RandomState(seed)), c)
    eps = share * critical_eps(np.linalg.eigvalsh(similarity)[-2], c)
    done = reweighted(
        similarity, start, low, high, eps=eps, objective=objective, ot_tol=1e-8, max_iter=25, solver="newton"
    )
    assert np.diff(done.path).min() >= -1e-8 * abs(done.path[-1])
    assert done.path[-1] == pytest.approx(
        objective_value(similarity, done.membership, eps, objective), rel=1e-12
    )
    sums = done.membership.sum(axis=0)
    assert (sums >= low - 1e-6).all()
    assert (sums <= high + 1e-6).all()


def test_twenty_fits_on_digits_never_fall(similarity: np.ndarray) -> None:
    low, high = np.full(10, 21), np.full(10, 30)
    for seed in range(20):
        start = one_hot(random_labels(256, low, high, np.random.RandomState(seed)), 10)
        done = reweighted(similarity, start, low, high, eps=0.1, ot_tol=1e-8, max_iter=40, solver="newton")
        assert np.diff(done.path).min() >= -1e-8 * abs(done.path[-1])
        assert all(solve.converged for solve in done.solves)


@pytest.mark.parametrize("objective", ["sum", "ratio"])
def test_the_gradient_is_the_derivative(objective: str) -> None:
    rng = np.random.default_rng(0)
    similarity = small_similarity(rng, 7)
    membership = rng.dirichlet(np.ones(3), size=7)
    gradient = module._gradient(similarity @ membership, membership, objective)
    for i in range(7):
        for j in range(3):
            step = np.zeros((7, 3))
            step[i, j] = 1e-6
            rise = module._value(similarity @ (membership + step), membership + step, 0.0, objective)
            fall = module._value(similarity @ (membership - step), membership - step, 0.0, objective)
            assert (rise - fall) / 2e-6 == pytest.approx(gradient[i, j], abs=1e-7)


def test_uniform_repels_below_the_critical_entropy_and_attracts_above(similarity: np.ndarray) -> None:
    critical = critical_eps(np.linalg.eigvalsh(similarity)[-2], 10)
    rng = np.random.default_rng(0)
    for factor, grows in ((0.95, True), (1.02, False)):
        start = 0.1 + 1e-4 * rng.uniform(-1, 1, size=(256, 10))
        start /= start.sum(axis=1, keepdims=True)
        first = np.abs(start - 0.1).max()
        # Without bounds that bind: the law is about the fixed point itself.
        done = reweighted(similarity, start, 0, 256, eps=factor * critical, max_iter=400, tol=0.0)
        last = np.abs(done.membership - 0.1).max()
        assert last > 100 * first if grows else last < first


def test_too_much_entropy_is_told(digits: np.ndarray, similarity: np.ndarray) -> None:
    critical = critical_eps(np.linalg.eigvalsh(similarity)[-2], 10)
    with pytest.warns(
        ConvergenceWarning, match=r"the membership is uniform: eps=0\.\d+ against the critical"
    ):
        fit = SCFAGC(10, n_anchors=256, eps=3 * critical, n_init=1, random_state=0).fit(digits)
    assert fit.collapsed_
    assert not SCFAGC(10, n_anchors=256, n_init=1, random_state=0).fit(digits).collapsed_


def test_solves_that_did_not_converge_are_told(digits: np.ndarray) -> None:
    with pytest.warns(ConvergenceWarning, match="not converged after"):
        fit = SCFAGC(
            10, n_anchors=128, solver="sweeps", ot_max_iter=1, n_init=1, max_iter=5, anneal=(), random_state=0
        ).fit(digits[:500])
    assert not fit.converged_
    assert (fit.ot_iterations_ == 1).all()


def test_one_linear_step_is_worse(digits: np.ndarray) -> None:
    """The loop is no ornament: from random starts, where there is something to gain, it gains."""
    whole, one = (
        SCFAGC(10, n_anchors=128, init="random", n_init=2, irw=irw, random_state=0).fit(digits)
        for irw in (True, False)
    )
    kept = [objective_value(f.affinity_, one_hot(f.anchor_labels_, 10), 0.0) for f in (whole, one)]
    assert one.n_iter_ == 1
    assert kept[0] > 1.1 * kept[1]


def test_torch_stays_on_its_side(similarity: np.ndarray) -> None:
    low, high = np.full(10, 21), np.full(10, 30)
    start = one_hot(random_labels(256, low, high, np.random.RandomState(0)), 10)
    given = {"eps": 0.1, "solver": "newton", "max_iter": 5}
    wanted = reweighted(similarity, start, low, high, **given)
    found = reweighted(torch.tensor(similarity), torch.tensor(start), low, high, **given)
    assert isinstance(found.membership, torch.Tensor)
    assert np.abs(found.membership.numpy() - wanted.membership).max() <= 1e-6
    assert found.path == pytest.approx(wanted.path, rel=1e-9)


def test_an_unknown_objective() -> None:
    with pytest.raises(ConfigError, match="objective='cut': give 'sum' or 'ratio'"):
        reweighted(np.eye(2), np.eye(2), 0, 2, eps=1.0, objective="cut")  # type: ignore[arg-type]
