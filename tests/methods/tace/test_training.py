"""Fitting, resuming, saving, and the calculator, on atoms in a known force field."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from ase.md.verlet import VelocityVerlet

from methods.common.errors import ConfigError, DataError
from methods.tace import (
    PotentialTrainer,
    TaceCalculator,
    TrainingConfig,
    build_potential,
    labelled_graphs,
    load_potential,
    save_potential,
    score,
)
from methods.tace.frames import element_shares
from tests.methods.tace.test_potentials import small

SIZES: dict[str, Any] = {
    "architecture": "nequip",
    "channels": 4,
    "lmax": 1,
    "radial_hidden": (8,),
    "cutoff": 3.0,
}


@pytest.fixture(autouse=True)
def _single(_double: None) -> None:
    torch.set_default_dtype(torch.float32)


def labelled(atoms: Atoms, **more: Any) -> Atoms:
    atoms.calc = EMT()
    found = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces(), **more}
    if atoms.pbc.all():
        found["stress"] = atoms.get_stress()
    atoms.calc = SinglePointCalculator(atoms, **found)
    return atoms


def waters(count: int, seed: int = 0) -> list[Atoms]:
    frames = []
    for number in range(count):
        atoms = molecule("H2O" if number % 2 else "CH4")
        atoms.rattle(0.08, seed=seed + number)
        frames.append(labelled(atoms))
    return frames


def coppers(count: int) -> list[Atoms]:
    frames = []
    for number in range(count):
        atoms = bulk("Cu", cubic=True)
        atoms.set_cell(atoms.cell * (1 + 0.01 * (number % 3 - 1)), scale_atoms=True)
        atoms.rattle(0.08, seed=number)
        frames.append(labelled(atoms))
    return frames


def fitted(**training: Any) -> PotentialTrainer:
    given = {"epochs": 6, "validate_every": 2, "batch_size": 4, "learning_rate": 0.01, **training}
    return PotentialTrainer(SIZES, TrainingConfig(**given)).fit(waters(16), waters(4, 100))


def test_training_lowers_both_errors_and_the_seed_alone_decides() -> None:
    one, other = fitted(epochs=20), fitted(epochs=20)
    first, last = one.history_[0], one.history_[-1]
    assert last["forces_mae"] < 0.8 * first["forces_mae"]
    assert one.history_ == [
        {**row, "seconds": mine["seconds"]} for row, mine in zip(other.history_, one.history_, strict=True)
    ]
    state = one.model_.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in other.model_.state_dict().items())


def test_a_fit_that_was_cut_off_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(row: Any) -> None:
        if row["epoch"] == 4:
            raise Cut

    training = TrainingConfig(epochs=6, validate_every=2, batch_size=4)
    whole = PotentialTrainer(SIZES, training).fit(waters(8), waters(2, 100))
    with pytest.raises(Cut):
        PotentialTrainer(SIZES, training, folder=tmp_path, progress=cut).fit(waters(8), waters(2, 100))
    seen: list[float] = []
    again = PotentialTrainer(SIZES, training, folder=tmp_path, progress=lambda row: seen.append(row["epoch"]))
    again.fit(waters(8), waters(2, 100))
    assert seen == [4.0, 6.0]  # the second epoch's checkpoint was there
    state = whole.model_.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in again.model_.state_dict().items())
    other = PotentialTrainer(SIZES, TrainingConfig(epochs=7), folder=tmp_path)
    with pytest.raises(ConfigError, match="other settings or data"):
        other.fit(waters(8), waters(2, 100))
    # Validation frames decide which weights are kept: others are other data.
    with pytest.raises(ConfigError, match="other settings or data"):
        PotentialTrainer(SIZES, training, folder=tmp_path).fit(waters(8), waters(2, 101))


def test_a_crystal_is_fitted_with_its_stress_and_the_calculator_says_the_same(tmp_path: Path) -> None:
    frames = coppers(8)
    trainer = PotentialTrainer(SIZES, TrainingConfig(epochs=15, batch_size=4, learning_rate=0.01))
    trainer.fit(frames[:6], frames[6:])
    assert trainer.history_[-1]["loss"] < trainer.history_[0]["loss"]
    assert trainer.history_[-1]["stress_mae"] > 0
    model = trainer.model_
    calculator = TaceCalculator(save_potential(model, tmp_path / "model"))
    atoms = frames[7].copy()
    atoms.calc = calculator
    energy, stress = atoms.get_potential_energy(), atoms.get_stress()
    numeric = calculator.calculate_numerical_stress(atoms, d=1e-5)
    assert np.abs(numeric - stress).max() < 1e-6
    # Weights and energies of atoms come back bit by bit.
    again = load_potential(tmp_path / "model")
    graphs = labelled_graphs(frames[6:], 3.0)
    assert score(again, graphs) == score(model, graphs)
    atoms = frames[7].copy()
    atoms.calc = TaceCalculator(model)
    assert atoms.get_potential_energy() == pytest.approx(energy, abs=1e-12)


def test_dynamics_under_the_calculator_keep_the_energy() -> None:
    atoms = coppers(1)[0]
    trainer = PotentialTrainer(SIZES, TrainingConfig(epochs=2, batch_size=4)).fit(coppers(4), coppers(2))
    atoms.calc = TaceCalculator(trainer.model_)
    MaxwellBoltzmannDistribution(atoms, temperature_K=300, rng=np.random.default_rng(0))
    before = atoms.get_total_energy()
    VelocityVerlet(atoms, 1.0 * units.fs).run(30)
    assert abs(atoms.get_total_energy() - before) / len(atoms) < 2e-4


@pytest.mark.parametrize("basis", ["cartesian", "spherical"])
@pytest.mark.parametrize("architecture", ["tace", "mace"])
def test_tensors_turn_with_the_molecule(architecture: str, basis: str) -> None:
    from scipy.spatial.transform import Rotation

    torch.manual_seed(0)
    config = small(architecture, basis=basis, tensors=("dipole", "polarizability"))
    calculator = TaceCalculator(build_potential(config))
    atoms = molecule("CH3CH2OH")
    atoms.rattle(0.1, seed=1)
    turn = -Rotation.random(random_state=0).as_matrix()
    turned = Atoms(atoms.numbers, atoms.positions @ turn.T)
    one = calculator.get_property("dipole", atoms), calculator.get_property("polarizability", atoms)
    other = calculator.get_property("dipole", turned), calculator.get_property("polarizability", turned)
    # Weights are float32, the harmonics of the head's basis with them.
    assert np.abs(turn @ one[0] - other[0]).max() < 1e-6 * np.abs(one[0]).max() + 1e-9
    assert np.abs(turn @ one[1] @ turn.T - other[1]).max() < 1e-6 * np.abs(one[1]).max()
    assert np.abs(one[1] - one[1].T).max() < 1e-6 * np.abs(one[1]).max()
    assert np.abs(one[0]).max() > 1e-3


def test_tensors_are_learnt() -> None:
    frames = []
    for atoms in waters(12):
        # A dipole of fixed charges, and a polarizability of bonds.
        charges = np.where(atoms.numbers == 1, 0.2, -0.2 * (len(atoms) - 1))
        dipole = charges @ atoms.positions
        bonds = atoms.positions[1:] - atoms.positions[0]
        atoms.info["polarizability"] = np.eye(3) * len(atoms) + bonds.T @ bonds
        frames.append(labelled(atoms, dipole=dipole))
    sizes = {
        **SIZES,
        "architecture": "tace",
        "lmax": 2,
        "tensors": ("dipole", "polarizability"),
        "node_lmax": 2,
    }
    trainer = PotentialTrainer(sizes, TrainingConfig(15, 3, 0.01, tensor_weight=100.0, validate_every=1))
    trainer.fit(frames, frames)
    first, last = trainer.history_[0], trainer.history_[-1]
    assert last["dipole_mae"] < 0.97 * first["dipole_mae"]
    assert last["polarizability_mae"] < 0.97 * first["polarizability_mae"]
    bare = [labelled(frame.copy()) for frame in waters(2)]
    with pytest.raises(DataError, match="no frame has a dipole"):
        PotentialTrainer(sizes, TrainingConfig(epochs=1)).fit(bare, bare)


def test_energies_of_elements_are_the_least_squares_ones() -> None:
    numbers = [torch.tensor([1, 1, 8]), torch.tensor([8, 8]), torch.tensor([1, 1])]
    totals = torch.tensor([2 * -13.0 - 75.0, -150.0, -26.0])
    assert element_shares(numbers, (1, 8), totals) == pytest.approx((-13.0, -75.0))


@pytest.mark.parametrize("architecture", ["tace", "mace", "nequip", "allegro"])
def test_untrained_energies_are_of_the_size_of_the_scale(architecture: str) -> None:
    """Sums over neighbours and edges that grew layer by layer gave Allegro energies of hundreds."""
    atoms = molecule("CH3CH2OH")
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        config = small(architecture, channels=16, neighbors=8.0)
        found.append(TaceCalculator(build_potential(config)).get_potential_energy(atoms) / len(atoms))
    assert np.sqrt(np.mean(np.square(found))) < 5


def nan(frame: Atoms) -> Atoms:
    frame.calc.results["forces"][0, 0] = np.nan
    return frame


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([], "train: holds no frames"),
        ([molecule("H2O")], "train, frame 1: has no 'energy'"),
        ([nan(waters(1)[0])], "'forces' holds numbers that are none"),
        ([waters(2)[1], coppers(1)[0]], "only some frames have stress"),
        ([waters(2)[1]], r"validation: has the elements \[6\]"),
    ],
)
def test_frames_that_cannot_be_used(train: list[Atoms], message: str) -> None:
    with pytest.raises(DataError, match=message):
        PotentialTrainer(SIZES, TrainingConfig(epochs=1)).fit(train, waters(1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 0}, "epochs 0"),
        ({"learning_rate": 0.0}, "learning_rate 0.0"),
        ({"ema": 1.0}, "ema 1.0"),
        ({"loss": "mae"}, "loss 'mae'"),
        ({"forces_weight": -1.0}, "forces_weight -1.0"),
    ],
)
def test_settings_that_are_none(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**given)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no config\.json"):
        load_potential(tmp_path)
    save_potential(build_potential(small("nequip")), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(DataError, match="is damaged"):
        load_potential(tmp_path)
    with pytest.raises(ConfigError, match="architecture nequip has none"):
        small("nequip", tensors=("dipole",))
    with pytest.raises(ConfigError, match="lmax 1"):
        small("tace", lmax=1, node_lmax=1, tensors=("polarizability",))


def test_an_unknown_element_and_other_keys() -> None:
    frames = waters(4)
    for frame in frames:
        results = frame.calc.results
        frame.info["REF_energy"], frame.arrays["REF_forces"] = results["energy"], results["forces"]
        frame.calc = None
    keys = {"energy": "REF_energy", "forces": "REF_forces"}
    model = PotentialTrainer(SIZES, TrainingConfig(epochs=1), keys=keys).fit(frames, frames).model_
    with pytest.raises(DataError, match="train it on them"):
        TaceCalculator(model).get_potential_energy(bulk("Cu"))
