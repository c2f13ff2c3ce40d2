"""What is known of labelled atoms: energies, forces, stress and tensors, from ASE's objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from methods.common.errors import DataError
from methods.tace.config import TENSOR_RANKS
from methods.tace.graphs import graph_of

# Label -> name in the file: as results of a calculator, or in `info` and `arrays`.
KEYS = {name: name for name in ("energy", "forces", "stress", "dipole", "polarizability")}


def labels_of(atoms: Any, keys: Mapping[str, str], where: str) -> dict[str, Any]:
    """The labels of one structure, checked.

    Args:
        atoms: `ase.Atoms`.
        keys: label -> name in `atoms.calc.results`, `atoms.info` or `atoms.arrays`.
        where: "frame 3", for messages.

    Returns:
        energy; forces (atoms, 3); where there are any stress (3, 3), dipole (3,), polarizability (3, 3).

    Raises:
        DataError: no energy or forces under these names, or values of another shape or that are no numbers.
    """
    stored = {**atoms.info, **atoms.arrays, **(atoms.calc.results if atoms.calc is not None else {})}
    found: dict[str, Any] = {}
    shapes = {"energy": (), "forces": (len(atoms), 3), "dipole": (3,)}
    for label, key in keys.items():
        if key not in stored:
            if label in ("energy", "forces"):
                raise DataError(
                    f"{where}: has no {key!r} for the {label}; it has {', '.join(sorted(stored))}"
                )
            continue
        value = np.asarray(stored[key], dtype=float)
        if label in ("stress", "polarizability"):
            value = _square(value)
        if value.shape != shapes.get(label, (3, 3)):
            raise DataError(f"{where}: {key!r} has the shape {value.shape}, not {shapes.get(label, (3, 3))}")
        if not np.isfinite(value).all():
            raise DataError(f"{where}: {key!r} holds numbers that are none (NaN or infinity)")
        found[label] = value
    return found


def _square(value: Any) -> Any:
    """Six numbers in Voigt's order or nine as (3, 3)."""
    if value.shape == (6,):
        return value[[0, 5, 4, 5, 1, 3, 4, 3, 2]].reshape(3, 3)
    return value.reshape(3, 3) if value.shape == (9,) else value


def labelled_graphs(
    frames: Sequence[Any], cutoff: float, keys: Mapping[str, str] = KEYS, name: str = "train"
) -> list[dict[str, Tensor]]:
    """Graphs with labels, named like the model's outputs.

    Args:
        frames: `ase.Atoms`.
        cutoff: in angstrom.
        keys: see `labels_of`.
        name: of the set, for messages.

    Raises:
        DataError: no frames; see `labels_of` and `graph_of`; some frames only have a stress or tensor.
    """
    if not len(frames):
        raise DataError(f"{name}: holds no frames; give at least one")
    graphs, first = [], None
    for number, atoms in enumerate(frames, start=1):
        labels = labels_of(atoms, keys, f"{name}, frame {number}")
        if first is not None and set(labels) != first:
            differing = ", ".join(sorted(first ^ set(labels)))
            raise DataError(
                f"{name}, frame {number}: only some frames have {differing}; give it to all or none"
            )
        first = set(labels)
        graph = graph_of(atoms, cutoff)
        graph["target_energy"] = torch.tensor([float(labels["energy"])], dtype=torch.float64)
        graph["target_forces"] = torch.tensor(labels["forces"], dtype=torch.float32)
        for label in ("stress", *TENSOR_RANKS):
            if label in labels:
                graph[f"target_{label}"] = torch.tensor(labels[label], dtype=torch.float32)[None]
        graphs.append(graph)
    return graphs


def element_shares(numbers: Sequence[Tensor], elements: Sequence[int], totals: Tensor) -> tuple[float, ...]:
    """What each element adds to a total, by least squares (the smallest solution where the set does not tell)."""
    counts = torch.tensor(
        [[float((row == element).sum()) for element in elements] for row in numbers], dtype=torch.float64
    )
    solution = torch.linalg.lstsq(counts, totals.double()[:, None], driver="gelsd").solution
    return tuple(float(value) for value in solution[:, 0])
