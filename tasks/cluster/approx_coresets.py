"""k-means and k-median on a coreset as a method of the cluster step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from methods.approx_coresets import ApproxCoreset, CoresetClusterer
from tasks.cluster.methods import Coreset
from tasks.cluster.peers import fewer_than_samples


def cluster(
    out: Path, *, method: Coreset, features: np.ndarray, seed: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """Labels of every sample; the coreset (`coreset.npz`: points, weights, rows) and the centres go to `out`."""
    fewer_than_samples(method.n_clusters, len(features))
    coreset = ApproxCoreset(method.n_clusters, size=method.points or None, eps=method.eps, z=method.power)
    fit = CoresetClusterer(coreset=coreset, polish=method.polish, random_state=seed).fit(features)
    fit.coreset_.save(out / "coreset.npz")
    np.save(out / "centres.npy", fit.cluster_centers_)
    labels = np.asarray(fit.labels_, dtype=np.int64)
    return labels, {
        "inertia": fit.inertia_,
        "coreset_inertia": fit.coreset_inertia_,
        "coreset_points": len(fit.coreset_.weights_),
        "notes": [f"coreset: {fit.coreset_.guarantee_}"],
    }
