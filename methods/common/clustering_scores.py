"""How good labels are, with and without a truth."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix, pair_confusion_matrix


def clustering_scores(truth: Any, labels: Any) -> dict[str, float]:
    """The usual six scores, and the two halves of the pairwise F-score; all in [0, 1] but ARI (at most 1).

    Args:
        truth, labels: `[n]` each, of any hashable kind.

    Returns:
        acc (best one-to-one match of clusters and classes), nmi (arithmetic mean), purity, ari, f_score, precision and
        recall of pairs.
    """
    table = contingency_matrix(truth, labels)
    rows, columns = linear_sum_assignment(-table)
    (_, false), (missed, true) = pair_confusion_matrix(truth, labels).astype(np.float64)
    precision = true / (true + false) if true + false else 1.0
    recall = true / (true + missed) if true + missed else 1.0
    return {
        "acc": float(table[rows, columns].sum() / table.sum()),
        "nmi": float(normalized_mutual_info_score(truth, labels)),
        "purity": float(table.max(axis=0).sum() / table.sum()),
        "ari": float(adjusted_rand_score(truth, labels)),
        "f_score": float(2 * precision * recall / (precision + recall)) if precision + recall else 0.0,
        "precision": float(precision),
        "recall": float(recall),
    }


def overshoot(sizes: Any, lower: Any, upper: Any) -> float:
    """The largest share by which a size misses its bounds, relative to the bound; 0 when none does."""
    low, high = np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
    below = (low - sizes) / np.maximum(low, 1)
    above = np.where(
        np.isfinite(high), (sizes - np.where(np.isfinite(high), high, 0)) / np.maximum(high, 1), 0
    )
    return float(max(below.max(), above.max(), 0.0))


def size_facts(labels: Any, clusters: int, lower: Any, upper: Any) -> dict[str, float]:
    """Smallest and largest cluster, their ratio, and by how much one misses its bounds (in samples)."""
    sizes = np.bincount(np.asarray(labels), minlength=clusters)
    return {
        "smallest": int(sizes.min()),
        "largest": int(sizes.max()),
        "size_ratio": float(sizes.max() / max(sizes.min(), 1)),
        "overshoot": overshoot(sizes, lower, upper),
    }
