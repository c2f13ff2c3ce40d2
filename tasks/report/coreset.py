"""What the coreset flow made, as people read it and as metrics.json keeps it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd


def coreset_table(
    merged: Mapping[str, Any], labelled: Sequence[Mapping[str, Any]]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows, points, and the cost by the coreset beside the exact one, where all rows were read again.

    Args:
        merged: summary of the merged coreset.
        labelled: summaries of the labelled pieces; empty when no rows were labelled.
    """
    metrics: dict[str, Any] = {name: v for name, v in merged.items() if isinstance(v, int | float)}
    shown = {
        "rows": f"{merged['rows']:,}",
        "pieces": str(merged["pieces"]),
        "points kept": f"{merged['points']:,}",
        "weights over rows": f"{merged['mass_ratio']:.4f}",
        "cost on the coreset": f"{merged['coreset_cost']:.6g}",
    }
    if labelled:
        cost = sum(one["cost"] for one in labelled)
        sizes = [sum(found) for found in zip(*(one["sizes"] for one in labelled), strict=True)]
        # Solutions that were fitted on a coreset exploit its errors: their cost on all rows is larger.
        ratio = cost / merged["coreset_cost"] if merged["coreset_cost"] else 1.0
        metrics |= {"cost": cost, "cost_over_estimate": ratio, "smallest": min(sizes), "largest": max(sizes)}
        shown |= {
            "cost on all rows": f"{cost:.6g}",
            "ratio": f"{ratio:.4f}",
            "smallest cluster": f"{min(sizes):,}",
            "largest": f"{max(sizes):,}",
        }
    return pd.DataFrame([shown]), metrics
