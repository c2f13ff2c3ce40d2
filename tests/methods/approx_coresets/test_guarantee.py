"""The definition on problems whose optimum is known: every partition of tiny sets, dynamic programming on a line."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from methods.approx_coresets import ApproxCoreset, WeightedKMedian, audit, swap_medoids, voronoi_summary
from methods.approx_coresets.exact import line_optimum, medoid_optimum, partitions, tiny_optimum
from methods.approx_coresets.space import Dense
from methods.common.errors import ConfigError
from tests.methods.approx_coresets import oracle

coordinates = st.integers(-8, 8).map(float)
tiny = st.lists(st.tuples(coordinates, coordinates), min_size=4, max_size=8)


@given(rows=tiny, k=st.integers(1, 3), number=st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_a_strong_error_bounds_rho_and_the_coresets_optimum_is_never_better_than_the_best(
    rows: list[tuple[float, float]], k: int, number: int
) -> None:
    X = np.asarray(rows)
    omega = ApproxCoreset(k, size=max(k, len(X) - 1), random_state=number).fit(X)
    opt_full, best = tiny_optimum(X, k)
    opt_omega, chosen = tiny_optimum(omega.points_, k, omega.weights_)
    assume(opt_full > 1e-9 and opt_omega > 1e-9)
    random = np.random.default_rng(number)
    others = {f"random/{i}": random.uniform(-8, 8, size=(k, 2)) for i in range(20)}
    solutions = {"optimum/full": best, "optimum/omega": chosen, **others}
    table = audit(X, omega, solutions, opt_full=opt_full, opt_coreset=opt_omega, gamma=1e9)
    rho = table.set_index("solution").rho
    assert rho["optimum/omega"] >= 1 - 1e-9
    error = table.error.max()
    if error < 1:
        assert table.rho.max() <= (1 + error) / (1 - error) * (1 + 1e-9)
    for row in table.itertuples():
        S = solutions[row.solution]
        assert row.cost_full == pytest.approx(oracle.cost(X, np.ones(len(X)), S, 2), rel=1e-9, abs=1e-9)
        assert row.cost_coreset == pytest.approx(
            oracle.cost(omega.points_, omega.weights_, S, 2), rel=1e-9, abs=1e-9
        )


@given(rows=tiny, k=st.integers(1, 3), number=st.integers(0, 20))
@settings(max_examples=40, deadline=None)
def test_a_coreset_of_every_point_changes_nothing(
    rows: list[tuple[float, float]], k: int, number: int
) -> None:
    X = np.asarray(rows)
    omega = ApproxCoreset(k, size=len(X), random_state=number).fit(X)
    random = np.random.default_rng(number)
    table = audit(X, omega, [random.normal(size=(k, 2)) for _ in range(5)])
    np.testing.assert_allclose(table.rho, 1, rtol=1e-12)
    np.testing.assert_allclose(table.distortion, 1, rtol=1e-12)


def test_rho_does_not_see_the_scale_of_the_weights() -> None:
    X = np.random.default_rng(0).normal(size=(200, 2))
    omega = ApproxCoreset(3, size=50, random_state=0).fit(X)
    solutions = [X[i : i + 3] for i in range(5)]
    one = audit(X, (omega.points_, omega.weights_), solutions)
    other = audit(X, (omega.points_, 7 * omega.weights_), solutions)
    np.testing.assert_allclose(one.rho, other.rho, rtol=1e-12)
    assert other.distortion.min() > 4


@given(
    x=st.lists(st.integers(-20, 20).map(float), min_size=2, max_size=7),
    k=st.integers(1, 3),
    z=st.sampled_from([1, 2]),
    number=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_the_optimum_on_a_line_is_the_best_of_all_labellings(
    x: list[float], k: int, z: int, number: int
) -> None:
    points = np.asarray(x)
    weights = np.random.default_rng(number).integers(1, 4, size=len(x)).astype(float)
    found, centres = line_optimum(points, k, weights, z)
    assert found == pytest.approx(oracle.line_partitions(points, weights, k, z), abs=1e-6)
    reached = float(weights @ (abs(points[:, None] - centres).min(axis=1) ** z))
    assert reached == pytest.approx(found, abs=1e-6)
    assert len(centres) <= k


@pytest.mark.parametrize("z", [1, 2])
def test_the_solver_comes_near_the_optimum_and_leaves_its_seeds(z: int) -> None:
    """Seeds are points: a plain Weiszfeld step would never leave them."""
    for i in range(5):
        random = np.random.default_rng(i)
        x = np.concatenate([random.normal(6 * j, 1, size=60) for j in range(3)])
        weights = random.uniform(0.5, 2, size=180)
        best, _ = line_optimum(x, 3, weights, z)
        found = WeightedKMedian(3, z=z, n_init=3, random_state=i).fit(x[:, None], sample_weight=weights)
        assert best * (1 - 1e-9) <= found.inertia_ <= 1.01 * best
    plane = np.random.default_rng(0).normal(size=(300, 2))
    middle = WeightedKMedian(1, max_iter=500, tol=1e-12, random_state=0).fit(plane).cluster_centers_[0]
    away = plane - middle
    pull = (away / np.linalg.norm(away, axis=1, keepdims=True)).sum(axis=0)
    assert np.linalg.norm(pull) < 0.1  # the geometric median: the directions to all points cancel


def test_counts_of_partitions_are_stirlings() -> None:
    assert [len(partitions(n, n)) for n in (1, 2, 3, 4, 5)] == [1, 2, 5, 15, 52]
    assert len(partitions(6, 2)) == 32


@pytest.mark.parametrize(("z", "bar"), [(2, 1.03), (1, 1.05)])
def test_exact_optima_on_a_line(z: int, bar: float) -> None:
    """A coreset of 200 of 1,000 points, solved exactly: what is left is the coreset's own loss."""
    ratios = []
    for i in range(6):
        random = np.random.default_rng(i)
        x = np.concatenate([random.normal(5 * j, 1, size=200) for j in range(5)])
        omega = ApproxCoreset(5, size=200, z=z, random_state=i).fit(x[:, None])
        _, centres = line_optimum(omega.points_, 5, omega.weights_, z)
        ratios.append(Dense(x[:, None], z).cost(centres[:, None]) / line_optimum(x, 5, z=z)[0])
    assert min(ratios) >= 1 - 1e-9
    assert np.mean(ratios) <= bar


