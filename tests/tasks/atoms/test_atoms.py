"""A person's structures: read in parts, trained on, shown; and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from ase.build import molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.db import connect
from ase.io import write

from methods.common.errors import ConfigError, DataError
from methods.tace import TaceCalculator
from tasks.atoms.config import AtomsSettings, PotentialSettings
from tasks.atoms.read import check_source, parts_of
from tasks.atoms.train import train_on
from tasks.report.potential import figures, potential_table


def frames(count: int) -> list[Any]:
    found = []
    for number in range(count):
        atoms = molecule("H2O")
        atoms.rattle(0.05, seed=number)
        atoms.calc = EMT()
        values = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        atoms.calc = SinglePointCalculator(atoms, **values)
        found.append(atoms)
    return found


@pytest.fixture(params=["extxyz", "db"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / f"water.{request.param}"
    if request.param == "extxyz":
        write(file, frames(10))
    else:
        with connect(file) as base:
            for atoms in frames(10):
                base.write(atoms)
    return file


def test_parts_are_blocks_of_the_file(source: Path) -> None:
    parts = parts_of(AtomsSettings(source=str(source)))
    assert {name: len(held) for name, held in parts.items()} == {"train": 7, "test": 2, "validation": 1}
    expected = frames(10)
    assert abs(parts["test"][0].positions - expected[8].positions).max() < 1e-6
    assert abs(parts["validation"][0].positions - expected[7].positions).max() < 1e-6
    own = parts_of(AtomsSettings(source=str(source), test_source=str(source), limit=4))
    assert {name: len(held) for name, held in own.items()} == {"train": 3, "test": 10, "validation": 1}


def test_a_potential_is_trained_shown_and_calculates(tmp_path: Path) -> None:
    write(tmp_path / "water.xyz", frames(10), format="extxyz")
    settings = PotentialSettings(
        architecture="nequip", channels=2, lmax=1, cutoff=3.0, epochs=2, picoseconds=0.02
    )
    facts = train_on(tmp_path, AtomsSettings(source=str(tmp_path / "water.xyz")), settings)
    shown, metrics = potential_table(facts)
    assert len(shown) == 2
    assert metrics["test/forces_mae"] > 0
    assert "dynamics/drift" in metrics
    assert set(figures(facts)) == {"energies", "forces", "learning", "drift"}
    atoms = frames(1)[0]
    atoms.calc = TaceCalculator(tmp_path / "model")
    assert atoms.get_forces().shape == (3, 3)


def test_what_is_no_structure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        check_source(AtomsSettings(source=str(tmp_path / "none.xyz")))
    (tmp_path / "bad.xyz").write_text("no numbers\n")
    with pytest.raises(DataError, match=r"bad\.xyz: cannot be read as extxyz"):
        parts_of(AtomsSettings(source=str(tmp_path / "bad.xyz")))
    write(tmp_path / "two.xyz", frames(2), format="extxyz")
    with pytest.raises(DataError, match="too few structures"):
        parts_of(AtomsSettings(source=str(tmp_path / "two.xyz")))


def test_the_flow_refuses_before_any_work(tmp_path: Path) -> None:
    from flows.potential import check
    from flows.potential_config import PotentialFlowConfig

    write(tmp_path / "water.xyz", frames(3), format="extxyz")
    atoms = {"source": str(tmp_path / "water.xyz")}
    with pytest.raises(ConfigError, match="node_lmax=2: must be at most lmax=1"):
        check(PotentialFlowConfig.model_validate({"atoms": atoms, "lmax": 1, "node_lmax": 2}))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="holds other files"):
        check(PotentialFlowConfig.model_validate({"atoms": atoms, "output": str(tmp_path / "mine")}))
