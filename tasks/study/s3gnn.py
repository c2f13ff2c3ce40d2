"""The study of `s3gnn` as steps; each finished run is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from methods.common.errors import ConfigError
from tasks.reference import Reference
from tasks.step import step
from tasks.study.run_bank import banked
from tasks.study.s3gnn_config import S3GNNStudy

VERSION = "2"
NEEDS = {"torch_geometric": "torch-geometric", "networkx": "networkx", "countryinfo": "countryinfo"}
DEPTHS = (("antisymmetric", True), ("antisymmetric", False), ("identity", False), ("orthogonal", False))
CONSTRAINTS = ("antisymmetric", "identity", "orthogonal", "orthogonal_ste", "cayley", "doubly_stochastic")


@dataclass(frozen=True)
class Small:
    """A measurement without a learning rate to choose: `what` law, depth or weights."""

    what: str
    seed: int
    weight: str = "antisymmetric"
    tie: bool = False
    rate: float = 0.0


def check_study(config: S3GNNStudy) -> None:
    """Refuse flows that are not there, packages that are not installed, models without the method.

    Raises:
        ConfigError: one line that names the field or the package, and the remedy.
    """
    for module, package in NEEDS.items():
        if find_spec(module) is None:
            raise ConfigError(f"{package} is not installed; pip install 'seedloom[graphs]'")
    if "s3gnn" not in config.models:
        raise ConfigError("models: s3gnn itself is missing; every claim compares with it")
    if "mesh" in config.parts and not (Path(config.data).expanduser() / "flows.npz").is_file():
        raise ConfigError(
            f"data={config.data}: holds no flows.npz; `dvc repro data@mesh_flow` or `seedloom fetch mesh_flow "
            f"{config.data}` makes it, or leave out the part mesh"
        )


@step("study-s3gnn", kind="report", version=VERSION, timeout_seconds=48 * 3600)
def study_runs(
    out: Path,
    *,
    parts: Sequence[str],
    models: Sequence[str],
    seeds: int,
    full: bool,
    processes: int,
    data: Reference | None,
) -> dict[str, Any]:
    """The runs of all parts, a file each: every learning rate on the first seed, then the better one on the others."""
    tasks = [part for part in parts if part not in ("law", "weights")]
    rows = task_rows(tasks, models, seeds, full, processes, data)
    for part in parts:
        if part in ("law", "weights"):
            rows[part] = _small_rows(part, seeds, processes)
        text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows[part])
        (out / f"{part}.jsonl").write_text(text, encoding="utf-8")
    spent = sum(row.get("seconds", 0.0) for held in rows.values() for row in held)
    return {"runs": sum(len(held) for held in rows.values()), "timings": {"cpu_seconds": spent}}


def task_rows(
    tasks: Sequence[str],
    models: Sequence[str],
    seeds: int,
    full: bool,
    processes: int,
    data: Reference | None,
) -> dict[str, list[dict[str, Any]]]:
    """A row a task, model and seed, at the learning rate whose validation loss was lower on seed 0."""
    from methods.s3gnn.study import RATES, Run, models_of

    pairs = [(task, name) for task in tasks for name in models_of(task, full, models)]
    tried = _run([Run(*pair, 0, rate, full) for pair in pairs for rate in RATES], processes, data)
    best = {
        pair: min((r for r in tried if (r["task"], r["model"]) == pair), key=lambda row: row["valid"])
        for pair in pairs
    }
    others = [Run(*pair, seed, best[pair]["rate"], full) for seed in range(1, seeds) for pair in pairs]
    rows = [*best.values(), *_run(others, processes, data)]
    return {task: [row for row in rows if row["task"] == task] for task in tasks}


def _run(runs: Sequence[Any], processes: int, data: Reference | None) -> list[dict[str, Any]]:
    from methods.s3gnn.study_data import PLANS

    folder = data.expect("data") if data is not None else Path()
    digest = data.digest if data is not None else ""
    return banked(
        "s3gnn-runs",
        runs,
        lambda run: {
            "version": VERSION,
            "plan": asdict(PLANS[run.task]),
            **asdict(run),
            "digest": digest if run.task == "mesh" else "",
        },
        partial(_score, folder=folder),
        processes,
    )


def _score(run: Any, folder: Path) -> dict[str, Any]:
    from methods.s3gnn.study import score_run

    torch.set_num_threads(1)
    return score_run(run, folder)


def _small_rows(part: str, seeds: int, processes: int) -> list[dict[str, Any]]:
    from methods.s3gnn.study import RATES

    if part == "law":
        items = [Small("law", seed) for seed in range(seeds)]
        items += [Small("depth", seed, weight, tie) for seed in range(seeds) for weight, tie in DEPTHS]
        return [row for held in _small(items, processes) for row in held["rows"]]
    first = [Small("weights", 0, weight, rate=rate) for weight in CONSTRAINTS for rate in RATES]
    tried = [row for held in _small(first, processes) for row in held["rows"]]
    best = {
        weight: min((row for row in tried if row["weight"] == weight), key=lambda row: row["valid"])
        for weight in CONSTRAINTS
    }
    others = [
        replace(Small("weights", seed, weight), rate=best[weight]["rate"])
        for seed in range(1, seeds)
        for weight in CONSTRAINTS
    ]
    return [*best.values(), *(row for held in _small(others, processes) for row in held["rows"])]


def _small(items: Sequence[Small], processes: int) -> list[dict[str, Any]]:
    return banked("s3gnn-runs", items, lambda item: {"version": VERSION, **asdict(item)}, _measure, processes)


def _measure(item: Small) -> dict[str, Any]:
    from methods.s3gnn import study

    torch.set_num_threads(1)
    weight: Any = item.weight
    if item.what == "law":
        rows = [{"kind": "law", **row} for row in study.law_rows(item.seed)]
    elif item.what == "depth":
        rows = [{"kind": "depth", **study.depth_row(weight, item.tie, item.seed)}]
    else:
        rows = [{"kind": "weights", **study.constraint_row(weight, item.seed, item.rate, Path())}]
    return {"rows": rows}