def test_the_line_serves_two_powers() -> None:
    with pytest.raises(ConfigError, match="z=3"):
        line_optimum([1.0, 2.0], 1, z=3)


def test_swaps_reach_the_best_medoids_of_small_problems() -> None:
    hits = 0
    for i in range(20):
        random = np.random.default_rng(i)
        X = random.normal(size=(12, 2))
        D = np.linalg.norm(X[:, None] - X[None], axis=2)
        weights = random.uniform(0.1, 3, size=12)
        best, _ = medoid_optimum(D, 3, weights)
        chosen, found = min(
            (swap_medoids(D, 3, weights, random_state=s) for s in range(3)), key=lambda r: r[1]
        )
        assert found >= best - 1e-9
        assert found == pytest.approx(float(weights @ D[:, chosen].min(axis=1)))
        hits += found <= best * (1 + 1e-9)
    assert hits >= 18


def test_distances_alone_suffice() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 3)) + random.integers(0, 3, size=(300, 1)) * 6
    D = np.linalg.norm(X[:, None] - X[None], axis=2)
    omega = ApproxCoreset(3, size=80, z=1, metric="precomputed", random_state=0).fit(D)
    assert omega.points_.shape == (len(omega.weights_),) * 2
    chosen, _ = swap_medoids(omega.points_, 3, omega.weights_, random_state=0)
    rows = omega.indices_[chosen]
    exact = min(swap_medoids(D, 3, random_state=s)[1] for s in range(3))
    assert D[:, rows].min(axis=1).sum() <= 1.1 * exact
    assert omega.cost(rows) == pytest.approx(float(omega.weights_ @ omega.points_[:, chosen].min(axis=1)))
    same = ApproxCoreset(3, size=80, z=1, random_state=0).fit(X)
    np.testing.assert_array_equal(same.indices_, omega.indices_)


@given(number=st.integers(0, 200), m=st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_cells_bound_every_cost_from_above(number: int, m: int) -> None:
    random = np.random.default_rng(number)
    X = random.normal(size=(60, 2))
    weights = random.uniform(0.1, 2, size=60)
    summary = voronoi_summary(X, X[:m], weights)
    assert summary.weights.sum() == pytest.approx(weights.sum())
    for _ in range(5):
        S = random.normal(size=(4, 2)) * 2
        assert Dense(X, 2).cost(S, weights) <= summary.cost_bound(S) * (1 + 1e-12)
    one = random.normal(size=(1, 2))
    assert Dense(X, 2).cost(one, weights) == pytest.approx(summary.cost_bound(one), rel=1e-9)
