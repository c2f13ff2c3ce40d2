"""A potential as ASE's calculator: single points, relaxations, molecular dynamics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from ase.calculators.calculator import Calculator, all_changes
from ase.stress import full_3x3_to_voigt_6_stress

from methods.tace.graphs import graph_of
from methods.tace.potential import Potential
from methods.tace.training import load_potential


class TaceCalculator(Calculator):
    """Energy, forces, stress of periodic cells, and the tensors that the model has heads for.

    Args:
        model: a potential, or the folder of a saved one.
        device: where it computes.
        double: compute in float64, which dynamics wants; False for float32.

    Raises:
        DataError: see `load_potential`; an unknown element or places that are no numbers, when it is asked.
    """

    implemented_properties = ["energy", "free_energy", "forces", "stress", "dipole", "polarizability"]  # noqa: RUF012

    def __init__(self, model: Potential | str | Path, device: str = "cpu", *, double: bool = True) -> None:
        super().__init__()
        loaded = model if isinstance(model, Potential) else load_potential(model)
        self.dtype = torch.float64 if double else torch.float32
        self.model = _copied(loaded).to(device=device, dtype=self.dtype).eval()
        self.model.requires_grad_(False)
        self.device = device

    def calculate(
        self,
        atoms: Any = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Fill `results`; the stress in Voigt's order."""
        super().calculate(atoms, list(properties), list(system_changes))
        graph = graph_of(self.atoms, self.model.config.cutoff, self.dtype)
        graph = {name: value.to(self.device) for name, value in graph.items()}
        stress = "stress" in properties or bool(self.atoms.pbc.all())
        found = self.model(graph, stress=stress)
        energy = float(found["energy"][0].detach())
        self.results = {
            "energy": energy,
            "free_energy": energy,
            "forces": found["forces"].detach().cpu().numpy().astype(float),
        }
        if stress:
            whole = found["stress"][0].detach().cpu().numpy().astype(float)
            self.results["stress"] = full_3x3_to_voigt_6_stress(whole)
        for name in self.model.config.tensors:
            self.results[name] = found[name][0].detach().cpu().numpy().astype(float)


def _copied(model: Potential) -> Potential:
    """The same potential, so that the caller's keeps its type and gradients."""
    copy = type(model)(model.config)
    copy.to(next(model.parameters()).dtype)
    copy.load_state_dict(model.state_dict())
    return copy
