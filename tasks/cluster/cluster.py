"""Cluster the samples by one method: labels, sizes, and how good they are."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from methods.common.clustering_scores import clustering_scores, size_facts
from methods.common.errors import DataError
from tasks.cluster.features import load_features
from tasks.cluster.methods import ClusterMethod, clusterer_of
from tasks.reference import Reference

LABELS, RECORD = "labels.npy", "clusters.json"
SILHOUETTE_SAMPLE = 2_000


def cluster_features(out: Path, *, method: ClusterMethod, features: Reference, seed: int) -> dict[str, Any]:
    """Write `labels.npy`, `clusters.csv` (size of each cluster), `clusters.json` and the method's own files.

    Args:
        out: emptied first: what a killed attempt left does no harm.
        method: one of the known methods.
        features: what `build_features` wrote.
        seed: of the method.

    Returns:
        what `clusters.json` holds; `timings` are measured and stand in no file.

    Raises:
        ConfigError, DataError: what does not fit, in one line.
    """
    matrix, truth = load_features(features.expect("data"))
    out.mkdir(parents=True, exist_ok=True)
    for left in out.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    started = time.perf_counter()
    labels, facts = clusterer_of(method)(out, method=method, features=matrix, seed=seed)
    seconds = time.perf_counter() - started
    labels = np.asarray(labels)
    if labels.shape != (len(matrix),):
        raise DataError(f"{method.kind}: gave labels of shape {labels.shape} for {len(matrix)} samples")
    np.save(out / LABELS, labels.astype(np.int32))
    sizes = np.bincount(labels, minlength=method.n_clusters)
    rows = "".join(f"{k},{size}\n" for k, size in enumerate(sizes))
    (out / "clusters.csv").write_text("cluster,samples\n" + rows, encoding="utf-8")
    least, most = method.bounds(len(matrix))
    record = {
        "kind": method.kind,
        "label": method.label,
        "method": method.model_dump(mode="json"),
        "seed": seed,
        "samples": len(matrix),
        "sizes": sizes.tolist(),
        "bounds": [least, most if np.isfinite(most) else None],
        **{
            f"size/{name}": value
            for name, value in size_facts(labels, method.n_clusters, least, most).items()
        },
        "silhouette": silhouette(matrix, labels),
        **(
            {f"truth/{name}": value for name, value in clustering_scores(truth, labels).items()}
            if truth is not None
            else {}
        ),
        **facts,
    }
    (out / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return {**record, "timings": {"fit_seconds": seconds}}


def silhouette(matrix: np.ndarray, labels: np.ndarray) -> float | None:
    """Mean silhouette of a fixed sample of at most 2,000; None with a single cluster in it."""
    from sklearn.metrics import silhouette_score

    places = np.unique(
        np.linspace(0, len(labels) - 1, min(SILHOUETTE_SAMPLE, len(labels))).round().astype(int)
    )
    chosen = labels[places]
    if not 1 < len(np.unique(chosen)) < len(chosen):
        return None
    return float(silhouette_score(np.asarray(matrix[places]), chosen))
