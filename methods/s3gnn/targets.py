"""Targets of graphs: what they belong to, which are known, and how they become numbers to learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from methods.common.errors import DataError
from methods.s3gnn.network import Task

Array = np.ndarray[Any, Any]


def check_graphs(graphs: Any, need_targets: bool, channels: int | None = None) -> list[Any]:
    """A list of `Data`, from one or several.

    Raises:
        DataError: nothing there, no features, other widths, numbers that are none, no targets; names the graph.
    """
    listed = [graphs] if hasattr(graphs, "edge_index") else list(graphs)
    if not listed:
        raise DataError("graphs: an empty list; give torch-geometric Data objects")
    for place, data in enumerate(listed):
        name = f"graph {place}"
        if not hasattr(data, "edge_index") or data.edge_index is None:
            raise DataError(f"{name} has no edge_index; give torch-geometric Data objects")
        if data.x is None or data.x.dim() != 2 or data.x.shape[0] == 0:
            raise DataError(f"{name} has no node features; give x [N, F] with at least one node")
        channels = int(data.x.shape[1]) if channels is None else channels
        if data.x.shape[1] != channels:
            raise DataError(
                f"{name} has {data.x.shape[1]} features a node, others {channels}; give all the same"
            )
        if not bool(torch.isfinite(data.x.float()).all()):
            raise DataError(f"{name}: x holds numbers that are none (NaN or infinite)")
        if need_targets and data.y is None:
            raise DataError(f"{name} has no targets; give y")
    return listed


def task_of(graphs: Sequence[Any]) -> Task:
    """edge with `edge_label_index`, node with one target a node, else graph.

    Raises:
        DataError: targets fit nothing, or single-node graphs leave it open.
    """
    if all("edge_label_index" in data for data in graphs):
        return "edge"
    counts = [(rows_of(data.y).shape[0], int(data.num_nodes)) for data in graphs]
    if all(rows == nodes for rows, nodes in counts) and any(nodes > 1 for _, nodes in counts):
        return "node"
    if all(rows == 1 for rows, _ in counts):
        return "graph"
    raise DataError(
        f"y has {counts[0][0]} rows in a graph of {counts[0][1]} nodes: give one a node, one a graph, or one a pair of "
        "edge_label_index; task names which"
    )


def rows_of(y: Tensor) -> Tensor:
    """Targets with one row a node, graph or pair."""
    return y.reshape(1) if y.dim() == 0 else y


def expected_rows(data: Any, task: Task) -> int:
    """How many targets a graph has."""
    if task == "edge":
        return int(data.edge_label_index.shape[1])
    return int(data.num_nodes) if task == "node" else 1


def target_rows(graphs: Sequence[Any], task: Task) -> list[Tensor]:
    """Each graph's targets, checked.

    Raises:
        DataError: naming the graph whose count does not fit.
    """
    found = []
    for place, data in enumerate(graphs):
        if task == "edge" and "edge_label_index" not in data:
            raise DataError(
                f"graph {place} has no edge_label_index; give the pairs of nodes that have targets"
            )
        y, rows = rows_of(data.y), expected_rows(data, task)
        if task == "graph" and y.dim() == 1 and y.shape[0] != 1:
            y = y.unsqueeze(0)
        if y.shape[0] != rows:
            raise DataError(f"graph {place}: y has {y.shape[0]} rows, task {task} needs {rows}")
        found.append(y)
    return found


def split_targets(
    graphs: Sequence[Any], known: list[Tensor], fraction: float, generator: np.random.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Masks of the targets that train and that decide when to stop: whole graphs where there are five or more of them,
    targets inside the graphs else. `known`: masks `[rows]`.

    Raises:
        DataError: too few known targets.
    """
    if sum(bool(mask.any()) for mask in known) >= 5:
        usable = [place for place, mask in enumerate(known) if bool(mask.any())]
        held = set(generator.permutation(usable)[: max(1, round(fraction * len(usable)))].tolist())
        train = [mask & (place not in held) for place, mask in enumerate(known)]
        held_masks = [mask & (place in held) for place, mask in enumerate(known)]
    else:
        sizes = [len(mask) for mask in known]
        flat = torch.cat(known)
        places = flat.nonzero().flatten().numpy()
        chosen = generator.permutation(places)[: max(1, round(fraction * len(places)))]
        is_held = torch.zeros_like(flat)
        is_held[torch.as_tensor(chosen, dtype=torch.long)] = True
        held_masks, train = list(is_held.split(sizes)), list((flat & ~is_held).split(sizes))
    if not any(bool(mask.any()) for mask in train) or not any(bool(mask.any()) for mask in held_masks):
        raise DataError(
            "y: too few known targets to train on some and stop by others; give more, or `validation`"
        )
    return train, held_masks
