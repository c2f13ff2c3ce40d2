"""A coreset of rows that do not fit into memory: pieces reduced side by side, merged, solved, and all rows labelled."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from methods.approx_coresets import ApproxCoreset, WeightedKMedian, coreset_size
from methods.approx_coresets.space import Dense
from methods.common.errors import DataError
from tasks.cluster.batches import Piece, batches
from tasks.cluster.coreset_config import StreamCoresetSettings
from tasks.reference import Reference

CORESET = "coreset.npz"
SPARE = 4  # points of a piece's coreset, as a multiple of the result's
ROWS, CENTRES, LABELS, RECORD = "rows.csv", "centres.npy", "labels.npy", "coreset.json"


def new_coreset(settings: StreamCoresetSettings, seed: int) -> ApproxCoreset:
    """For one piece: more points than the result will have, because errors add up from level to level."""
    size = settings.points or coreset_size(settings.n_clusters, settings.eps)
    return ApproxCoreset(
        settings.n_clusters,
        size=SPARE * size,
        eps=settings.eps,
        z=settings.power,
        reduce_factor=1,
        random_state=seed,
    )


def reduce_piece(out: Path, *, settings: StreamCoresetSettings, piece: Piece, number: int) -> dict[str, Any]:
    """Write `coreset.npz` of one piece, read batch by batch.

    Raises:
        DataError: rows that cannot be read, or none.
    """
    made = new_coreset(settings, _seed(settings.seed, number))
    for matrix in batches(piece, settings.features):
        made.partial_fit(matrix)
    if not hasattr(made, "n_seen_"):
        raise DataError(f"data {Path(piece.file).name}: holds no rows")
    made.save(out / CORESET)
    return {"rows": made.n_seen_, "points": len(made.weights_), "mass_ratio": made.mass_ratio_}


def merge_pieces(
    out: Path, *, settings: StreamCoresetSettings, parts: list[Reference], pieces: list[Piece]
) -> dict[str, Any]:
    """Write the coreset of all rows, its rows with their weights (`rows.csv`), and the centres solved on it.

    Raises:
        DataError: fewer rows than clusters, pieces with different columns.
    """
    found = [ApproxCoreset.load(part.expect("data") / CORESET) for part in parts]
    whole = found[0]
    for one in found[1:]:
        whole = whole.merge(one)
    if whole.n_seen_ < settings.n_clusters:
        raise DataError(f"n_clusters={settings.n_clusters} is above the {whole.n_seen_} rows; lower it")
    whole.set_params(size=settings.points or None).reduce()
    whole.save(out / CORESET)
    _write_rows(out / ROWS, whole, [one.n_seen_ for one in found], pieces)
    centres, cost = solve(whole, settings)
    np.save(out / CENTRES, centres)
    record = {
        "rows": int(whole.n_seen_),
        "points": len(whole.weights_),
        "pieces": len(parts),
        "mass_ratio": whole.mass_ratio_,
        "effective_points": whole.ess_,
        "coreset_cost": cost,
        "guarantee": whole.guarantee_,
    }
    (out / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return record


def _write_rows(file: Path, whole: ApproxCoreset, counts: list[int], pieces: list[Piece]) -> None:
    """Which rows were kept: file, row in that file (from 0), weight; in the order of the coreset's points."""
    starts = np.cumsum([0, *counts])
    begins: dict[str, int] = {}
    for piece, start in zip(pieces, starts, strict=False):
        begins.setdefault(piece.file, int(start))
    place = np.searchsorted(starts, whole.indices_, side="right") - 1
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["file", "row", "weight"])
        for p, row, weight in zip(place, whole.indices_.tolist(), whole.weights_.tolist(), strict=True):
            name = pieces[p].file
            writer.writerow([Path(name).name, row - begins[name], repr(weight)])


def solve(coreset: ApproxCoreset, settings: StreamCoresetSettings) -> tuple[np.ndarray, float]:
    """Centres `[k, d]` and their cost on the coreset."""
    from sklearn.cluster import KMeans

    k = min(settings.n_clusters, len(coreset.weights_))
    if settings.power == 2:
        solver: Any = KMeans(k, n_init=settings.starts, random_state=settings.seed)
    else:
        solver = WeightedKMedian(k, n_init=settings.starts, random_state=settings.seed)
    solver.fit(coreset.points_, sample_weight=coreset.weights_)
    centres = np.asarray(solver.cluster_centers_, dtype=np.float64)
    return centres, coreset.cost(centres)


def label_piece(
    out: Path, *, settings: StreamCoresetSettings, piece: Piece, merged: Reference
) -> dict[str, Any]:
    """Write `labels.npy` of one piece's rows, and tell their exact cost and the clusters' sizes."""
    centres = np.load(merged.expect("data") / CENTRES)
    labels, cost = [], 0.0
    for matrix in batches(piece, settings.features):
        near, away = Dense(matrix, settings.power).nearest(centres)
        labels.append(near)
        cost += float(away.sum())
    found = np.concatenate(labels)
    np.save(out / LABELS, found)
    return {"cost": cost, "rows": len(found), "sizes": np.bincount(found, minlength=len(centres)).tolist()}


def _seed(seed: int, number: int) -> int:
    """A seed of its own for each piece."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0] % 2**31)
