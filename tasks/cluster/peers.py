"""Clustering methods of well-kept libraries, to put beside a paper's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from methods.common.constrained_k_means import constrained_k_means
from methods.common.errors import ConfigError
from tasks.cluster.methods import KMeansConstrainedPeer, KMeansPeer


def k_means(
    out: Path, *, method: KMeansPeer, features: np.ndarray, seed: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """scikit-learn's KMeans or MiniBatchKMeans, ten starts; centres go to `out`."""
    from sklearn.cluster import KMeans, MiniBatchKMeans

    fewer_than_samples(method.n_clusters, len(features))
    if method.batch_size:
        fit = MiniBatchKMeans(method.n_clusters, batch_size=method.batch_size, n_init=10, random_state=seed)
    else:
        fit = KMeans(method.n_clusters, n_init=10, random_state=seed)
    fit.fit(features)
    np.save(out / "centres.npy", fit.cluster_centers_)
    return fit.labels_, {"inertia": float(fit.inertia_)}


def k_means_constrained(
    out: Path, *, method: KMeansConstrainedPeer, features: np.ndarray, seed: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """k-means-constrained; centres go to `out`.

    Raises:
        ConfigError: the package is not installed, or no whole sizes lie between the bounds.
    """
    make = constrained_k_means()
    fewer_than_samples(method.n_clusters, len(features))
    least, most = (int(np.ceil(method.bounds(len(features))[0])), int(method.bounds(len(features))[1]))
    if least * method.n_clusters > len(features) or most * method.n_clusters < len(features):
        raise ConfigError(
            f"size_min={method.size_min}, size_max={method.size_max}: no whole sizes of {len(features)} samples lie "
            "between them; widen them"
        )
    fit = make(
        method.n_clusters, size_min=least, size_max=most, n_init=method.restarts, random_state=seed
    ).fit(np.asarray(features, dtype=np.float64))
    np.save(out / "centres.npy", fit.cluster_centers_)
    return fit.labels_.astype(np.int64), {"inertia": float(fit.inertia_)}


def fewer_than_samples(clusters: int, samples: int) -> None:
    """Raises ConfigError when there are more clusters than samples."""
    if clusters > samples:
        raise ConfigError(f"n_clusters={clusters} is above the {samples} samples; lower it")
