"""Two flows at once on fresh SQLite stores, each with a temporary Prefect server: nothing lost, nothing locked."""

import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from tests.flows.tiny_lifecycle import ROOT, environment, tiny_settings, write_params

pytestmark = pytest.mark.server


def test_two_flows_start_at_once_on_an_empty_work_folder(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path / "inputs")
    work = tmp_path / "work"
    running = []
    for seed in (0, 1):
        changed = {
            **settings,
            "finetune": {**settings["finetune"], "seed": seed, "stoppings": ["merge_aware"]},
        }
        params = write_params(tmp_path / f"params{seed}.yaml", changed)
        command = [sys.executable, "-m", "flows.cli", "run", "lifecycle", "--params", f"{params}:lifecycle"]
        running.append(
            subprocess.Popen(
                [*command, "--report.folder", str(tmp_path / f"report{seed}")],
                env={**environment(work), "PYTHONPATH": str(ROOT)},
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [process.communicate(timeout=280)[0] for process in running]
    for process, text in zip(running, said, strict=True):
        assert process.returncode == 0, text[-3000:]
        assert "database is locked" not in text
    client = MlflowClient(f"sqlite:///{work / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("seedloom").experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 2
    assert {run.info.status for run in runs} == {"FINISHED"}
    for parent in parents:
        children = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
        assert len(children) == 6  # base, two experts, two merges, one compressed
        assert all("test/mean/score" in child.data.metrics for child in children)
    assert all((tmp_path / f"report{seed}" / "metrics.json").exists() for seed in (0, 1))
