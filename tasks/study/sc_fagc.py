"""The study of `sc_fagc` as steps; each finished run is kept."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from methods.common.constrained_k_means import constrained_k_means
from methods.common.errors import ConfigError
from methods.sc_fagc.study import Run, runs_of, score_run
from tasks.reference import Reference
from tasks.step import step
from tasks.study.run_bank import banked
from tasks.study.sc_fagc_config import ScFagcStudy

VERSION = "2"
# What no change of the method changes.
OTHERS = ("k_means", "spectral", "k_means_constrained")
ON_HANDWRITING = ("mnist10k", "mnist60k")


def check_study(config: ScFagcStudy) -> None:
    """Refuse digits that are not there and a peer that is not installed.

    Raises:
        ConfigError: one line that names the field or the package, and the remedy.
    """
    constrained_k_means()
    needs = any(part in ON_HANDWRITING for part in config.parts)
    if needs and not (Path(config.data).expanduser() / "digits.npz").is_file():
        raise ConfigError(
            f"data={config.data}: holds no digits.npz; `dvc repro data@mnist60k` makes it, or leave out the parts "
            f"{' and '.join(ON_HANDWRITING)}"
        )


@step("study-sc-fagc", kind="report", version=VERSION, timeout_seconds=24 * 3600)
def study_runs(out: Path, *, part: str, seeds: int, data: Reference | None) -> dict[str, Any]:
    """The runs of one part."""
    rows = run_all(runs_of(part, seeds), data)
    seconds: dict[str, float] = {}
    for row in rows:
        name = f"{row['data']}/{row['method']}"
        seconds[name] = seconds.get(name, 0.0) + row.pop("seconds")
    counts = {name: sum(f"{row['data']}/{row['method']}" == name for row in rows) for name in seconds}
    (out / f"{part}.jsonl").write_text(
        "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows), encoding="utf-8"
    )
    each = {name: total / counts[name] for name, total in seconds.items()}
    return {"runs": len(rows), "timings": {"cpu_seconds": sum(seconds.values()), "each": each}}


def run_all(runs: list[Run], data: Reference | None) -> list[dict[str, Any]]:
    """Every run's row, from the bank or done now."""
    digest = data.digest if data is not None else ""
    folder = data.expect("data") if data is not None else Path()
    return banked(
        "sc-fagc-runs",
        runs,
        lambda run: {
            "version": "1" if run.method in OTHERS else VERSION,
            **asdict(run),
            "digest": digest if run.data in ON_HANDWRITING else "",
        },
        lambda run: score_run(run, folder),
    )
