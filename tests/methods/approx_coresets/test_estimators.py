"""The estimators as scikit-learn's users meet them: conventions, streams, files, bad input and odd data."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.cluster import DBSCAN, AgglomerativeClustering, KMeans, MiniBatchKMeans
from sklearn.utils.estimator_checks import check_estimator

from methods.approx_coresets import (
    ApproxCoreset,
    CoresetClusterer,
    WeightedKMedian,
    audit,
    by_band,
    coreset_size,
    coreset_solutions,
    solution_bank,
)
from methods.approx_coresets.space import Dense
from methods.common.errors import ConfigError, DataError

# scikit-learn's own KMeans names these two: chance takes another course when rows are repeated.
RANDOM = "sample_weight is not equivalent to removing/repeating samples."
EXPECTED = dict.fromkeys(
    ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"),
    RANDOM,
)


def mixture(n: int, number: int = 0, d: int = 3) -> np.ndarray:
    random = np.random.default_rng(number)
    return random.normal(size=(n, d)) + random.integers(0, 4, size=(n, 1)) * 6.0


@pytest.mark.parametrize(
    "estimator",
    [
        ApproxCoreset(3, size=5),
        ApproxCoreset(3, size=9, z=1, method="group"),
        CoresetClusterer(coreset=ApproxCoreset(3)),
        WeightedKMedian(3),
    ],
    ids=str,
)
def test_scikit_learns_conventions(estimator: Any) -> None:
    expected = {} if isinstance(estimator, ApproxCoreset) else EXPECTED
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(estimator, expected_failed_checks=expected, on_skip=None)


def test_points_are_rows_and_seeds_decide() -> None:
    X = mixture(500)
    one, two, other = (ApproxCoreset(4, size=60, random_state=s).fit(X) for s in (0, 0, 1))
    np.testing.assert_array_equal(one.points_, X[one.indices_])
    np.testing.assert_array_equal(one.weights_, two.weights_)
    assert len(other.indices_) != len(one.indices_) or (other.indices_ != one.indices_).any()
    assert len(one.weights_) <= 60
    assert len(ApproxCoreset(4, size=300, merge_duplicates=False, random_state=0).fit(X).weights_) == 300
    assert one.ess_ <= len(one.weights_)
    assert 0 < one.relative_variance_ < 1


def test_every_kind_of_input_gives_the_same(tmp_path: Path) -> None:
    X = np.round(mixture(400), 1) + 0.1
    expected = ApproxCoreset(4, size=60, random_state=0).fit(X)
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    import torch

    for given in (mapped, torch.from_numpy(X), X.tolist(), np.asfortranarray(X), X.astype(np.longdouble)):
        found = ApproxCoreset(4, size=60, random_state=0, chunk_size=7).fit(given)
        np.testing.assert_array_equal(found.indices_, expected.indices_)
        np.testing.assert_allclose(found.weights_, expected.weights_, rtol=1e-9)
    half = ApproxCoreset(4, size=60, random_state=0).fit(X.astype(np.float32))
    assert half.points_.dtype == np.float32
    np.testing.assert_array_equal(half.indices_, expected.indices_)
    rows = ApproxCoreset(4, size=60, random_state=0).fit(sparse.csr_matrix(X))
    np.testing.assert_array_equal(rows.indices_, expected.indices_)
    np.testing.assert_allclose(rows.points_.toarray(), expected.points_)
    S = X[:4]
    assert rows.cost(S) == pytest.approx(expected.cost(S))
    labels = CoresetClusterer(coreset=ApproxCoreset(4, size=60), random_state=0)
    np.testing.assert_array_equal(labels.fit_predict(sparse.csr_array(X)), labels.fit_predict(X))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"n_clusters": 0}, "n_clusters=0"),
        ({"n_clusters": 2.5}, "n_clusters=2.5"),
        ({"size": 0}, "size=0"),
        ({"n_clusters": True}, "n_clusters=True"),
        ({"eps": 0.0}, r"eps 0.0: give a number above 0 and below 1"),
        ({"eps": 1.0}, "eps 1.0"),
        ({"eps": "small"}, "eps 'small'"),
        ({"merge_duplicates": "yes"}, "merge_duplicates 'yes': give True or False"),
        ({"size_rule": "guess"}, "size_rule='guess': choose one of practice, theory"),
        ({"z": 0.5}, "z=0.5: give 2"),
        ({"z": "two"}, "z='two'"),
        ({"z": float("nan")}, "z=nan"),
        ({"scores": "best"}, "scores='best': choose one of four_term, two, lightweight, uniform"),
        ({"weights": "none"}, "weights='none'"),
        ({"method": "magic"}, "method='magic'"),
        ({"init": "zeros"}, "init='zeros'"),
        ({"init": 3}, "init=3: choose one of"),
        ({"init": []}, r"init=\[\]: choose one of"),
        ({"metric": "cosine"}, "metric='cosine'"),
        ({"chunk_size": 0}, "chunk_size=0"),
        ({"init_lloyd": -1}, "init_lloyd=-1"),
        ({"method": "group", "scores": "two"}, "group sampling has scores of its own"),
        ({"method": "group", "weights": "residual"}, "group sampling gives its centres"),
    ],
)
def test_wrong_parameters(params: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ApproxCoreset(**{"n_clusters": 2, **params}).fit(mixture(30))


def test_wrong_data() -> None:
    X = mixture(30)
    made = ApproxCoreset(2, size=5)
    with pytest.raises(DataError, match=r"sample_weight: holds a negative number"):
        made.fit(X, sample_weight=np.r_[-1.0, np.ones(29)])
    with pytest.raises(ValueError, match="at least one non-zero"):
        made.fit(X, sample_weight=np.zeros(30))
    with pytest.raises(ValueError, match="NaN"):
        made.fit(X, sample_weight=np.full(30, np.nan))
    with pytest.raises(ValueError, match="sample_weight"):
        made.fit(X, sample_weight=np.ones(29))
    with pytest.raises(ValueError, match="NaN"):
        made.fit(np.where(X > 3, np.nan, X))
    with pytest.raises(ValueError, match="Reshape your data"):
        made.fit(X[:, 0])
    with pytest.raises(DataError, match=r"n_samples=3 should be >= n_clusters=5"):
        ApproxCoreset(5).fit(X[:3])
    with pytest.raises(ConfigError, match=r"z=1: sparse rows serve k-means"):
        ApproxCoreset(2, z=1).fit(sparse.csr_array(X))
    with pytest.raises(DataError, match="square matrix"):
        ApproxCoreset(2, metric="precomputed").fit(X)
    with pytest.raises(DataError, match="negative"):
        ApproxCoreset(2, metric="precomputed").fit(-np.ones((4, 4)))
    with pytest.raises(ConfigError, match="a stream of distance matrices"):
        ApproxCoreset(2, metric="precomputed").partial_fit(np.ones((4, 4)))
    with pytest.raises(DataError, match=r"centers: shape \(3, 2\); give \(any, 3\)"):
        made.fit(X).cost(np.ones((3, 2)))
    with pytest.raises(DataError, match="centers: some hold NaN"):
        made.fit(X).cost(np.full((3, 3), np.nan))
    with pytest.raises(DataError, match="sample_weight: could not convert string"):
        made.fit(X, sample_weight=np.array(["a"] * 30))
    with pytest.raises(ConfigError, match="takes no sample_weight"):
        CoresetClusterer(AgglomerativeClustering(), ApproxCoreset(2)).fit(X)
    with pytest.raises(ConfigError, match="polish=-1"):
        CoresetClusterer(polish=-1).fit(X)
    with pytest.raises(ConfigError, match=r"gamma=0\.5"):
        audit(X, made, [X[:2]], gamma=0.5)
    with pytest.raises(DataError, match="at least one set of centres"):
        audit(X, made, [])


@pytest.mark.parametrize(("z", "scale"), [(2, 1e160), (2, -1e200), (4, 1e80), (1, 1e160)])
def test_distances_that_overflow_are_refused(z: float, scale: float) -> None:
    """Costs would be infinite, every score NaN, and the coreset empty."""
    with pytest.raises(DataError, match=r"X holds values up to .*: powers of distances overflow in float64"):
        ApproxCoreset(2, z=z, size=5).fit(mixture(30) * scale)
    with pytest.raises(DataError, match="overflow"):
        ApproxCoreset(2, z=z, size=5).partial_fit(mixture(30) * scale)
    just = ApproxCoreset(2, z=z, size=5, random_state=0).fit(mixture(30) * 1e60 ** (2 / max(z, 2)))
    assert 0 < just.weights_.sum() < 1e3


@pytest.mark.parametrize("scores", ["four_term", "two", "lightweight", "uniform"])
@pytest.mark.parametrize("z", [1, 2, 4])
def test_odd_data_gives_finite_weights_and_no_warning(scores: str, z: float) -> None:
    random = np.random.default_rng(0)
    far = random.normal(size=(50, 2))
    far[-1] = 1e9
    two_places = np.repeat([[0.0, 0.0], [1.0, 1.0]], 25, axis=0)
    mass = np.r_[1e8, np.full(49, 1e-8)]
    nothing = np.r_[np.zeros(25), np.ones(25)]
    cases: list[tuple[np.ndarray, int, Any]] = [
        (np.ones((50, 2)), 3, None),
        (random.normal(size=(50, 2)), 1, None),
        (random.normal(size=(12, 2)), 12, None),
        (far, 3, None),
        (two_places, 5, None),
        (two_places, 2, nothing),
        (random.normal(size=(50, 2)), 3, mass),
        (random.normal(size=(50, 2)) * 1e-160, 3, None),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for X, k, v in cases:
            for weights in ("importance", "voronoi", "residual"):
                made = ApproxCoreset(k, size=10, scores=scores, z=z, weights=weights, random_state=0)
                found = made.fit(X, sample_weight=v)
                assert np.isfinite(found.weights_).all()
                assert (found.weights_ > 0).all()
                assert len(found.weights_) <= 12
    outlier = ApproxCoreset(3, size=10, z=z, random_state=0).fit(far)
    assert 49 in outlier.indices_


def test_weights_count_in_the_solver_too() -> None:
    """A solver that ignored weights in seeding, cost or empty clusters would sit on the many light points."""
    random = np.random.default_rng(0)
    X = np.concatenate([random.normal(size=(100, 2)), random.normal(size=(3, 2)) * 0.01 + 50, [[90.0, 0.0]]])
    v = np.r_[np.full(100, 1e-8), np.full(3, 1e8), 1e8]
    for z in (1, 2):
        found = CoresetClusterer(coreset=ApproxCoreset(2, z=z), random_state=0).fit(X, sample_weight=v)
        near = np.sort(found.cluster_centers_[:, 0])
        np.testing.assert_allclose(near, [50, 90], atol=0.1)


def test_a_stream_is_as_good_as_one_pass_and_remembers_its_rows() -> None:
    X = mixture(6000)
    S = np.stack([np.full(3, 6.0 * i) for i in range(4)])
    exact = Dense(X, 2).cost(S)
    errors = {}
    for name, sizes in {"even": [750] * 8, "small": [37] * 162 + [6], "one": [6000]}.items():
        errors[name] = []
        for state in range(5):
            made, start = ApproxCoreset(4, size=200, random_state=state), 0
            for size in sizes:
                made.partial_fit(X[start : start + size])
                start += size
            assert made.n_seen_ == 6000
            assert len(made.weights_) <= 200
            np.testing.assert_array_equal(made.points_, X[made.indices_])
            assert sum(len(p.weights) for p in made._parts) <= 800 * 5
            errors[name].append(abs(made.cost(S) / exact - 1))
    assert max(np.mean(e) for e in errors.values()) < 0.06


def test_a_batch_may_be_used_again() -> None:
    batch, made = np.empty((50, 3)), ApproxCoreset(3, size=100, random_state=0)
    X = mixture(100)
    for start in (0, 50):
        batch[:] = X[start : start + 50]
        made.partial_fit(batch)
    np.testing.assert_array_equal(made.points_, X)


def test_looking_at_a_stream_changes_nothing_that_follows() -> None:
    X = mixture(3000)
    one, two = ApproxCoreset(4, size=50, random_state=0), ApproxCoreset(4, size=50, random_state=0)
    for start in range(0, 3000, 500):
        one.partial_fit(X[start : start + 500])
        two.partial_fit(X[start : start + 500])
        two.cost(X[:4])
    np.testing.assert_array_equal(one.weights_, two.weights_)


def test_merging_keeps_all_mass_in_any_order() -> None:
    parts = [ApproxCoreset(4, size=50, random_state=i).fit(mixture(500, i)) for i in range(3)]
    a, b, c = parts
    left, right = a.merge(b).merge(c), a.merge(b.merge(c))
    assert left.weights_.sum() == pytest.approx(right.weights_.sum(), rel=1e-9)
    assert left.weights_.sum() == pytest.approx(sum(p.weights_.sum() for p in parts), rel=1e-9)
    assert left.n_seen_ == 1500
    X = np.concatenate([mixture(500, i) for i in range(3)])
    np.testing.assert_array_equal(left.points_, X[left.indices_])
    assert len(a.weights_) <= 50  # neither side is changed
    S = X[:4]
    assert left.cost(S) == pytest.approx(sum(p.cost(S) for p in parts))
    small = left.reduce(60)
    assert len(small.weights_) <= 60
    small.partial_fit(mixture(500, 3))
    assert small.n_seen_ == 2000
    with pytest.raises(ConfigError, match="z=1: this coreset is for z=2"):
        a.merge(ApproxCoreset(4, size=50, z=1).fit(mixture(500)))
    with pytest.raises(DataError, match="3 and 2 columns"):
        a.merge(ApproxCoreset(4, size=50).fit(mixture(500)[:, :2]))


def test_saved_and_read_again(tmp_path: Path) -> None:
    X = mixture(500)
    made = ApproxCoreset(4, size=60, random_state=0).fit(X)
    read = ApproxCoreset.load(made.save(tmp_path / "omega.npz"))
    np.testing.assert_array_equal(read.points_, made.points_)
    np.testing.assert_array_equal(read.weights_, made.weights_)
    np.testing.assert_array_equal(read.indices_, made.indices_)
    assert read.get_params() == made.get_params()
    assert (read.n_seen_, read.guarantee_, read.ess_) == (500, made.guarantee_, made.ess_)
    assert read.merge(made).n_seen_ == 1000
    assert read.partial_fit(X).n_seen_ == 1000
    with pytest.raises(DataError, match="there is no such file"):
        ApproxCoreset.load(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"no")
    with pytest.raises(DataError, match="is not a saved coreset"):
        ApproxCoreset.load(tmp_path / "bad.npz")
    np.savez(tmp_path / "evil.npz", about=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="is not a saved coreset"):
        ApproxCoreset.load(tmp_path / "evil.npz")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(made)).weights_, made.weights_)


def test_sizes() -> None:
    assert coreset_size(20, 0.1) == 600
    assert coreset_size(20, 0.9) == 200
    assert coreset_size(20, 0.1, "theory") == int(np.ceil(20 * 1000 * np.log(40)))
    assert coreset_size(20, 0.1, "theory", "precomputed") == int(np.ceil(20 * 100 * np.log(40)))
    whole = ApproxCoreset(4, size_rule="theory").fit(mixture(300))
    assert whole.guarantee_ == "all points are kept: every cost is exact"
    assert "empirical" in ApproxCoreset(4, eps=0.5).fit(mixture(300)).guarantee_
    told = ApproxCoreset(1, size_rule="theory", eps=0.5).fit(mixture(300)).guarantee_
    assert "constants set to 1" in told
    assert "measure with audit" in ApproxCoreset(4, scores="uniform").fit(mixture(3000)).guarantee_


def test_any_solver_with_weights() -> None:
    X = mixture(800)
    full = KMeans(4, n_init=3, random_state=0).fit(X).inertia_
    for solver in (KMeans(4, n_init=3), MiniBatchKMeans(4, n_init=3), None):
        found = CoresetClusterer(solver, ApproxCoreset(4, size=200), random_state=0).fit(X)
        assert found.inertia_ <= 1.2 * full
        np.testing.assert_array_equal(found.predict(X), found.labels_)
        assert found.inertia_ == pytest.approx(Dense(X, 2).cost(found.cluster_centers_))
    dense = CoresetClusterer(DBSCAN(eps=2.0, min_samples=2), ApproxCoreset(4, size=200), random_state=0).fit(
        X
    )
    assert len(dense.cluster_centers_) >= 4
    plain, polished = (
        CoresetClusterer(coreset=ApproxCoreset(4, size=20), polish=p, random_state=0).fit(X) for p in (0, 5)
    )
    assert polished.inertia_ < plain.inertia_


def test_medians_are_medians() -> None:
    X = np.r_[np.zeros(60), np.full(30, 10.0), 1000.0][:, None]
    found = WeightedKMedian(1, max_iter=2000, tol=0, random_state=0).fit(X)
    assert abs(found.cluster_centers_[0, 0]) < 0.5
    cubic = WeightedKMedian(1, z=4, random_state=0).fit(X)
    best = 1000 / (1 + 90 ** (1 / 3))  # nearly: where the pulls of 90 points near 0 and one at 1000 are equal
    assert abs(cubic.cluster_centers_[0, 0] - best) < 5


def test_audit_tells_good_from_bad_and_fitted_from_free() -> None:
    X = mixture(2000)
    omega = ApproxCoreset(4, size=80, random_state=0).fit(X)
    table = audit(
        X, omega, {**solution_bank(X, 4, each=2, random_state=0), **coreset_solutions(omega, random_state=0)}
    )
    assert {
        "seeds",
        "lloyd",
        "perturbed",
        "swapped",
        "mini-batch",
        "random",
        "bisecting",
        "on the coreset",
    } == set(table.kind)
    assert table.attrs["note"] == "estimate"
    assert table.factor_full.min() == 1
    assert table.factor_coreset.min() == 1
    assert (table.distortion >= 1).all()
    assert not table.good.all()
    fitted = table[table.kind == "on the coreset"]
    assert (fitted.cost_full > fitted.cost_coreset).mean() > 0.5  # they exploit the coreset's errors
    shown = by_band(table)
    assert shown.solutions.sum() == len(table)
    assert shown.index[0] == "up to 1.05"
    median = ApproxCoreset(4, size=80, z=1, random_state=0).fit(X)
    found = audit(X, median, {**solution_bank(X, 4, each=1, z=1), **coreset_solutions(median, each=2)})
    assert found.rho.between(0.5, 2).all()
