"""The graph flow's steps as Prefect tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.graphs.config import GraphSettings, Kind, TrainGraphSettings
from tasks.reference import Reference
from tasks.step import step


@step("graph-data", kind="data", version="1", timeout_seconds=24 * 3600)
def prepare_graphs(out: Path, *, settings: GraphSettings, fingerprint: str) -> dict[str, Any]:
    """The source's graphs as arrays."""
    from tasks.graphs.build import build_graphs

    return build_graphs(settings, out)


@step("graph-train", kind="data", version="1", timeout_seconds=48 * 3600)
def train_graph_model(
    out: Path, *, kind: Kind, settings: TrainGraphSettings, graphs: Reference
) -> dict[str, Any]:
    """One model, trained and scored."""
    from tasks.graphs.train import train_model

    return train_model(out, kind=kind, settings=settings, graphs=graphs)
