"""The study of `tace` as one step; each finished training is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from methods.common.errors import ConfigError
from tasks.reference import Reference
from tasks.step import step
from tasks.study.run_bank import banked
from tasks.study.tace_config import TaceStudy

VERSION = "2"
FRAMES, EPOCHS, CHANNELS, PICOSECONDS = (100, 400), (20, 60), (8, 16), (0.5, 5.0)
FILES = tuple(
    f"ethanol_{part}.extxyz" for part in ("500K_train", "500K_validation", "500K_test", "1000K_test")
)


def check_study(config: TaceStudy) -> None:
    """Refuse packages that are not installed and data that is not there.

    Raises:
        ConfigError: one line that names the field or the package, and the remedy.
    """
    for package in ("e3nn", "ase"):
        if find_spec(package) is None:
            raise ConfigError(f"{package} is not installed; pip install 'seedloom[atoms]'")
    missing = [name for name in FILES if not (Path(config.data).expanduser() / name).is_file()]
    if "fits" in config.parts and missing:
        raise ConfigError(
            f"data={config.data}: holds no {missing[0]}; `dvc repro data@xtb` or `seedloom fetch xtb {config.data}` "
            "makes it, or leave out the part fits"
        )


@step("study-tace", kind="report", version=VERSION, timeout_seconds=48 * 3600)
def study_rows(
    out: Path,
    *,
    parts: Sequence[str],
    models: Sequence[str],
    seeds: int,
    full: bool,
    processes: int,
    data: Reference | None,
) -> dict[str, Any]:
    """A row a training, and a row a cost, a file each."""
    rows: dict[str, list[dict[str, Any]]] = {}
    if "costs" in parts:
        rows["costs"] = _costs(full)
    if data is not None:
        rows["fits"] = _fits(models, seeds, full, processes, data)
    for part, held in rows.items():
        text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in held)
        (out / f"{part}.jsonl").write_text(text, encoding="utf-8")
    return {"rows": sum(map(len, rows.values()))}


def _fits(
    names: Sequence[str], seeds: int, full: bool, processes: int, data: Reference
) -> list[dict[str, Any]]:
    from methods.tace.study import Fit, models

    known = models(CHANNELS[full])
    runs = [
        Fit(
            name,
            known[name],
            seed,
            FRAMES[full],
            EPOCHS[full],
            PICOSECONDS[full] if name == "tace" else 0.0,
        )
        for seed in range(seeds)
        for name in names
    ]
    return banked(
        "tace-runs",
        runs,
        lambda run: {"version": VERSION, **asdict(run), "digest": data.digest},
        partial(_fit, folder=data.expect("data")),
        processes,
    )


def _fit(run: Any, folder: Path) -> dict[str, Any]:
    from methods.tace.study import fit_row

    torch.set_num_threads(1)
    return fit_row(run, folder)


def _costs(full: bool) -> list[dict[str, Any]]:
    """Alone, before the trainings begin: two processes on one memory bus would slow both sides unequally."""
    pairs = [(level, lmax) for level in ("product", "layer") for lmax in range(1, 5 if full else 4)]
    return banked(
        "tace-runs",
        pairs,
        lambda pair: {"version": VERSION, "cost": list(pair)},
        _cost,
        1,
    )


def _cost(pair: tuple[Any, int]) -> dict[str, Any]:
    from methods.tace.study import cost_row

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return cost_row(*pair)
    finally:
        torch.set_num_threads(threads)
