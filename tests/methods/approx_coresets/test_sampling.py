"""Who is drawn and with what weight: the formulas, unbiased costs, weights as repetition, and the scales."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from methods.approx_coresets import ApproxCoreset
from methods.approx_coresets.draw import draw
from methods.approx_coresets.sampling import cluster_scores, clusters_of, plain_scores, sample
from methods.approx_coresets.seeding import seed
from methods.approx_coresets.space import Dense
from tests.methods.approx_coresets import oracle


def mixture(n: int, d: int, number: int) -> np.ndarray:
    random = np.random.default_rng(number)
    return random.normal(size=(n, d)) + random.integers(0, 4, size=(n, 1)) * 5.0


@pytest.mark.parametrize("z", [1, 2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_four_terms_are_the_formula(z: float, weighted: bool) -> None:
    X = mixture(60, 3, 0)
    weights = np.random.default_rng(1).integers(0, 4, size=60).astype(float) if weighted else None
    fitted = ApproxCoreset(4, size=20, z=z, random_state=0).fit(X, sample_weight=weights)
    v = np.ones(60) if weights is None else weights
    expected = oracle.four_term(X, v, fitted.centers_, z)
    np.testing.assert_allclose(fitted.probabilities_, expected, rtol=1e-12, atol=1e-300)
    assert abs(fitted.probabilities_.sum() - 1) <= 1e-12
    assert fitted.seed_cost_ == pytest.approx(oracle.cost(X, v, fitted.centers_, z), rel=1e-12)
    drawn = fitted.weights_ * 20 * fitted.probabilities_[fitted.indices_] / v[fitted.indices_]
    np.testing.assert_allclose(drawn, np.rint(drawn), rtol=1e-9)  # counts of draws, 20 in all
    assert np.rint(drawn).sum() == 20


@pytest.mark.parametrize("z", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scores", ["four_term", "two", "lightweight", "uniform"])
def test_every_cost_is_kept_in_the_mean(z: float, weighted: bool, scores: str) -> None:
    """2,000 draws of 40 from 500: the mean cost of five fixed solutions is within 4 standard errors."""
    random = np.random.RandomState(0)
    X = mixture(500, 4, 2)
    weights = random.uniform(0, 3, size=500) if weighted else None
    space = Dense(X, z)
    seeds = seed(space, weights, 5, "k-means++", 0, random)
    if scores in ("four_term", "two"):
        q = cluster_scores(scores, seeds, weights)
        masses = clusters_of(seeds, weights).masses
        v = np.ones(500) if weights is None else weights
        part = 4 if scores == "four_term" else 2
        assert (q >= v / (part * len(masses) * masses[seeds.labels]) * (1 - 1e-12)).all()
    else:
        q = plain_scores(scores, space, weights)
    assert abs(q.sum() - 1) <= 1e-12
    solutions = [mixture(5, 4, 10 + i) for i in range(5)]
    each = np.stack([space.nearest(S)[1] for S in solutions])
    found = np.empty((2000, 5))
    for i in range(2000):
        drawn = sample(q, weights, 40, True, random)
        found[i] = each[:, drawn.indices] @ drawn.weights
    expected = np.asarray([space.cost(S, weights) for S in solutions])
    error = found.std(axis=0, ddof=1) / np.sqrt(2000)
    assert (abs(found.mean(axis=0) - expected) <= 4 * error).all()


def test_the_estimator_itself_is_unbiased_seeding_and_all() -> None:
    X = mixture(200, 3, 3)
    S = mixture(4, 3, 4)
    exact = Dense(X, 2).cost(S)
    found = np.asarray([ApproxCoreset(4, size=30, random_state=i).fit(X).cost(S) for i in range(400)])
    assert abs(found.mean() - exact) <= 4 * found.std(ddof=1) / 20


def test_weights_are_repetition() -> None:
    random = np.random.RandomState(0)
    X = mixture(30, 2, 5)
    v = random.randint(1, 5, size=30)
    repeated = np.repeat(X, v, axis=0)
    centres = X[:3]
    one = ApproxCoreset(3, size=20, init=centres).fit(X, sample_weight=v)
    other = ApproxCoreset(3, size=20, init=centres).fit(repeated)
    np.testing.assert_allclose(np.repeat(one.probabilities_ / v, v), other.probabilities_, rtol=1e-12)
    drawn = draw(random, 100_000, one.probabilities_)
    again = np.repeat(np.arange(30), v)[draw(random, 100_000, other.probabilities_)]
    for found in (drawn, again):
        counts = np.bincount(found, minlength=30)
        assert stats.chisquare(counts, 100_000 * one.probabilities_).pvalue > 1e-4


@given(
    scale=st.floats(1e-6, 1e6),
    mass=st.floats(1e-3, 1e3),
    shift=st.floats(-1e4, 1e4),
    number=st.integers(0, 50),
)
@settings(max_examples=40, deadline=None)
def test_units_do_not_matter(scale: float, mass: float, shift: float, number: int) -> None:
    X = mixture(80, 3, number)
    v = np.random.default_rng(number).uniform(0.5, 2, size=80)
    base = ApproxCoreset(4, size=25, init=X[:4]).fit(X, sample_weight=v)
    scaled = ApproxCoreset(4, size=25, init=X[:4] * scale).fit(X * scale, sample_weight=v)
    heavier = ApproxCoreset(4, size=25, init=X[:4], random_state=0).fit(X, sample_weight=v * mass)
    same = ApproxCoreset(4, size=25, init=X[:4], random_state=0).fit(X, sample_weight=v)
    moved = ApproxCoreset(4, size=25, init=X[:4] + shift).fit(X + shift, sample_weight=v)
    np.testing.assert_allclose(scaled.probabilities_, base.probabilities_, rtol=1e-9)
    np.testing.assert_allclose(heavier.probabilities_, base.probabilities_, rtol=1e-9)
    np.testing.assert_allclose(moved.probabilities_, base.probabilities_, rtol=1e-5)
    np.testing.assert_array_equal(heavier.indices_, same.indices_)
    np.testing.assert_allclose(heavier.weights_, same.weights_ * mass, rtol=1e-9)


@given(
    masses=st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=40).filter(
        lambda m: sum(m) > 0
    ),
    number=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_nothing_without_mass_is_drawn(masses: list[float], number: int) -> None:
    found = draw(np.random.RandomState(number), 50, np.asarray(masses))
    assert (np.asarray(masses)[found] > 0).all()
    assert (np.diff(found) >= 0).all()


def test_draws_over_many_blocks_follow_the_masses() -> None:
    masses = np.tile([0.0, 1.0, 3.0], 100_000)
    found = draw(np.random.RandomState(0), 90_000, masses)
    counts = np.bincount(found % 3, minlength=3)
    assert counts[0] == 0
    assert abs(counts[2] / counts[1] - 3) < 0.1
    places = np.bincount(found * 30 // len(masses), minlength=30)
    assert stats.chisquare(places).pvalue > 1e-4


def test_far_tight_clusters_keep_their_digits() -> None:
    """Two clusters 1e8 apart with spread 1: the expanded square would have lost every digit of the cost."""
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 2))
    X[100:] += 1e8
    centres = np.stack([X[:100].mean(axis=0), X[100:].mean(axis=0)])
    expected = sum(float(((part - part.mean(axis=0)) ** 2).sum()) for part in (X[:100], X[100:]))
    assert Dense(X, 2).cost(centres) == pytest.approx(expected, rel=1e-9)
    fitted = ApproxCoreset(2, size=40, random_state=0).fit(X)
    assert fitted.seed_cost_ < 100 * expected


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
def test_the_rough_solution_is_a_good_one(init: str) -> None:
    X = mixture(2000, 3, 6)
    costs = [ApproxCoreset(4, size=50, init=init, random_state=i).fit(X).seed_cost_ for i in range(10)]
    one = Dense(X, 2).cost(X.mean(axis=0, keepdims=True))
    spread = 2000 * 3  # cost of the planted clusters
    assert np.median(costs) < one
    if init != "random":
        assert np.median(costs) < 5 * spread


def test_improvement_steps_lower_the_rough_cost() -> None:
    for z in (1, 2, 3):
        X = mixture(500, 3, 7)
        before, after = (
            ApproxCoreset(4, size=50, z=z, init_lloyd=steps, random_state=0).fit(X).seed_cost_
            for steps in (0, 3)
        )
        assert after < 0.9 * before


def test_group_sampling_keeps_the_mass_and_good_costs() -> None:
    X = mixture(3000, 3, 8)
    planted = np.stack([np.full(3, 5.0 * i) for i in range(4)])
    exact = Dense(X, 2).cost(planted)
    found = [
        ApproxCoreset(4, size=300, method="group", init_factor=2, random_state=i).fit(X) for i in range(20)
    ]
    assert np.mean([abs(f.cost(planted) / exact - 1) for f in found]) < 0.1
    assert abs(np.mean([f.mass_ratio_ for f in found]) - 1) < 0.05
    assert max(len(f.weights_) for f in found) < 400


def test_residual_weights_keep_the_mass() -> None:
    X = mixture(1000, 3, 9)
    for steps in (0, 2):
        found = ApproxCoreset(4, size=200, weights="residual", init_lloyd=steps, random_state=0).fit(X)
        assert found.mass_ratio_ >= 1 - 1e-9
        assert ((found.indices_ < 0).sum() > 0) == (steps > 0)  # moved centres are no rows
        rows = found.indices_ >= 0
        np.testing.assert_array_equal(found.points_[rows], X[found.indices_[rows]])


@pytest.mark.parametrize("weights", ["normalised", "voronoi"])
def test_weights_that_sum_to_the_mass(weights: str) -> None:
    X = mixture(1000, 3, 10)
    v = np.random.default_rng(0).uniform(0, 2, size=1000)
    found = ApproxCoreset(4, size=100, weights=weights, random_state=0).fit(X, sample_weight=v)
    assert found.mass_ratio_ == pytest.approx(1, abs=1e-12)
    assert "no guarantee" in found.guarantee_
