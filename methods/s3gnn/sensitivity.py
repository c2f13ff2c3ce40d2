"""How far a model looks: the Jacobian of a node's vector in another node's features (section 2.6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

from methods.common.checks import check_choice
from methods.common.errors import DataError
from methods.s3gnn.network import fields

Norm = Literal["mean_abs", "frobenius", "spectral"]


def jacobian_sensitivity(
    model: Any, data: Any, sources: Sequence[int], targets: Sequence[int], norm: Norm = "mean_abs"
) -> Tensor:
    """|dh_v/dx_u| for each source u and target v, h the nodes' vectors after the last layer.

    Args:
        model: a `GraphNetwork`, or any module called as `model(x, edge_index)` that returns a vector a node.
        data: one graph.
        sources, targets: nodes.
        norm: of each block `[hidden, in]`: mean of the absolute entries, Frobenius or spectral norm.

    Returns:
        `[len(sources), len(targets)]`, float64.

    Raises:
        DataError: a node that is not there.
    """
    check_choice("norm", norm, Norm)
    count = int(data.num_nodes)
    for name, nodes in (("sources", sources), ("targets", targets)):
        wrong = [node for node in nodes if not 0 <= int(node) < count]
        if wrong or not len(nodes):
            raise DataError(f"{name} {list(nodes)[:5]}: give nodes from 0 to {count - 1}")
    was_training = model.training
    model.eval()
    given = fields(data, pairs=False)
    x = given.pop("x").detach().clone().requires_grad_(True)
    hidden = model.embed(x, **given) if hasattr(model, "embed") else model(x, data.edge_index)
    place = torch.as_tensor(list(sources), dtype=torch.long, device=x.device)
    columns = []
    for target in targets:
        # One row of the block for each entry of the target's vector, all sources at once.
        rows = [
            torch.autograd.grad(entry, x, retain_graph=True, allow_unused=True)[0] for entry in hidden[target]
        ]
        block = torch.stack([torch.zeros_like(x) if row is None else row for row in rows], 1)[place]
        columns.append(_sizes(block.double(), norm))
    model.train(was_training)
    return torch.stack(columns, 1)


def _sizes(blocks: Tensor, norm: Norm) -> Tensor:
    if norm == "mean_abs":
        return blocks.abs().mean((1, 2))
    return torch.linalg.matrix_norm(blocks, 2 if norm == "spectral" else "fro")


def distances(data: Any, sources: Sequence[int]) -> np.ndarray[Any, Any]:
    """Hops from each source to each node `[len(sources), N]`; infinity where there is no path."""
    first, second = data.edge_index.cpu().numpy()
    count = int(data.num_nodes)
    graph = sparse.coo_array((np.ones(len(first)), (first, second)), shape=(count, count)).tocsr()
    hops: np.ndarray[Any, Any] = dijkstra(graph, directed=False, unweighted=True, indices=list(sources))
    return hops


def sensitivity_by_distance(
    model: Any, data: Any, sources: Sequence[int], norm: Norm = "mean_abs"
) -> dict[int, float]:
    """Mean sensitivity of the nodes at each distance from the sources: the over-squashing curve of one graph."""
    hops = distances(data, sources)
    table = jacobian_sensitivity(model, data, sources, range(int(data.num_nodes)), norm).numpy()
    reached = sorted({int(h) for h in hops[np.isfinite(hops)]})
    return {hop: float(table[hops == hop].mean()) for hop in reached}


def decay_exponent(distance: Sequence[float], sensitivity: Sequence[float]) -> float:
    """Slope of log sensitivity against log distance (or size); -inf when a sensitivity is 0."""
    if any(value <= 0 for value in sensitivity):
        return -math.inf
    return float(np.polyfit(np.log(distance), np.log(sensitivity), 1)[0])


def cancellation(model: Any, data: Any) -> list[float]:
    """How near each layer's global response is to nothing: smallest over largest singular value of alpha0 W_out W_in.

    The earlier lower bound on far sensitivity assumes a filter whose response never cancels: a layer with a value near
    0 here breaks that assumption in some direction, whatever the graph.
    """
    found = []
    for conv in model.convs:
        if getattr(conv, "spec_in", None) is None:
            found.append(0.0)
            continue
        with torch.no_grad():
            alpha = 0.0 if conv.alpha0 is None else float(conv.alpha0.detach())
            response = alpha * conv._out(conv.spec_out, conv.spec_in) @ conv.spec_in()
            values = torch.linalg.svdvals(response.double())
        found.append(float(values[-1] / values[0]) if float(values[0]) > 0 else 0.0)
    return found
