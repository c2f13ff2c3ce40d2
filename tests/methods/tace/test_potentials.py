"""Potentials: symmetry, derivatives, the two bases, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from e3nn import o3
from torch import Tensor

from methods.common.errors import ConfigError, DataError
from methods.tace import Potential, PotentialConfig, batch_of, build_potential, graph_of
from methods.tace.blocks import RadialBasis

ARCHITECTURES = ["tace", "mace", "nequip", "allegro"]


def small(architecture: str, **values: Any) -> PotentialConfig:
    given = {"channels": 3, "lmax": 2, "node_lmax": 2, "radial_hidden": (4,), "neighbors": 6.0, **values}
    return PotentialConfig(elements=(1, 6, 8, 14), architecture=architecture, **given)  # type: ignore[arg-type]


def made(config: PotentialConfig) -> Potential:
    torch.manual_seed(0)
    return build_potential(config).eval()


@pytest.fixture
def ethanol() -> Atoms:
    atoms = molecule("CH3CH2OH")
    atoms.rattle(0.1, seed=1)
    return atoms


def graph(atoms: Atoms, config: PotentialConfig) -> dict[str, Tensor]:
    return graph_of(atoms, config.cutoff, torch.float64)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("parity", ["natural", "both"])
def test_the_energy_is_that_of_the_turned_moved_and_renumbered_molecule(
    architecture: str, parity: str, ethanol: Atoms
) -> None:
    config = small(architecture, parity=parity)
    model = made(config)
    before = model(graph(ethanol, config))
    torch.manual_seed(1)
    for number in range(5):
        turn = (-1) ** number * o3.rand_matrix().numpy()
        order = np.random.default_rng(number).permutation(len(ethanol))
        turned = Atoms(ethanol.numbers[order], (ethanol.positions @ turn.T + number)[order])
        after = model(graph(turned, config))
        assert float((after["energy"] - before["energy"]).detach().abs()) < 1e-9
        expected = before["forces"][torch.from_numpy(order)] @ torch.from_numpy(turn).T
        assert float((after["forces"] - expected).abs().max()) < 1e-9
    assert float(before["forces"].abs().max()) > 1e-3


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_both_bases_are_one_function_of_the_same_weights(architecture: str, ethanol: Atoms) -> None:
    # Three layers: with two, NequIP couples to scalars and from scalars only, where all symbols agree.
    layers = 3 if architecture == "nequip" else 2
    config = small(architecture, lmax=3, correlation=3, parity="both", layers=layers)
    one, other = made(config), made(replace(config, basis="spherical"))
    other.load_state_dict(one.state_dict())
    first, second = one(graph(ethanol, config)), other(graph(ethanol, config))
    for name in ("energy", "forces"):
        assert float((first[name] - second[name]).detach().abs().max()) < 1e-8
    published = made(replace(config, symbol="path"))
    published.load_state_dict(one.state_dict())
    apart = float((published(graph(ethanol, config))["energy"] - first["energy"]).detach().abs())
    # TACE knows one size only: that of its contractions.
    assert apart == 0 if architecture == "tace" else apart > 1e-6


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_forces_are_the_slope_of_the_energy(architecture: str, ethanol: Atoms) -> None:
    config = small(architecture)
    model, step = made(config), 1e-4
    forces = model(graph(ethanol, config))["forces"]
    for atom, axis in ((0, 0), (3, 2), (8, 1)):
        energies = []
        for sign in (1, -1):
            moved = ethanol.copy()
            moved.positions[atom, axis] += sign * step
            energies.append(float(model(graph(moved, config), forces=False)["energy"].detach()))
        assert -(energies[0] - energies[1]) / (2 * step) == pytest.approx(float(forces[atom, axis]), abs=1e-6)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_stress_is_the_slope_over_strain(architecture: str) -> None:
    config = small(architecture, cutoff=4.0)
    model, step = made(config), 1e-4
    solid = bulk("Si", cubic=True)
    solid.rattle(0.05, seed=0)
    stress = model(graph(solid, config), stress=True)["stress"][0]
    assert torch.allclose(stress, stress.T)
    for i, j in ((0, 0), (1, 2)):
        energies = []
        for sign in (1, -1):
            strain = np.eye(3)
            strain[i, j] += sign * step / 2
            strain[j, i] += sign * step / 2
            strained = solid.copy()
            strained.set_cell(solid.cell @ strain, scale_atoms=True)
            energies.append(float(model(graph(strained, config), forces=False)["energy"].detach()))
        slope = (energies[0] - energies[1]) / (2 * step * solid.get_volume())
        assert slope == pytest.approx(float(stress[i, j]), abs=1e-6)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_atom_leaves_the_cutoff_without_a_jump(architecture: str) -> None:
    config = small(architecture, cutoff=3.0)
    model = made(config)
    found = []
    for far in (3 - 1e-5, 3 + 1e-5):
        out = model(graph(Atoms("CHO", [[0, 0, 0], [1.1, 0, 0], [0, far, 0]]), config))
        found.append((float(out["energy"].detach()), out["forces"]))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-9)
    assert float((found[0][1] - found[1][1]).abs().max()) < 1e-7


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_atom_alone_has_the_energy_of_an_isolated_atom(architecture: str, ethanol: Atoms) -> None:
    config = small(architecture, energies=(-1.0, -2.0, -3.0, -4.0))
    model = made(config)
    alone = model(graph(Atoms("O"), config))
    assert alone["energy"].tolist() == [-3.0]
    assert alone["forces"].tolist() == [[0.0, 0.0, 0.0]]
    both = model(batch_of([graph(ethanol, config), graph(Atoms("O"), config), graph(ethanol, config)]))
    single = model(graph(ethanol, config))
    assert torch.allclose(
        both["energy"], torch.stack([single["energy"][0], alone["energy"][0], single["energy"][0]])
    )
    assert torch.allclose(both["forces"][:9], single["forces"])


@pytest.mark.parametrize("backend", ["dense", "spherical"])
@pytest.mark.parametrize("architecture", ["tace", "nequip"])
def test_backends_agree(architecture: str, backend: str, ethanol: Atoms) -> None:
    config = small(architecture)
    one, other = made(config), made(replace(config, backend=backend))  # type: ignore[arg-type]
    other.load_state_dict(one.state_dict())
    assert torch.allclose(
        other(graph(ethanol, config))["forces"], one(graph(ethanol, config))["forces"], atol=1e-12
    )


def test_forces_in_float32_turn_with_the_molecule(ethanol: Atoms) -> None:
    torch.set_default_dtype(torch.float32)
    config = small("tace", lmax=3)
    model, turn = made(config), o3.rand_matrix().numpy()
    forces = [
        model(graph_of(Atoms(ethanol.numbers, positions), config.cutoff))["forces"]
        for positions in (ethanol.positions, ethanol.positions @ turn.T)
    ]
    expected = forces[0] @ torch.from_numpy(turn).T
    assert float((forces[1] - expected).norm() / expected.norm()) < 2e-4


def test_energies_do_not_depend_on_the_periodic_image() -> None:
    config = small("tace", cutoff=4.0)
    model, solid = made(config), bulk("Si", cubic=True)
    solid.rattle(0.05, seed=0)
    wrapped = solid.copy()
    wrapped.positions[0] += solid.cell[0]
    twice = solid.repeat((2, 1, 1))
    energies = [float(model(graph(atoms, config))["energy"].detach()) for atoms in (solid, wrapped, twice)]
    assert energies[1] == pytest.approx(energies[0], abs=1e-10)
    assert energies[2] == pytest.approx(2 * energies[0], abs=1e-9)


def test_radial_functions_are_smooth_at_the_cutoff() -> None:
    basis = RadialBasis(3.0, 4, 6)
    lengths = torch.tensor([2.9999, 3.0, 3.1], requires_grad=True)
    values = basis(lengths)
    assert float(values.abs().max()) < 1e-10
    (slope,) = torch.autograd.grad(values.sum(), lengths)
    assert float(slope.abs().max()) < 1e-6


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cutoff": 0.0}, "cutoff 0.0"),
        ({"channels": 0}, "channels 0"),
        ({"node_lmax": 3}, "node_lmax 3: must be at most lmax 2"),
        ({"architecture": "gap"}, "architecture 'gap'"),
        ({"basis": "polar"}, "basis 'polar'"),
        ({"elements": ()}, "elements"),
        ({"elements": (1, 1)}, "each atomic number once"),
        ({"elements": (0,)}, "0 is no atomic number"),
        ({"energies": (1.0,)}, "energies: 1 for 2 elements"),
        ({"parity": "odd"}, "parity 'odd'"),
        ({"neighbors": float("nan")}, "neighbors nan"),
    ],
)
def test_sizes_that_are_none(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PotentialConfig(**{"elements": (1, 8), **values})


def test_graphs_that_cannot_be_used(ethanol: Atoms) -> None:
    config = small("tace")
    model, good = made(config), graph(ethanol, config)
    with pytest.raises(DataError, match=r"knows \[1, 6, 8, 14\], not \[7\]"):
        model({**good, "atomic_numbers": torch.full((9,), 7)})
    with pytest.raises(DataError, match="positions: some are no numbers"):
        model({**good, "positions": good["positions"] * float("nan")})
    with pytest.raises(TypeError, match="floating-point"):
        model({**good, "positions": good["positions"].long()})
    with pytest.raises(DataError, match="length 0"):
        model({**good, "positions": good["positions"] * 0})
    with pytest.raises(DataError, match="no volume"):
        model(good, stress=True)
    with pytest.raises(DataError, match="there are none"):
        graph_of(Atoms(), 5.0)
    with pytest.raises(DataError, match="there are none"):
        batch_of([])
    with pytest.raises(ConfigError, match="cutoff -1"):
        graph_of(ethanol, -1)
    ethanol.positions[0] = float("nan")
    with pytest.raises(DataError, match="no numbers"):
        graph_of(ethanol, 5.0)
