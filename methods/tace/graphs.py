"""Graphs of neighbours from ASE's atoms, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from methods.common.errors import ConfigError, DataError


def graph_of(atoms: Any, cutoff: float, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The neighbours of every atom within a cutoff, through periodic boundaries as well.

    Args:
        atoms: `ase.Atoms`.
        cutoff: in angstrom.
        dtype: of the positions.

    Returns:
        what `Potential` takes, for one graph; the cell is zero where there is none.

    Raises:
        ConfigError: no cutoff above 0. DataError: no atoms, or positions that are no numbers.
    """
    from ase.neighborlist import primitive_neighbor_list

    if not 0 < cutoff < float("inf"):
        raise ConfigError(f"cutoff {cutoff}: must be above 0")
    positions = np.asarray(atoms.positions, dtype=float)
    if not len(positions):
        raise DataError("atoms: there are none")
    if not np.isfinite(positions).all():
        raise DataError("atoms: some positions are no numbers (NaN or infinity)")
    cell = np.asarray(atoms.cell.array, dtype=float)
    # A direction without a vector has no images; the search wants one all the same.
    whole = np.asarray(atoms.cell.complete().array, dtype=float)
    to, start, images = primitive_neighbor_list("ijS", atoms.pbc, whole, positions, cutoff)
    if len(to) == 0:
        to, start, images = np.empty(0, int), np.empty(0, int), np.empty((0, 3))
    return {
        "positions": torch.tensor(positions, dtype=dtype),
        "atomic_numbers": torch.tensor(np.asarray(atoms.numbers), dtype=torch.long),
        "edge_index": torch.tensor(np.stack([start, to]), dtype=torch.long),
        "shifts": torch.tensor(np.asarray(images) @ whole, dtype=dtype),
        "cell": torch.tensor(cell, dtype=dtype)[None],
        "batch": torch.zeros(len(positions), dtype=torch.long),
    }


def batch_of(graphs: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Several graphs as one. Raises DataError: none is given."""
    if not graphs:
        raise DataError("graphs: there are none")
    sizes = [len(graph["positions"]) for graph in graphs]
    starts = np.cumsum([0, *sizes[:-1]])
    return {
        **{
            name: torch.cat([graph[name] for graph in graphs])
            for name in ("positions", "atomic_numbers", "shifts", "cell")
        },
        "edge_index": torch.cat(
            [graph["edge_index"] + int(start) for graph, start in zip(graphs, starts, strict=True)], dim=1
        ),
        "batch": torch.repeat_interleave(torch.arange(len(graphs)), torch.tensor(sizes)),
    }
