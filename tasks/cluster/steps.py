"""The cluster flow's steps as Prefect tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.cluster.batches import Piece
from tasks.cluster.config import FeatureSettings
from tasks.cluster.coreset_config import StreamCoresetSettings
from tasks.cluster.methods import ClusterMethod
from tasks.reference import Reference
from tasks.step import step


@step("cluster-features", kind="data", version="1", timeout_seconds=24 * 3600)
def prepare_features(out: Path, *, settings: FeatureSettings, fingerprint: str) -> dict[str, Any]:
    """Samples as a matrix of features, with the true classes where there are any."""
    from tasks.cluster.features import build_features

    return build_features(settings, out)


@step("cluster", kind="data", version="1", timeout_seconds=24 * 3600)
def cluster_samples(out: Path, *, method: ClusterMethod, features: Reference, seed: int) -> dict[str, Any]:
    """Label every sample by one method."""
    from tasks.cluster.cluster import cluster_features

    return cluster_features(out, method=method, features=features, seed=seed)


@step("cluster-assign", kind="data", version="1", timeout_seconds=24 * 3600)
def assign(
    out: Path, *, settings: FeatureSettings, fingerprint: str, labels: Reference, column: str, shards: bool
) -> dict[str, Any]:
    """The source's rows with their cluster, and one file a cluster where that is wanted."""
    from tasks.cluster.assign import assign_rows

    return assign_rows(out, settings=settings, labels=labels, column=column, shards=shards)


@step("coreset-piece", kind="data", version="1", timeout_seconds=24 * 3600)
def coreset_piece(
    out: Path, *, settings: StreamCoresetSettings, piece: Piece, number: int, fingerprint: str
) -> dict[str, Any]:
    """The coreset of one piece of a source that may be larger than memory."""
    from tasks.cluster.coreset import reduce_piece

    return reduce_piece(out, settings=settings, piece=piece, number=number)


@step("coreset-merge", kind="data", version="1", timeout_seconds=24 * 3600)
def coreset_merge(
    out: Path, *, settings: StreamCoresetSettings, parts: list[Reference], pieces: list[Piece]
) -> dict[str, Any]:
    """The coreset of all pieces, and the centres solved on it."""
    from tasks.cluster.coreset import merge_pieces

    return merge_pieces(out, settings=settings, parts=parts, pieces=pieces)


@step("coreset-label", kind="data", version="1", timeout_seconds=24 * 3600)
def coreset_label(
    out: Path, *, settings: StreamCoresetSettings, piece: Piece, merged: Reference, fingerprint: str
) -> dict[str, Any]:
    """The cluster of every row of one piece."""
    from tasks.cluster.coreset import label_piece

    return label_piece(out, settings=settings, piece=piece, merged=merged)
