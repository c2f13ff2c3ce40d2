"""What the study of the paper measures: one training, one cost, each by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from methods.tace.blocks import Convolution, Edges, couplings, scatter_sum
from methods.tace.calculator import TaceCalculator
from methods.tace.config import PotentialConfig
from methods.tace.frames import labelled_graphs
from methods.tace.irreps import Irreps, to_spherical
from methods.tace.product import TensorProduct
from methods.tace.training import PotentialTrainer, TrainingConfig, score

Level = Literal["product", "layer"]
REPEATS = 10
TIME_STEP_FS = 0.5


@dataclass(frozen=True)
class Fit:
    """One training and what it is judged by.

    Attributes:
        model: name in the tables.
        sizes: of `PotentialConfig`.
        seed: of weights and batches.
        frames, epochs: of the training.
        picoseconds: of dynamics at constant energy afterwards; 0 for none.
    """

    model: str
    sizes: Mapping[str, Any] = field(hash=False)
    seed: int
    frames: int
    epochs: int
    picoseconds: float = 0.0


def models(channels: int) -> dict[str, dict[str, Any]]:
    """Every model of the comparison: each twin, the published symbol, TACE, and one that knows distances only."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("nequip", "mace", "allegro"):
        # With two layers NequIP couples to scalars and from scalars only, where the published symbol has no other size.
        sizes = {"architecture": name, "channels": channels, "layers": 3 if name == "nequip" else 2}
        # "auto" changes the basis once an atom and would compare the spherical arithmetic with itself.
        cartesian = {**sizes, "basis": "cartesian", "backend": "contraction"}
        found[f"{name}_spherical"] = {**sizes, "basis": "spherical"}
        found[f"{name}_cartesian"] = cartesian
        found[f"{name}_path"] = {**cartesian, "symbol": "path"}
    found["tace"] = {"architecture": "tace", "channels": channels}
    # As many weights as the twin of NequIP: channels in place of ranks.
    found["scalar"] = {
        "architecture": "nequip",
        "channels": 2 * channels,
        "lmax": 1,
        "node_lmax": 0,
        "layers": 3,
    }
    return found


