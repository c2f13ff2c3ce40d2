"""SC-FAGC as a method of the cluster step."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from methods.sc_fagc import SCFAGC
from tasks.cluster.methods import ScFagc


def cluster(
    out: Path, *, method: ScFagc, features: np.ndarray, seed: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """Labels of every sample; anchors with their labels and memberships go to `out`.

    Raises:
        ConfigError, DataError: as `SCFAGC.fit`.
    """
    least, most = method.bounds(len(features))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit = SCFAGC(
            method.n_clusters,
            n_anchors=method.n_anchors or None,
            n_neighbors=method.n_neighbors,
            size_min=least,
            size_max=most,
            transmission="bounded" if method.hold == "samples" else "argmax",
            n_init=method.n_init,
            random_state=seed,
            eps_share=method.entropy,
            anchor_method="bkhk" if method.anchors == "balanced" else "kmeans",
        ).fit(features)
    np.save(out / "anchors.npy", fit.anchors_)
    np.save(out / "anchor_labels.npy", fit.anchor_labels_)
    np.save(out / "membership.npy", fit.membership_)
    return fit.labels_, {
        "anchors": len(fit.anchors_),
        "anchor_bounds": [int(fit.bounds_[0].min()), int(fit.bounds_[1].max())],
        "anchor_sizes": fit.anchor_sizes_.tolist(),
        "eps": None if method.n_clusters == 1 else float(fit.eps_),
        "eps_critical": None if method.n_clusters == 1 else float(fit.eps_critical_),
        "objective": [float(value) for value in fit.objective_path_],
        "converged": bool(fit.converged_),
        "collapsed": bool(fit.collapsed_),
        "notes": list(dict.fromkeys(str(warning.message) for warning in told)),
    }
