"""Trajectories of molecules and of a crystal with energies and forces of GFN-xTB, for potentials that learn them.

Langevin dynamics under tblite (Bannwarth et al. 2019, GFN2-xTB; the crystal under GFN1-xTB, whose periodic sums are
fast). Each part of a set is a trajectory of its own: frames of one trajectory are no test of one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from methods.common.errors import DataError
from tasks.reference import file_digest

STEP_FS, FRICTION = 0.5, 0.02
WARM_UP, APART = 600, 20
FIELD = 1e-3  # atomic units: central differences of the dipole are exact to 1e-10
BOHR = 0.529177210903
STRAIN, CELLS = 0.02, 5


@dataclass(frozen=True)
class Trajectory:
    """One file.

    Attributes:
        system: name in ASE's set of molecules, or "diamond".
        kelvin: of the thermostat.
        part: "train", "validation" or "test".
        frames: that are kept.
        tensors: label polarizabilities too.
    """

    system: str
    kelvin: int
    part: str
    frames: int
    tensors: bool = False

    @property
    def file(self) -> str:
        """Its name: ethanol_500K_train.extxyz."""
        return f"{NAMES[self.system]}_{self.kelvin}K_{self.part}.extxyz"


NAMES = {"CH3CH2OH": "ethanol", "C6H6": "benzene", "CH3CONH2": "acetamide", "diamond": "diamond"}
TRAJECTORIES = (
    *(
        Trajectory("CH3CH2OH", 500, part, frames, True)
        for part, frames in (("train", 400), ("validation", 50), ("test", 150))
    ),
    *(Trajectory("CH3CH2OH", kelvin, "test", 150) for kelvin in (300, 1000)),
    *(
        Trajectory(system, 500, part, frames)
        for system in ("C6H6", "CH3CONH2")
        for part, frames in (("train", 150), ("validation", 30), ("test", 60))
    ),
    *(
        Trajectory("diamond", 600, part, frames)
        for part, frames in (("train", 60), ("validation", 15), ("test", 30))
    ),
)


def xtb(out: Path) -> dict[str, Any]:
    """Every trajectory as extended XYZ, in a few minutes."""
    return write_trajectories(out, TRAJECTORIES)


def write_trajectories(out: Path, wanted: tuple[Trajectory, ...], warm_up: int = WARM_UP) -> dict[str, Any]:
    """Simulate and store: energy in eV, forces in eV/angstrom, stress in eV/angstrom^3, dipole in e angstrom,
    polarizability in angstrom^3.

    Args:
        out: an existing folder.
        wanted: the trajectories; its place in the list is the seed of each.
        warm_up: steps that are thrown away.

    Raises:
        DataError: tblite is not installed.
    """
    try:
        import tblite.ase  # noqa: F401
    except ImportError as error:
        raise DataError(
            "the labels come from tblite; install it with: pip install 'seedloom[atoms]'"
        ) from error
    from ase.io import write

    digests = {}
    for seed, trajectory in enumerate(wanted):
        write(out / trajectory.file, frames_of(trajectory, seed, warm_up), format="extxyz")
        digests[trajectory.file] = file_digest(out / trajectory.file)
    return {
        "trajectories": digests,
        "source": f"tblite {version('tblite')}: GFN2-xTB; diamond: GFN1-xTB",
        "dynamics": f"Langevin, {STEP_FS} fs, friction {FRICTION}/fs, every {APART}th step",
        "licence": "made here",
    }


def frames_of(trajectory: Trajectory, seed: int, warm_up: int) -> list[Any]:
    """The labelled frames of one trajectory; of a crystal those of several strained cells, one after the other."""
    if trajectory.system != "diamond":
        from ase.build import molecule

        return _run(molecule(trajectory.system), trajectory, trajectory.frames, seed, warm_up, APART)
    from ase.build import bulk

    rng, found = np.random.default_rng(seed), []
    share = -(-trajectory.frames // CELLS)
    for number in range(CELLS):
        atoms = bulk("C", cubic=True)
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + _strain(rng)), scale_atoms=True)
        found += _run(atoms, trajectory, share, 1000 * seed + number, warm_up // 20, APART // 4)
    return found[: trajectory.frames]


def _strain(rng: np.random.Generator) -> Any:
    """(3, 3) symmetric."""
    raw = rng.normal(scale=STRAIN, size=(3, 3))
    return (raw + raw.T) / 2


def _run(atoms: Any, trajectory: Trajectory, frames: int, seed: int, warm_up: int, apart: int) -> list[Any]:
    """Langevin dynamics from the given places, and the frames as atoms with what was computed."""
    from ase import units
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.md.langevin import Langevin
    from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
    from tblite.ase import TBLite

    rng = np.random.default_rng(seed)
    periodic = bool(atoms.pbc.any())
    atoms.calc = TBLite(method="GFN1-xTB" if periodic else "GFN2-xTB", verbosity=0)
    MaxwellBoltzmannDistribution(atoms, temperature_K=trajectory.kelvin, rng=rng)
    dynamics = Langevin(
        atoms,
        STEP_FS * units.fs,
        temperature_K=trajectory.kelvin,
        friction=FRICTION / units.fs,
        fixcm=False,
        rng=rng,
    )
    dynamics.run(warm_up)
    kept = []
    for _ in range(frames):
        dynamics.run(apart)
        frame = atoms.copy()
        found = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        if periodic:
            found["stress"] = atoms.get_stress()
        else:
            found["dipole"] = atoms.get_dipole_moment()
        if trajectory.tensors:
            frame.info["polarizability"] = polarizability(frame)
        frame.calc = SinglePointCalculator(frame, **found)
        kept.append(frame)
    return kept


def polarizability(atoms: Any) -> Any:
    """(3, 3) in angstrom^3: central differences of GFN2-xTB's dipole in an electric field."""
    from tblite.interface import Calculator

    columns = []
    for axis in range(3):
        ends = []
        for sign in (1.0, -1.0):
            single = Calculator("GFN2-xTB", atoms.numbers, atoms.positions / BOHR)
            single.set("verbosity", 0)
            single.add("electric-field", [sign * FIELD * (axis == place) for place in range(3)])
            ends.append(np.asarray(single.singlepoint().get("dipole")))
        columns.append((ends[0] - ends[1]) / (2 * FIELD))
    found = np.stack(columns, axis=1) * BOHR**3
    return (found + found.T) / 2
