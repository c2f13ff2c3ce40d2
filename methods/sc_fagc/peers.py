"""What SC-FAGC is put beside: scikit-learn's methods, k-means-constrained, and the short rival of both.

All take the same samples, bounds and seeds; those on an anchor graph have SC-FAGC's own anchors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.cluster import KMeans, SpectralClustering

from methods.common.constrained_k_means import constrained_k_means
from methods.sc_fagc.anchors import choose_anchors
from methods.sc_fagc.bounds import SizeBounds
from methods.sc_fagc.eigen import top_eigenvectors
from methods.sc_fagc.estimator import SCFAGC
from methods.sc_fagc.graph import anchor_graph, anchor_similarity
from methods.sc_fagc.irw import objective_value
from methods.sc_fagc.start import one_hot, spectral_rows
from methods.sc_fagc.study_data import Samples

# (labels [n], facts)
Found = tuple[np.ndarray, dict[str, Any]]
NEIGHBOURS = 10
ABLATIONS: dict[str, dict[str, Any]] = {
    "without_bounds": {},
    "little_entropy": {"eps_share": 0.02, "anneal": ()},
    "without_annealing": {"anneal": ()},
    "without_irw": {"irw": False},
    "ratio": {"objective": "ratio"},
    "start_kmeans": {"init": "kmeans"},
    "start_random": {"init": "random"},
    "anchors_balanced": {"anchor_refine": 0},
    "anchors_kmeans": {"anchor_method": "kmeans"},
    "anchors_random": {"anchor_method": "random"},
    "bounded_samples": {"transmission": "bounded"},
    "kmeans_bounded": {"anchor_method": "kmeans", "transmission": "bounded"},
}


def sc_fagc(samples: Samples, seed: int, **changes: Any) -> Found:
    """SC-FAGC, or one of its ablations."""
    given: dict[str, Any] = {"size_min": samples.size_min, "size_max": samples.size_max}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overshoot and convergence are among the facts
        fit = SCFAGC(
            samples.clusters, n_anchors=samples.anchors, random_state=seed, **{**given, **changes}
        ).fit(samples.features)
    low, high = fit.bounds_
    return fit.labels_, {
        "similarity": objective_value(fit.affinity_, one_hot(fit.anchor_labels_, samples.clusters), 0.0),
        "anchor_violation": float(
            max(np.maximum(low - fit.anchor_sizes_, fit.anchor_sizes_ - high).max(), 0)
        ),
        "steps": fit.n_iter_,
        "smallest_rise": float(np.diff(fit.objective_path_).min() / abs(fit.objective_path_[-1])),
        "converged": bool(fit.converged_),
        "eps": float(fit.eps_),
        "eps_critical": float(fit.eps_critical_),
    }


def ablation(samples: Samples, seed: int, name: str) -> Found:
    """One part of SC-FAGC changed."""
    changes = (
        {"size_min": 0, "size_max": len(samples.features)} if name == "without_bounds" else ABLATIONS[name]
    )
    return sc_fagc(samples, seed, **changes)


def equal_bounds(samples: Samples, seed: int) -> Found:
    """SC-FAGC told that all clusters are alike, 15 % around an equal share: what wrong bounds cost."""
    share = len(samples.features) / samples.clusters
    return sc_fagc(samples, seed, size_min=0.85 * share, size_max=1.15 * share)


def k_means(samples: Samples, seed: int) -> Found:
    """scikit-learn's k-means, ten starts."""
    return KMeans(samples.clusters, n_init=10, random_state=seed).fit(samples.features).labels_, {}


def spectral(samples: Samples, seed: int) -> Found:
    """scikit-learn's spectral clustering on the graph of 10 nearest neighbours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a graph in several pieces
        fit = SpectralClustering(
            samples.clusters, affinity="nearest_neighbors", n_neighbors=NEIGHBOURS, random_state=seed
        ).fit(samples.features)
    return fit.labels_, {}


def constrained(samples: Samples, seed: int, starts: int = 10) -> Found:
    """k-means-constrained on the samples themselves, within the same bounds (one pair for all clusters)."""
    least, most = int(np.ceil(samples.size_min.min())), int(samples.size_max.max())
    fit = constrained_k_means()(
        samples.clusters, size_min=least, size_max=most, n_init=starts, random_state=seed
    ).fit(np.asarray(samples.features, dtype=np.float64))
    return np.asarray(fit.labels_, dtype=np.int64), {}


def _anchor_graph(samples: Samples, seed: int) -> tuple[Any, np.ndarray]:
    rng = np.random.RandomState(seed)
    anchors = choose_anchors(samples.features, samples.anchors, "bkhk", rng)
    while True:
        graph = anchor_graph(samples.features, anchors, 5)
        used = np.asarray(graph.sum(axis=0)).ravel() > 0
        if used.all():
            return graph, anchor_similarity(graph)[0]
        anchors = anchors[used]


def _send(samples: Samples, graph: Any, similarity: np.ndarray, labels: np.ndarray) -> Found:
    hard = one_hot(labels, samples.clusters)
    return np.asarray((graph @ hard).argmax(axis=1)), {"similarity": objective_value(similarity, hard, 0.0)}


def fagc(samples: Samples, seed: int) -> Found:
    """FAGC-R: scikit-learn's spectral clustering of the anchors, eigenvectors discretised, without bounds."""
    graph, similarity = _anchor_graph(samples, seed)
    fit = SpectralClustering(
        samples.clusters, affinity="precomputed", assign_labels="discretize", random_state=seed
    ).fit((graph.T @ graph).toarray())
    return _send(samples, graph, similarity, fit.labels_)


def rival(samples: Samples, seed: int) -> Found:
    """Unit rows of the anchors' top eigenvectors, k-means-constrained on them within the same bounds, transmission."""
    graph, similarity = _anchor_graph(samples, seed)
    m, n = len(similarity), len(samples.features)
    sizes = SizeBounds(samples.size_min, samples.size_max, True)
    low, high = sizes.on_anchors(n, m, strict=True)
    rows = spectral_rows(top_eigenvectors(similarity, samples.clusters)[1])
    fit = constrained_k_means()(
        samples.clusters, size_min=int(low.min()), size_max=int(high.max()), n_init=10, random_state=seed
    ).fit(rows)
    return _send(samples, graph, similarity, np.asarray(fit.labels_, dtype=np.int64))


PEERS: dict[str, Callable[[Samples, int], Found]] = {
    "k_means": k_means,
    "spectral": spectral,
    "k_means_constrained": constrained,
    "fagc_r": fagc,
    "rival": rival,
    "sc_fagc": sc_fagc,
    "equal_bounds": equal_bounds,
}
