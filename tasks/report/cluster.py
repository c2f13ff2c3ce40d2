"""Clusterings side by side: sizes against their bounds, a map of the samples, one MLflow run a method."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tasks.cluster.cluster import LABELS
from tasks.cluster.features import load_features
from tasks.config import Config
from tasks.report.comparison import shown_table
from tasks.step import StepResult
from tasks.tracking import RunContext, candidate_run, log_metrics, log_params, log_trace

SCORES = {
    "truth/acc": "accuracy",
    "truth/nmi": "NMI",
    "truth/purity": "purity",
    "truth/ari": "ARI",
    "truth/f_score": "F",
    "truth/precision": "precision",
    "truth/recall": "recall",
}
# The page of a report holds some ten columns; what tells the most stands in the first table.
FIRST = {"truth/acc": "accuracy", "truth/nmi": "NMI", "silhouette": "silhouette"}
MAP_SAMPLE = 3_000


class Clustering(Config):
    """One method's labels: name, folder, what its step measured, and the seconds of its fit."""

    name: str
    folder: Path
    facts: dict[str, Any]
    seconds: float


def candidates(steps: Sequence[StepResult]) -> list[Clustering]:
    """The finished cluster steps."""
    return [
        Clustering(
            name=step.summary["label"],
            folder=step.path,
            facts=step.summary,
            seconds=step.timings["fit_seconds"],
        )
        for step in steps
    ]


def cluster_table(found: Sequence[Clustering]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row a method; all numbers for metrics.json."""
    rows, metrics = [], {}
    for one in found:
        facts = one.facts
        numbers = {n: v for n, v in facts.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        metrics[one.name] = numbers
        least, most = facts["bounds"]
        rows.append(
            {
                "method": one.name,
                "smallest": f"{facts['size/smallest']:,}",
                "largest": f"{facts['size/largest']:,}",
                "bounds": "none" if most is None else f"{least:,.0f} to {most:,.0f}",
                "beyond them": "-" if most is None else f"{100 * facts['size/overshoot']:.1f} %",
                **_cells(facts, FIRST),
                "seconds": f"{one.seconds:.1f}",
            }
        )
    return shown_table(rows), {"candidates": metrics}


def score_table(found: Sequence[Clustering]) -> pd.DataFrame:
    """All scores against the true classes, a row a method; empty without classes."""
    rows = [{"method": one.name, **_cells(one.facts, SCORES)} for one in found]
    return shown_table([row for row in rows if len(row) > 1])


def _cells(facts: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    return {words: f"{facts[name]:.3f}" for name, words in names.items() if name in facts}


def tables(found: Sequence[Clustering], features: Path) -> dict[str, pd.DataFrame]:
    """The data behind the plots, by the same names."""
    sizes = [
        {
            "method": one.name,
            "cluster": k,
            "samples": size,
            "least": one.facts["bounds"][0],
            "most": one.facts["bounds"][1],
        }
        for one in found
        for k, size in enumerate(sorted(one.facts["sizes"], reverse=True))
    ]
    return {"sizes": pd.DataFrame(sizes), "map": _map(found, features)}


def _map(found: Sequence[Clustering], features: Path) -> pd.DataFrame:
    """The first two principal components of a fixed sample, with each method's cluster."""
    matrix, _ = load_features(features)
    places = np.unique(np.linspace(0, len(matrix) - 1, min(MAP_SAMPLE, len(matrix))).round().astype(int))
    rows = np.asarray(matrix[places], dtype=np.float64)
    rows -= rows.mean(axis=0)
    _, _, directions = np.linalg.svd(rows, full_matrices=False)
    # A direction's sign is arbitrary; fixed, the same data give the same plot.
    directions = directions[:2] * np.sign(directions[:2].sum(axis=1, keepdims=True) + 1e-12)
    placed = rows @ directions.T
    data: dict[str, Any] = {"first": placed[:, 0], "second": placed[:, 1] if placed.shape[1] > 1 else 0.0}
    for one in found:
        data[one.name] = np.load(one.folder / LABELS, mmap_mode="r")[places]
    return pd.DataFrame(data)


def figures(found: Sequence[Clustering], features: Path) -> dict[str, Figure]:
    """The plots, by name."""
    data = tables(found, features)
    return {"sizes": plot_sizes(data["sizes"]), "map": plot_map(data["map"])}


def plot_sizes(sizes: pd.DataFrame) -> Figure:
    """Each method's clusters by size, largest first, and the bounds that they were given."""
    groups = list(sizes.groupby("method", sort=False))
    figure = Figure(figsize=(min(4.5 * len(groups) + 1.5, 16), 4.2), layout="constrained")
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, (name, group) in zip(panels, groups, strict=True):
        axes.bar(group.cluster + 1, group.samples, color="C0")
        if group.most.notna().all():
            for bound in (group.least.iloc[0], group.most.iloc[0]):
                axes.axhline(bound, color="C3", linestyle="--", linewidth=1)
        axes.set_title(str(name), fontsize=10)
        axes.set_xlabel("cluster, largest first")
        axes.grid(alpha=0.3, axis="y")
    panels[0].set_ylabel("samples (dashed: bounds)")
    return figure


def plot_map(places: pd.DataFrame) -> Figure:
    """A sample on its first two principal components, coloured by cluster."""
    names = list(places.columns[2:])
    figure = Figure(figsize=(min(4.5 * len(names) + 1, 16), 4.4), layout="constrained")
    panels = figure.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        axes.scatter(places["first"], places["second"], c=places[name] % 20, cmap="tab20", s=4, linewidths=0)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("first principal component")
    panels[0].set_ylabel("second principal component")
    return figure


def log_methods(ctx: RunContext, found: Sequence[Clustering]) -> None:
    """One MLflow run a method with its settings, scores and the objective by step."""
    for one in found:
        run_id = candidate_run(ctx, one.name)
        log_params(ctx, run_id, {**one.facts["method"], "seed": one.facts["seed"]})
        numbers = {
            n: v for n, v in one.facts.items() if isinstance(v, int | float) and not isinstance(v, bool)
        }
        log_metrics(ctx, run_id, {**numbers, "seconds": one.seconds})
        trace = [{"step": i, "objective": value} for i, value in enumerate(one.facts.get("objective", []))]
        log_trace(ctx, run_id, trace)
        ctx.client.set_terminated(run_id)
