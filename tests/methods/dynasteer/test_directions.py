"""Fisher-LDA against its closed form and scikit-learn, planted patterns, probes on other problems."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import adjusted_rand_score

from methods.common.errors import DataError
from methods.dynasteer import DynaSteer
from methods.dynasteer.directions import (
    context_differences,
    fisher_direction,
    fisher_ratio,
    fit_patterns,
    held_out_problems,
    projected_ratio,
    unit,
    within_scatter,
)
from tests.methods.dynasteer.tiny import activations


def two_classes(rng: np.random.Generator, n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    shape = rng.standard_normal((d, d))
    return rng.standard_normal((n, d)) @ shape + rng.standard_normal(d), rng.standard_normal((n, d)) @ shape


def test_the_direction_is_scikit_learns_on_200_random_cases() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        d = int(rng.integers(2, 24))
        p, n = two_classes(rng, int(rng.integers(2 * d, 200)), d)
        w = fisher_direction(p, n, shrinkage="none", ridge=0.0)
        theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(np.r_[p, n], [1] * len(p) + [0] * len(n))
        assert w @ unit(theirs.coef_[0]) > 0.9999
        closed = np.linalg.solve(np.cov(p.T) + np.cov(n.T), p.mean(0) - n.mean(0))
        assert w @ unit(closed) > 0.999999


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 12), st.integers(3, 60))
def test_no_other_direction_has_a_larger_ratio(seed: int, d: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = two_classes(rng, n, d)
    scatter = within_scatter(p, q)
    w = fisher_direction(p, q)
    best = fisher_ratio(w, p, q, scatter)
    assert abs(np.linalg.norm(w) - 1) < 1e-9
    others = unit(np.r_[rng.standard_normal((200, d)), w + 0.05 * rng.standard_normal((200, d))])
    assert max(fisher_ratio(v, p, q, scatter) for v in others) <= best * (1 + 1e-9)
    # The largest generalised eigenvalue of (between, within) is the ratio.
    difference = p.mean(0) - q.mean(0)
    assert eigh(np.outer(difference, difference), scatter, eigvals_only=True)[-1] == pytest.approx(best)


def test_strongly_uneven_noise_needs_the_scatter_and_even_noise_does_not() -> None:
    rng = np.random.default_rng(1)
    scales = np.r_[np.full(4, 6.0), np.full(12, 0.5)]
    shift = np.full(16, 0.4)

    def draw(scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return rng.standard_normal((600, 16)) * scale + shift, rng.standard_normal((600, 16)) * scale

    (p, n), (tp, tn) = draw(scales), draw(scales)
    lda, mean = fisher_direction(p, n), unit(p.mean(0) - n.mean(0))
    assert projected_ratio(lda, tp, tn) >= 3 * projected_ratio(mean, tp, tn)
    p, n = draw(np.ones(16))
    assert fisher_direction(p, n) @ unit(p.mean(0) - n.mean(0)) > 0.95


def planted_patterns(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Contexts of three kinds whose truth lies along e1, -e1 and e2: z, labels, groups, kinds."""
    rng = np.random.default_rng(seed)
    truth = np.zeros((3, 16))
    truth[0, 0], truth[1, 0], truth[2, 1] = 1.0, -1.0, 1.0
    kinds = rng.integers(0, 3, 240)
    groups = np.repeat(np.arange(240), 8)
    labels = np.tile([0, 1], 960)
    z = 0.25 * rng.standard_normal((1920, 16)) + (labels[:, None] - 0.5) * 2 * truth[kinds[groups]]
    return z, labels, groups, kinds


def test_patterns_are_found_and_one_direction_cannot_replace_them() -> None:
    z, labels, groups, kinds = planted_patterns(0)
    test = held_out_problems(groups, 0.2, 42)
    three = fit_patterns(z, labels, groups, test, 3)
    one = fit_patterns(z, labels, groups, test, 1)
    assert three.accuracy >= 0.95
    assert one.accuracy <= 0.8
    names, differences = context_differences(z, labels, groups)
    found = np.array([int(np.argmax(three.w @ v)) for v in differences])
    assert adjusted_rand_score(kinds[names], found) > 0.9
    assert sorted(three.sizes) == sorted(np.bincount(kinds))
    fitted = DynaSteer(n_clusters=3, n_heads=1, cluster="nearest").fit(
        activations(z[:, None, None], labels, groups)
    )
    assert fitted.accuracy_[0, 0] >= 0.95


def test_opposed_patterns_that_are_summed_are_told_about() -> None:
    z, labels, groups, _ = planted_patterns(0)
    acts = activations(z[:, None, None], labels, groups)
    with pytest.warns(UserWarning, match="work against each other"):
        DynaSteer(n_clusters=3, n_heads=1).fit(acts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DynaSteer(n_clusters=3, n_heads=1, cluster="nearest").fit(acts)
        DynaSteer(n_clusters=1, n_heads=1).fit(acts)


def test_differences_are_of_means_within_a_context() -> None:
    rng = np.random.default_rng(3)
    groups, labels = rng.integers(0, 9, 80), rng.integers(0, 2, 80)
    labels[groups == 4] = 1  # no Fallacy: left out
    z = rng.standard_normal((80, 2, 5))
    names, found = context_differences(z, labels, groups)
    assert 4 not in names
    for name, v in zip(names, found, strict=True):
        inside = groups == name
        plain = z[inside & (labels == 1)].mean(0) - z[inside & (labels == 0)].mean(0)
        np.testing.assert_allclose(v, plain / np.linalg.norm(plain, axis=-1, keepdims=True))


def test_a_head_without_truth_scores_chance_because_problems_are_split() -> None:
    """Forks of a context are near-duplicates: a split by sample would read the context and look like knowledge."""
    found = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(120), 6)
        labels = np.repeat(rng.integers(0, 2, 120), 6)  # one label a context, so contexts give the label away
        labels[::6] = 1 - labels[::6]  # and one fork of the other kind
        z = np.repeat(rng.standard_normal((120, 80)), 6, axis=0) + 0.05 * rng.standard_normal((720, 80))
        splits = held_out_problems(groups, 0.2, 0), rng.random(720) < 0.2
        found.append([fit_patterns(z, labels, groups, split, 1).accuracy for split in splits])
    by_problem, by_sample = np.mean(found, axis=0)
    assert abs(by_problem - 0.5) < 0.1
    assert by_sample > by_problem + 0.08


def test_a_pattern_without_both_kinds_is_dropped_and_nothing_breaks() -> None:
    rng = np.random.default_rng(5)
    z = rng.standard_normal((40, 4))
    labels, groups = np.tile([0, 1], 20), np.repeat(np.arange(20), 2)
    found = fit_patterns(z, labels, groups, held_out_problems(groups, 0.2, 0), 10)
    dropped = ~found.kept
    assert (found.w[dropped] == 0).all()
    assert np.isfinite(found.w).all()
    with pytest.raises(DataError, match="1 Truth and 20 Fallacy samples; a direction needs 2 of each"):
        within_scatter(z[:1], z[:20])


def test_degenerate_scatter_gives_a_finite_direction() -> None:
    p, n = np.zeros((5, 3)), np.zeros((5, 3))
    p[:, 0] = 1.0
    for shrinkage, ridge in (("none", 0.0), ("ledoit_wolf", 1e-4)):
        w = fisher_direction(p, n, shrinkage, ridge)
        assert np.isfinite(w).all()
    assert (fisher_direction(n, n) == 0).all()
