"""Truth directions of one head: patterns of contexts by K-means, and a Fisher direction within each.

Notation: P and N are the Truth and Fallacy samples [n, d] of one pattern, S_w their within-class scatter,
w = S_w^-1 (mu_P - mu_N) / |...| the direction, J the Fisher ratio.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sklearn.cluster import KMeans
from sklearn.covariance import ledoit_wolf
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from methods.common.errors import DataError

Shrinkage = Literal["ledoit_wolf", "none"]
Direction = Literal["lda", "mean", "probe"]
LEAST = 2  # samples a side that a direction needs


def within_scatter(
    p: np.ndarray, n: np.ndarray, shrinkage: Shrinkage = "ledoit_wolf", ridge: float = 1e-4
) -> np.ndarray:
    """S_w = cov(P) + cov(N) + ridge * tr / d * I, each covariance shrunk by Ledoit and Wolf, [d, d]."""
    if min(len(p), len(n)) < LEAST:
        raise DataError(f"{len(p)} Truth and {len(n)} Fallacy samples; a direction needs {LEAST} of each")
    if shrinkage == "ledoit_wolf":
        scatter = ledoit_wolf(p)[0] + ledoit_wolf(n)[0]
    else:
        scatter = np.atleast_2d(np.cov(p.T, bias=True)) + np.atleast_2d(np.cov(n.T, bias=True))
    d = scatter.shape[0]
    return np.asarray(scatter + ridge * np.trace(scatter) / d * np.eye(d))


def fisher_direction(
    p: np.ndarray, n: np.ndarray, shrinkage: Shrinkage = "ledoit_wolf", ridge: float = 1e-4
) -> np.ndarray:
    """The unit w that maximises J, [d]; equal means give the zero vector."""
    scatter = within_scatter(p, n, shrinkage, ridge)
    difference = p.mean(0) - n.mean(0)
    try:
        w = np.linalg.solve(scatter, difference)
    except np.linalg.LinAlgError:
        # A feature without any spread, and no ridge: the least-squares answer.
        w = np.linalg.pinv(scatter) @ difference
    return unit(w)


def unit(v: np.ndarray) -> np.ndarray:
    """Rows of length 1; rows of zeros stay."""
    length = np.linalg.norm(v, axis=-1, keepdims=True)
    return np.divide(v, length, out=np.zeros_like(v, dtype=float), where=length > 0)


def fisher_ratio(w: np.ndarray, p: np.ndarray, n: np.ndarray, scatter: np.ndarray) -> float:
    """J = (w.(mu_P - mu_N))^2 / (w^T S_w w)."""
    spread = float(w @ scatter @ w)
    return float(w @ (p.mean(0) - n.mean(0))) ** 2 / spread if spread > 0 else 0.0


def projected_ratio(w: np.ndarray, p: np.ndarray, n: np.ndarray) -> float:
    """J of samples that w was not fitted on: (m_P - m_N)^2 / (s_P^2 + s_N^2) of their projections."""
    a, b = p @ w, n @ w
    spread = a.var() + b.var()
    return float((a.mean() - b.mean()) ** 2 / spread) if spread > 0 else 0.0


def context_differences(
    z: np.ndarray, labels: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """v_g = mean(Truth) - mean(Fallacy) of each context, of length 1.

    Args:
        z: [n, ..., d] head states; further axes (heads) are kept.
        labels: [n] 1 or 0.
        groups: [n] the context.

    Returns:
        the contexts' names [G] in order, and [G, ..., d]. Contexts without both kinds are left out.
    """
    names, place = np.unique(groups, return_inverse=True)
    counts = np.zeros((2, len(names)))
    np.add.at(counts, (labels, place), 1)
    order = np.lexsort((labels, place))
    sums = np.zeros((2, len(names), *z.shape[1:]))
    both = place[order] * 2 + labels[order]
    starts = np.flatnonzero(np.r_[True, np.diff(both) > 0])
    parts = np.add.reduceat(z[order].astype(np.float64), starts, axis=0)
    sums[labels[order][starts], place[order][starts]] = parts
    whole = (counts > 0).all(0)
    shape = (-1, *[1] * (z.ndim - 1))
    means = [sums[k][whole] / counts[k][whole].reshape(shape) for k in (0, 1)]
    return names[whole], unit(means[1] - means[0])


@dataclass(frozen=True)
class PatternDirections:
    """What one head holds: M patterns.

    Attributes:
        w: [M, d] unit directions, zero where a pattern was dropped.
        mu, sigma: [M] of all Truth samples of the pattern, projected.
        kept: [M] whether the pattern has a direction.
        sizes: [M] contexts.
        accuracy: balanced accuracy of a logistic probe on the contexts of other problems, mean over patterns weighted
            by size; NaN when it could not be tested. A test context belongs to the pattern that its own difference is
            nearest to, so with M > 1 this says how well truth is read once the pattern is known.
        ratio: Fisher ratio of the same test samples along w fitted on the training problems, weighted alike.
    """

    w: np.ndarray
    mu: np.ndarray
    sigma: np.ndarray
    kept: np.ndarray
    sizes: np.ndarray
    accuracy: float
    ratio: float


def fit_patterns(
    z: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray,
    test: np.ndarray,
    n_clusters: int,
    direction: Direction = "lda",
    shrinkage: Shrinkage = "ledoit_wolf",
    ridge: float = 1e-4,
    seed: int = 42,
    probe: bool = True,
) -> PatternDirections:
    """Patterns of one head, their directions, and how well they read truth in problems they were not fitted on.

    K-means sees the training contexts only; the directions are then fitted on all contexts of a pattern.

    Args:
        z: [n, d] float.
        labels, groups: [n].
        test: [n] samples of held-out problems.
        n_clusters: M, at most the number of training contexts.
        direction: Fisher-LDA, difference of means, or the logistic probe's weights.
        shrinkage, ridge: of the scatter.
        seed: of K-means.
        probe: fit the logistic probes; without them `accuracy` is NaN.
    """
    names, differences = context_differences(z, labels, groups)
    place = np.searchsorted(names, groups)
    of_context = np.zeros(len(names), int)
    tested = np.zeros(len(names), bool)
    tested[place[test]] = True
    if n_clusters > 1:
        with warnings.catch_warnings():
            # Fewer different contexts than patterns: the empty ones are dropped below.
            warnings.simplefilter("ignore", ConvergenceWarning)
            means = KMeans(n_clusters, n_init=10, random_state=seed).fit(differences[~tested])
        of_context[~tested] = means.labels_
        if tested.any():
            of_context[tested] = means.predict(differences[tested])
    pattern = of_context[place]
    d = z.shape[1]
    w, mu, sigma = np.zeros((n_clusters, d)), np.zeros(n_clusters), np.zeros(n_clusters)
    kept = np.zeros(n_clusters, bool)
    scores: list[tuple[float, float, int]] = []
    for m in range(n_clusters):
        inside = pattern == m
        p, n = z[inside & (labels == 1)], z[inside & (labels == 0)]
        if min(len(p), len(n)) < LEAST:
            continue
        w[m] = _direction(p, n, direction, shrinkage, ridge)
        kept[m] = bool(w[m].any())
        projected = p @ w[m]
        mu[m], sigma[m] = projected.mean(), projected.std()
        scores.append(
            (
                *_tested(z, labels, inside, test, direction, shrinkage, ridge, probe),
                int((of_context == m).sum()),
            )
        )
    accuracy, ratio = (_weighted([(score[i], score[2]) for score in scores]) for i in (0, 1))
    sizes = np.bincount(of_context, minlength=n_clusters)
    return PatternDirections(w, mu, sigma, kept, sizes, accuracy, ratio)


def _direction(
    p: np.ndarray, n: np.ndarray, kind: Direction, shrinkage: Shrinkage, ridge: float
) -> np.ndarray:
    if kind == "mean":
        return unit(p.mean(0) - n.mean(0))
    if kind == "probe":
        fitted = _probe(np.r_[p, n], np.r_[np.ones(len(p)), np.zeros(len(n))])
        return unit(fitted.coef_[0])
    return fisher_direction(p, n, shrinkage, ridge)


def _probe(z: np.ndarray, labels: np.ndarray) -> LogisticRegression:
    return LogisticRegression(class_weight="balanced", max_iter=2000).fit(z, labels)


def _tested(
    z: np.ndarray,
    labels: np.ndarray,
    inside: np.ndarray,
    test: np.ndarray,
    direction: Direction,
    shrinkage: Shrinkage,
    ridge: float,
    probe: bool,
) -> tuple[float, float]:
    """Probe accuracy and Fisher ratio on the test samples of one pattern; NaN where a side is missing."""
    train_part, test_part = inside & ~test, inside & test
    p, n = (z[train_part & (labels == k)] for k in (1, 0))
    tp, tn = (z[test_part & (labels == k)] for k in (1, 0))
    if min(len(p), len(n)) < LEAST or min(len(tp), len(tn)) < 1:
        return float("nan"), float("nan")
    accuracy = float("nan")
    if probe:
        centre, scale = z[train_part].mean(0), z[train_part].std(0) + 1e-8
        fitted = _probe((z[train_part] - centre) / scale, labels[train_part])
        found = fitted.predict((z[test_part] - centre) / scale)
        accuracy = float(balanced_accuracy_score(labels[test_part], found))
    return accuracy, projected_ratio(_direction(p, n, direction, shrinkage, ridge), tp, tn)


def _weighted(pairs: list[tuple[float, int]]) -> float:
    good = [(value, size) for value, size in pairs if np.isfinite(value)]
    total = sum(size for _, size in good)
    return sum(value * size for value, size in good) / total if total else float("nan")


def held_out_problems(problems: np.ndarray, share: float, seed: int) -> np.ndarray:
    """[n] whether a sample's problem is held out: forks of one context are near-duplicates, so problems are split."""
    names = np.unique(problems)
    count = max(1, round(share * len(names))) if len(names) > 1 else 0
    chosen = np.random.default_rng(seed).permutation(names)[:count]
    return np.isin(problems, chosen)
