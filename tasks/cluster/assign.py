"""The source's rows with their cluster, and, for whoever splits a training set, one file a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from methods.common.errors import DataError
from tasks.cluster.cluster import LABELS
from tasks.cluster.config import FeatureSettings
from tasks.cluster.features import read_table
from tasks.reference import Reference

ASSIGNED, SHARDS, MANIFEST = "assigned.parquet", "shards", "shards.json"


def assign_rows(
    out: Path, *, settings: FeatureSettings, labels: Reference, column: str, shards: bool
) -> dict[str, Any]:
    """Write `assigned.parquet`: the source's table with one more column; of arrays the row number and its cluster.

    Args:
        out: a folder; files of a killed attempt are written anew.
        settings: the source.
        labels: what `cluster_features` wrote.
        column: name of the new column.
        shards: also write `shards/cluster-<k>.parquet` and `shards.json` with the rows of each.

    Raises:
        DataError: the table already has such a column, or has changed since it was clustered.
    """
    import pandas as pd

    found = np.load(labels.expect("data") / LABELS)
    table = read_table(settings)
    if table is None:
        table = pd.DataFrame({"row": np.arange(len(found))})
    if column in table:
        raise DataError(f"column {column!r} is in the data already; name another one")
    if len(table) != len(found):
        raise DataError(
            f"data {settings.source}: has {len(table)} rows, {len(found)} were clustered; run it again"
        )
    table[column] = found
    table.to_parquet(out / ASSIGNED, index=False)
    counts = {}
    if shards:
        folder = out / SHARDS
        folder.mkdir(exist_ok=True)
        width = len(str(int(found.max())))
        for k, rows in table.groupby(column):
            name = f"cluster-{int(k):0{width}}.parquet"  # type: ignore[call-overload]
            rows.to_parquet(folder / name, index=False)
            counts[name] = len(rows)
        (out / MANIFEST).write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return {"rows": len(table), "shards": counts}