def fit_row(run: Fit, data: Path) -> dict[str, Any]:
    """Train on ethanol at 500 K; errors on trajectories of their own at 500 K and 1000 K, and the drift.

    Args:
        run: what is trained.
        data: folder with the trajectories of `seedloom fetch xtb`.
    """
    from ase.io import read

    started = time.process_time()
    parts: dict[str, Any] = {
        part: read(data / f"ethanol_{part}.extxyz", ":")
        for part in ("500K_train", "500K_validation", "500K_test", "1000K_test")
    }
    training = TrainingConfig(
        epochs=run.epochs, batch_size=5, learning_rate=0.01, seed=run.seed, validate_every=5
    )
    apart = max(1, len(parts["500K_train"]) // run.frames)
    trainer = PotentialTrainer(run.sizes, training)
    trainer.fit(parts["500K_train"][::apart][: run.frames], parts["500K_validation"][::2])
    model = trainer.model_
    row: dict[str, Any] = {
        "model": run.model,
        "seed": run.seed,
        "parameters": sum(value.numel() for value in model.parameters()),
        "curve": [[one["epoch"], one["energy_mae"], one["forces_mae"]] for one in trainer.history_],
    }
    for kelvin in (500, 1000):
        graphs = labelled_graphs(parts[f"{kelvin}K_test"][::3], model.config.cutoff)
        scores = score(model, graphs)
        row[f"energy_mae_{kelvin}"], row[f"forces_mae_{kelvin}"] = scores["energy_mae"], scores["forces_mae"]
    if run.picoseconds:
        start = parts["500K_test"][run.seed % len(parts["500K_test"])]
        row |= constant_energy(TaceCalculator(model), start, run.picoseconds, run.seed)
    return {**row, "seconds": time.process_time() - started}


def constant_energy(
    calculator: Any, start: Any, picoseconds: float, seed: int, kelvin: float = 300
) -> dict[str, Any]:
    """Velocity Verlet at constant energy.

    Returns:
        drift: slope of the total energy, meV/atom/ps; stable: no atom 3 angstrom from all others; trace: the total
        energy's change in meV/atom over time.
    """
    from ase import units
    from ase.md.velocitydistribution import MaxwellBoltzmannDistribution, Stationary
    from ase.md.verlet import VelocityVerlet

    atoms = start.copy()
    atoms.calc = calculator
    MaxwellBoltzmannDistribution(atoms, temperature_K=kelvin, rng=np.random.default_rng(seed))
    Stationary(atoms)
    dynamics = VelocityVerlet(atoms, TIME_STEP_FS * units.fs)
    every = 20
    times, energies = [0.0], [atoms.get_total_energy()]
    stable = True
    while stable and times[-1] < picoseconds - 1e-9:
        dynamics.run(every)
        times.append(times[-1] + every * TIME_STEP_FS / 1000)
        energies.append(atoms.get_total_energy())
        near = atoms.get_all_distances(mic=bool(atoms.pbc.any())) + 1e9 * np.eye(len(atoms))
        stable = bool(np.isfinite(energies[-1]) and (len(atoms) < 2 or near.min(1).max() < 3))
    change = (np.array(energies) - energies[0]) * 1000 / len(atoms)
    slope = float(np.polyfit(times, change, 1)[0]) if len(times) > 1 else 0.0
    return {
        "drift": slope,
        "stable": stable,
        "trace": [list(map(float, pair)) for pair in zip(times, change, strict=True)],
    }


def cost_row(level: Level, lmax: int, channels: int = 16) -> dict[str, Any]:
    """Processor seconds forward and backward, the least of several, beside e3nn's in the same process.

    Args:
        level: "product", 2000 couplings by the dense symbol; or "layer", messages of 200 atoms and 4000 edges.
        lmax: of both inputs and of the output.
        channels: of each irrep.
    """
    whole = Irreps([(channels, (rank, (-1) ** rank)) for rank in range(lmax + 1)])
    around = Irreps([(1, (rank, (-1) ** rank)) for rank in range(lmax + 1)])
    middle, instructions = couplings(whole, around, whole, "uvu")
    torch.manual_seed(0)
    passes = (_product_passes if level == "product" else _layer_passes)(whole, around, middle, instructions)
    seconds = _least(passes)
    return {
        "level": level,
        "lmax": lmax,
        **{f"seconds_{name}": value for name, value in seconds.items()},
        "ratio": seconds["cartesian"] / seconds["spherical"],
        "memory_ratio": middle.width("cartesian") / middle.width("spherical"),
    }


Passes = dict[str, tuple[Callable[[Tensor], Tensor], Tensor]]


def _theirs(whole: Irreps, around: Irreps, middle: Irreps, instructions: Any) -> Any:
    return o3.TensorProduct(whole, around, middle, instructions, internal_weights=False, shared_weights=False)


def _product_passes(whole: Irreps, around: Irreps, middle: Irreps, instructions: Any) -> Passes:
    """The product alone, each row with weights of its own."""
    rows = 2000
    found: Passes = {}
    theirs = _theirs(whole, around, middle, instructions)
    ours = TensorProduct(
        whole,
        around,
        middle,
        instructions,
        internal_weights=False,
        shared_weights=False,
        backend="dense",
    )
    weight = torch.randn(rows, ours.weight_numel)
    for name, product in (("spherical", theirs), ("cartesian", ours)):
        basis: Any = name
        second = torch.randn(rows, around.width(basis))
        run = partial(lambda p, s, features: p(features, s, weight), product, second)
        found[name] = (run, torch.randn(rows, whole.width(basis), requires_grad=True))
    return found


def _layer_passes(whole: Irreps, around: Irreps, middle: Irreps, instructions: Any) -> Passes:
    """Mix, gather, couple, sum and mix: e3nn's own modules, and the layer of the potentials."""
    atoms, count, lmax = 200, 4000, around.lmax
    config = PotentialConfig(
        elements=(6,), channels=whole[0].mul, lmax=lmax, node_lmax=lmax, architecture="nequip"
    )
    ours = Convolution(config, whole, whole, even=False, divisor=20.0)
    up, product = o3.Linear(whole, whole), _theirs(whole, around, middle, instructions)
    down = o3.Linear(middle, whole)
    radial = torch.rand(count, config.radial)
    index = torch.randint(0, atoms, (2, count))
    harmonics = torch.randn(count, around.width("cartesian"))
    edges = Edges(torch.zeros(atoms), index, harmonics, radial, radial[:, :1], around.parts("cartesian"))
    spherical = to_spherical(harmonics, around)

    def theirs(features: Tensor) -> Tensor:
        messages = product(up(features)[index[0]], spherical, ours.radial(radial))
        mixed: Tensor = down(scatter_sum(messages, index[1], atoms) / ours.divisor)
        return mixed

    return {
        "spherical": (theirs, torch.randn(atoms, whole.width("spherical"), requires_grad=True)),
        "cartesian": (
            lambda features: ours(features, edges),
            torch.randn(atoms, whole.width("cartesian"), requires_grad=True),
        ),
    }


def _least(passes: Passes) -> dict[str, float]:
    """The least time of several passes, in turn so that other work slows all alike, behind two that warm up."""
    times: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(REPEATS + 2):
        for name, (run, features) in passes.items():
            started = time.process_time()
            run(features).square().sum().backward()
            times[name].append(time.process_time() - started)
            features.grad = None
    return {name: min(held[2:]) for name, held in times.items()}
