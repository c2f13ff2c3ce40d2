"""Trajectories labelled by GFN-xTB: what is stored is what the program says."""

from pathlib import Path

import numpy as np
from ase.io import read
from tblite.ase import TBLite

from tasks.prepare.xtb import TRAJECTORIES, Trajectory, polarizability, write_trajectories


def test_frames_hold_their_labels_and_the_seed_decides(tmp_path: Path) -> None:
    wanted = (Trajectory("CH3CH2OH", 500, "train", 2, True), Trajectory("diamond", 600, "train", 5))
    (tmp_path / "again").mkdir()
    record = write_trajectories(tmp_path, wanted, warm_up=4)
    assert record["trajectories"] == write_trajectories(tmp_path / "again", wanted, warm_up=4)["trajectories"]
    frame = read(tmp_path / "ethanol_500K_train.extxyz", 1)
    stored = frame.calc.results
    frame.calc = TBLite(method="GFN2-xTB", verbosity=0)
    assert abs(frame.get_potential_energy() - stored["energy"]) < 1e-5
    assert np.abs(frame.get_forces() - stored["forces"]).max() < 1e-4
    assert np.abs(frame.get_dipole_moment() - stored["dipole"]).max() < 1e-4
    assert np.abs(polarizability(frame) - frame.info["polarizability"]).max() < 1e-4
    crystal = read(tmp_path / "diamond_600K_train.extxyz", ":")
    assert all(one.pbc.all() and "stress" in one.calc.results for one in crystal)
    # Every strained cell is a trajectory of its own.
    assert len({round(one.get_volume(), 6) for one in crystal}) == 5


def test_parts_are_trajectories_of_their_own() -> None:
    files = [trajectory.file for trajectory in TRAJECTORIES]
    assert len(set(files)) == len(files)
    for name in ("ethanol_500K", "benzene_500K", "acetamide_500K", "diamond_600K"):
        assert {f"{name}_{part}.extxyz" for part in ("train", "validation", "test")} <= set(files)
