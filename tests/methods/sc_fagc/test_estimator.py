"""The estimator: scikit-learn's own checks, bounds, invariances, and what it says to bad input."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits, make_blobs, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from methods.common.errors import ConfigError, DataError
from methods.sc_fagc import SCFAGC, clustering_scores


@parametrize_with_checks([SCFAGC(n_init=2)])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    data = load_digits()
    return data.data, data.target


@pytest.fixture(scope="module")
def fitted(digits: tuple[np.ndarray, np.ndarray]) -> SCFAGC:
    return SCFAGC(10, n_anchors=256, random_state=0).fit(digits[0])


def test_a_fit_on_digits(fitted: SCFAGC, digits: tuple[np.ndarray, np.ndarray]) -> None:
    low, high = fitted.bounds_
    assert low.tolist() == [21] * 10
    assert high.tolist() == [30] * 10
    assert (fitted.anchor_sizes_ >= low).all()
    assert (fitted.anchor_sizes_ <= high).all()
    assert fitted.anchor_sizes_.sum() == 256
    assert fitted.data_sizes_.sum() == len(digits[0])
    assert fitted.data_sizes_.max() / fitted.data_sizes_.min() < 2.5
    assert np.abs(fitted.membership_.sum(axis=1) - 1).max() < 1e-12
    assert fitted.eps_ == pytest.approx(0.5 * fitted.eps_critical_)
    assert fitted.converged_
    assert clustering_scores(digits[1], fitted.labels_)["acc"] > 0.78
    assert (fitted.predict(digits[0]) == fitted.labels_).all()
    soft = fitted.predict_membership(digits[0])
    assert soft.shape == (1797, 10)
    assert np.abs(soft.sum(axis=1) - 1).max() < 1e-12


def test_the_same_seed_gives_the_same_labels_wherever_the_data_lie(
    fitted: SCFAGC, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    x = digits[0]
    for changed in (x, 1000 * x, x + 1000.0, x.astype(np.float32), sparse.csr_array(x)):
        labels = SCFAGC(10, n_anchors=256, random_state=0).fit(changed).labels_
        assert (labels == fitted.labels_).mean() >= (0.99 if changed is not x else 1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "ratio"},
        {"transmission": "soft"},
        {"solver": "sinkhorn"},
        {"init": "kmeans"},
        {"anneal": ()},
        {"anchor_method": "kmeans"},
        {"anchor_method": "random"},
        {"anchor_refine": 0},
    ],
)
@pytest.mark.filterwarnings("ignore:a cluster of samples misses")
def test_every_part_can_be_changed(changes: dict, digits: tuple[np.ndarray, np.ndarray]) -> None:
    fit = SCFAGC(10, n_anchors=128, n_init=2, random_state=0, **changes).fit(digits[0])
    assert (fit.anchor_sizes_ >= fit.bounds_[0]).all()
    assert (fit.anchor_sizes_ <= fit.bounds_[1]).all()
    assert clustering_scores(digits[1], fit.labels_)["nmi"] > 0.6


@pytest.mark.parametrize("size", [(150, 210), (179, 180)])
def test_bounded_transmission_holds_them_sample_by_sample(
    size: tuple[int, int], digits: tuple[np.ndarray, np.ndarray]
) -> None:
    fit = SCFAGC(
        10,
        n_anchors=256,
        size_min=size[0],
        size_max=size[1],
        transmission="bounded",
        n_init=3,
        random_state=0,
    ).fit(digits[0])
    assert fit.data_sizes_.min() >= size[0]
    assert fit.data_sizes_.max() <= size[1]
    assert fit.overshoot_ == 0
    assert clustering_scores(digits[1], fit.labels_)["acc"] > 0.78


@pytest.mark.parametrize("seed", range(3))
def test_unequal_bounds_find_unequal_clusters(seed: int) -> None:
    x, y = make_moons((1500, 500), noise=0.06, random_state=seed)
    share = np.array([1.5, 0.5])
    given: dict = {"size_unit": "share", "n_anchors": 256, "random_state": seed}
    fit = SCFAGC(2, size_min=0.85 * share, size_max=1.15 * share, **given).fit(x)
    assert adjusted_rand_score(y, fit.labels_) > 0.9
    assert np.sort(fit.data_sizes_).tolist() == pytest.approx([500, 1500], abs=60)
    # The order in which the bounds are given does not matter.
    turned = SCFAGC(2, size_min=0.85 * share[::-1], size_max=1.15 * share[::-1], **given).fit(x)
    assert adjusted_rand_score(turned.labels_, fit.labels_) > 0.99


def test_units_mean_the_same() -> None:
    x, _ = make_blobs(512, centers=4, random_state=0)
    found = [
        SCFAGC(4, n_anchors=64, size_min=low, size_max=high, size_unit=unit, n_init=1, random_state=0).fit(x)
        for unit, low, high in (("samples", 96, 160), ("anchors", 12, 20), ("share", 0.75, 1.25))
    ]
    assert all((f.bounds_[0] == 12).all() and (f.bounds_[1] == 20).all() for f in found)
    assert all((f.labels_ == found[0].labels_).all() for f in found)


@pytest.mark.filterwarnings("ignore:a cluster of samples misses")
def test_small_and_odd_inputs() -> None:
    x = np.random.default_rng(0).normal(size=(64, 3))
    one = SCFAGC(1, random_state=0).fit(x)
    assert (one.labels_ == 0).all()
    assert not one.collapsed_
    everyone = SCFAGC(8, n_anchors=64, random_state=0).fit(x)
    assert (everyone.anchor_sizes_ >= 7).all()
    each = SCFAGC(
        16, n_anchors=16, size_min=1, size_max=4, size_unit="anchors", n_neighbors=3, random_state=0
    ).fit(x)
    assert each.anchor_sizes_.tolist() == [1] * 16
    few = SCFAGC(7, random_state=0).fit(x[:9])
    assert len(few.anchors_) == 8
    crowd = SCFAGC(5, random_state=0).fit(x[:6])  # more clusters than the power of two below
    assert crowd.data_sizes_.sum() == 6
    labels = SCFAGC(4, n_anchors=32, random_state=0).fit(x).anchor_labels_
    again = SCFAGC(4, n_anchors=32, init=labels, random_state=0).fit(x)
    assert adjusted_rand_score(labels, again.anchor_labels_) > 0.9


def test_many_equal_rows() -> None:
    x = np.random.default_rng(0).normal(size=(300, 3))
    x[:150] = x[0]
    with pytest.warns(UserWarning, match="misses its bounds"):
        fit = SCFAGC(3, n_anchors=64, anchor_refine=0, random_state=0).fit(x)
    assert len(fit.anchors_) < 64  # the equal rows have several equal anchors, of which five are in use
    assert (np.bincount(fit.anchor_labels_, minlength=3) >= fit.bounds_[0]).all()
    with pytest.raises(DataError, match="samples point to 5 of the 64 anchors only"):
        SCFAGC(3, n_anchors=64, random_state=0).fit(np.ones((300, 3)))


def test_an_anchor_that_nobody_points_to_is_dropped() -> None:
    x, _ = make_blobs(200, centers=3, random_state=0)
    anchors = np.concatenate([x[:20], [[1e6, 1e6]]])
    fit = SCFAGC(3, anchor_method=anchors, n_neighbors=3, random_state=0).fit(x)
    assert len(fit.anchors_) <= 20
    assert (fit.predict(x) == fit.labels_).all()


X = np.random.default_rng(0).normal(size=(200, 3))


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"n_clusters": 0}, ConfigError, "n_clusters=0: give a whole number of at least 1"),
        ({"n_clusters": 201}, DataError, "X has n_samples=200, fewer than n_clusters=201"),
        ({"n_anchors": 256}, DataError, "X has n_samples=200, fewer than n_anchors=256"),
        ({"n_anchors": 2}, ConfigError, "n_anchors=2 is below n_clusters=4"),
        ({"n_anchors": 8, "n_neighbors": 8}, ConfigError, "n_neighbors=8: give 1 to 7, below the 8 anchors"),
        (
            {"size_min": 60, "size_max": 50},
            ConfigError,
            "size_min of cluster 0 is 60 and size_max 50 samples",
        ),
        (
            {"size_min": 51, "size_max": 90},
            ConfigError,
            "size_min adds up to 204 and size_max to 360 samples over 4 clusters, and 200 samples must lie",
        ),
        (
            {"size_min": 0, "size_max": 49},
            ConfigError,
            "size_min of at most 50 and size_max of at least that",
        ),
        (
            {"size_min": 50, "size_max": 50, "n_anchors": 64, "n_clusters": 4, "size_unit": "samples"},
            None,
            "",
        ),
        (
            {"n_clusters": 10, "size_min": 20, "size_max": 20, "n_anchors": 64},
            ConfigError,
            r"an anchor stands for 3.125 samples \(64 anchors\)",
        ),
        ({"size_min": [1, 2]}, ConfigError, r"size_min: has shape \(2,\); give one number or 4"),
        ({"size_max": np.nan}, ConfigError, "size_max=nan: give numbers of at least 0"),
        ({"size_min": "many"}, ConfigError, "size_min='many': give one number or 4, one a cluster"),
        ({"tol": -1}, ConfigError, "tol -1: give a number of at least 0"),
        ({"ot_tol": 0}, ConfigError, "ot_tol 0: give a number above 0"),
        ({"anneal": 0.8}, ConfigError, "anneal=0.8: give a tuple"),
        ({"anneal": (-0.5,)}, ConfigError, "anneal -0.5: give a number above 0"),
        ({"eps_share": 1.0}, ConfigError, "eps_share 1.0: give a number above 0 and below 1"),
        ({"size_unit": "rows"}, ConfigError, "size_unit='rows': give one of samples, anchors, share"),
        ({"eps": 0}, ConfigError, "eps=0: give 'auto' or a number above 0"),
        ({"objective": "cut"}, ConfigError, "objective='cut': give one of sum, ratio"),
        ({"transmission": "hard"}, ConfigError, "transmission='hard': give one of argmax, soft, bounded"),
        ({"anchor_method": "grid"}, ConfigError, "anchor_method='grid': give 'bkhk'"),
        ({"anchor_method": np.zeros((9, 2))}, DataError, r"give finite ones of shape \[m, 3\]"),
        ({"init": "best"}, ConfigError, "init='best': give 'spectral'"),
        ({"init": np.zeros(3)}, ConfigError, r"init: labels of shape \(3,\); give 128 whole numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_mistakes_are_one_line(changes: dict, kind: type[Exception] | None, says: str) -> None:
    estimator = SCFAGC(**{"n_clusters": 4, "random_state": 0, **changes})
    if kind is None:
        assert estimator.fit(X).anchor_sizes_.tolist() == [16] * 4
        return
    with pytest.raises(kind, match=says) as caught:
        estimator.fit(X)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none(bad: float) -> None:
    x = X.copy()
    x[3, 1] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        SCFAGC(4).fit(x)


@pytest.mark.parametrize("scale", [1e160, -1e160])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
def test_values_whose_distances_overflow(scale: float, make: Any) -> None:
    rows = make(X * scale)
    with pytest.raises(
        DataError, match=r"X holds values up to .*e\+16\d: powers of distances overflow in float64; divide"
    ):
        SCFAGC(4).fit(rows)
    fit = SCFAGC(4, n_init=1, random_state=0).fit(X)
    with pytest.raises(DataError, match="powers of distances overflow"):
        fit.predict(rows)


def test_a_number_of_anchors_that_is_no_power_of_two_is_rounded_and_told() -> None:
    with pytest.warns(UserWarning, match="n_anchors=50 is no power of two; bkhk takes 64"):
        fit = SCFAGC(4, n_anchors=50, n_init=1, random_state=0).fit(X)
    assert len(fit.anchors_) == 64
    with pytest.warns(UserWarning, match="bkhk takes 128"):
        SCFAGC(4, n_anchors=150, n_init=1, random_state=0).fit(X)


def test_samples_that_miss_their_bounds_are_told(digits: tuple[np.ndarray, np.ndarray]) -> None:
    # Centres of k-means stand for unequal shares, so that bounds on anchors say little about samples.
    with pytest.warns(UserWarning, match="misses its bounds by .* they hold for the anchors"):
        fit = SCFAGC(10, n_anchors=128, anchor_method="kmeans", n_init=2, random_state=0).fit(digits[0])
    assert fit.overshoot_ > 0.2
    assert (fit.anchor_sizes_ >= fit.bounds_[0]).all()


def test_no_torch_comes_with_it() -> None:
    script = "import sys, methods.sc_fagc; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_warnings_are_of_the_kind_that_scikit_learn_users_filter() -> None:
    with pytest.warns(ConvergenceWarning):
        SCFAGC(4, max_iter=1, n_init=1, init="random", random_state=0).fit(X)


def network(seed: int, sizes: tuple[int, ...] = (120, 60, 60)) -> tuple[np.ndarray, np.ndarray]:
    """A stochastic block model: dense inside, sparse between."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    chance = np.where(truth[:, None] == truth, 0.25, 0.03)
    upper = np.triu(rng.uniform(size=chance.shape) < chance, 1)
    return (upper | upper.T).astype(float), truth


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
def test_a_graph_of_ones_own(make: Any) -> None:
    graph, truth = network(0)
    given: dict = {"affinity": "precomputed", "random_state": 0}
    fit = SCFAGC(3, size_min=[110, 50, 50], size_max=[130, 70, 70], **given).fit(make(graph))
    assert adjusted_rand_score(truth, fit.labels_) > 0.95
    assert np.sort(fit.data_sizes_).tolist() == pytest.approx([60, 60, 120], abs=10)
    assert np.linalg.eigvalsh(graph)[0] < -1  # it had to be shifted, and the objective rises all the same
    assert np.diff(fit.objective_path_).min() >= -1e-8 * fit.objective_path_[-1]
    even = SCFAGC(3, size_min=80, size_max=80, **given).fit(make(graph))
    assert even.data_sizes_.tolist() == [80, 80, 80]
    with pytest.raises(ConfigError, match="labels the given samples only"):
        even.predict(graph)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda g: g[:, :100],
            r"X has shape \(240, 100\); a precomputed similarity has as many columns as rows",
        ),
        (lambda g: np.triu(g), "X is not symmetric"),
        (lambda g: -g, "X holds -1; a precomputed similarity must not be negative"),
        (lambda g: g * (np.arange(240) != 7) * (np.arange(240) != 7)[:, None], "X: row 7 has no similarity"),
    ],
)
def test_no_graph(spoil: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        SCFAGC(3, affinity="precomputed").fit(spoil(network(0)[0]))
