"""The lifecycle end to end on a tiny model: it runs, is not done twice, survives SIGKILL, and names mistakes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from tests.flows.tiny_lifecycle import ROOT, environment, seedloom, tiny_settings, write_params

pytestmark = pytest.mark.server

FOLDERS = ("prepare-model", "prepare-tasks", "prepare-text", "finetune", "merge", "compress", "evaluate")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return tiny_settings(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One Prefect server for all runs of this module, as a team would have."""
    from tests.servers import prefect_server

    with prefect_server(tmp_path_factory.mktemp("prefect")) as url:
        yield url


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Any], server: str
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A work folder after one whole run."""
    folder = tmp_path_factory.mktemp("finished")
    done = lifecycle(folder, inputs, server)
    (folder / "first.json").write_bytes((folder / "report" / "metrics.json").read_bytes())
    return folder, done


def lifecycle(folder: Path, settings: dict[str, Any], server: str) -> subprocess.CompletedProcess[str]:
    params = write_params(folder / "params.yaml", settings)
    return seedloom(
        "run",
        "lifecycle",
        "--params",
        f"{params}:lifecycle",
        "--report.folder",
        str(folder / "report"),
        env=environment(folder / "work", PREFECT_API_URL=server),
        cwd=folder,
    )


def outputs(work: Path) -> dict[str, int]:
    """When each finished output was made."""
    return {
        f"{manifest.parent.parent.name}/{manifest.parent.name}": manifest.stat().st_mtime_ns
        for manifest in (work / "outputs").glob("*/*/manifest.json")
        if not manifest.parent.name.endswith(".partial")
    }


def runs(work: Path) -> list[Any]:
    client = MlflowClient(f"sqlite:///{work / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("seedloom")
    return list(client.search_runs([experiment.experiment_id]))


def test_it_runs_and_reports(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = finished
    assert done.returncode == 0, done.stderr[-3000:]
    metrics = json.loads((folder / "report" / "metrics.json").read_text())
    names = set(metrics["candidates"])
    assert {"base", "expert/merge_aware/toy0", "expert/merge_aware/toy1", "merge/task_arithmetic"} <= names
    assert any(name.startswith("compressed/wanda") for name in names)
    assert metrics["best"] in names
    assert metrics["best"] in done.stdout
    for name in ("quality_vs_size", "stopping"):
        assert (folder / "report" / "plots" / f"{name}.csv").stat().st_size
        assert (folder / "report" / "plots" / f"{name}.png").stat().st_size
    own = metrics["candidates"]["expert/merge_aware/toy0"]["test/toy0/bits_per_byte"]
    assert own < metrics["candidates"]["base"]["test/toy0/bits_per_byte"]


def test_every_candidate_is_a_child_run_with_its_scores(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = finished
    metrics = json.loads((folder / "report" / "metrics.json").read_text())["candidates"]
    found = runs(folder / "work")
    parents = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 1
    assert {run.info.status for run in found} == {"FINISHED"}
    children = {run.info.run_name: run for run in found if run not in parents}
    assert set(children) == set(metrics)
    for name, run in children.items():
        assert run.data.tags["mlflow.parentRunId"] == parents[0].info.run_id
        assert run.data.metrics["test/mean/score"] == pytest.approx(metrics[name]["test/mean/score"])
        assert len(run.data.tags["model.digest"]) == 64
    assert "train/loss" in children["expert/merge_aware/toy0"].data.metrics


def test_the_best_model_is_registered_and_generates(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    import mlflow.pyfunc

    folder, _ = finished
    client = MlflowClient(f"sqlite:///{folder / 'work' / 'mlflow.db'}")
    version = client.get_model_version_by_alias("seedloom-lifecycle", "champion")
    assert version.tags["model.parents"]
    assert version.tags["config.merge.methods"]
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'work' / 'mlflow.db'}")
    model = mlflow.pyfunc.load_model("models:/seedloom-lifecycle@champion")
    assert len(model.predict(["0 : the sky is"])) == 1


def test_a_second_run_does_nothing_and_says_the_same(
    finished: tuple[Path, subprocess.CompletedProcess[str]], inputs: dict[str, Any], server: str
) -> None:
    folder, _ = finished
    before, metrics = outputs(folder / "work"), (folder / "report" / "metrics.json").read_bytes()
    again = lifecycle(folder, inputs, server)
    assert again.returncode == 0, again.stderr[-3000:]
    assert outputs(folder / "work") == before
    assert (folder / "report" / "metrics.json").read_bytes() == metrics
    assert ": started" not in again.stderr
    assert again.stderr.count(": reused") >= len(before)  # equal candidates share one evaluation


def test_one_changed_setting_redoes_what_follows_it(
    finished: tuple[Path, subprocess.CompletedProcess[str]], inputs: dict[str, Any], server: str
) -> None:
    folder, _ = finished
    before = outputs(folder / "work")
    changed = {**inputs, "compress": {"recipes": [{"kind": "magnitude"}]}}
    done = lifecycle(folder, changed, server)
    assert done.returncode == 0, done.stderr[-3000:]
    after = outputs(folder / "work")
    assert {name: after[name] for name in before} == before
    assert sorted(name.split("/")[0] for name in set(after) - set(before)) == ["compress", "evaluate"]


def test_a_kill_in_every_step_costs_only_that_step(
    tmp_path: Path,
    finished: tuple[Path, subprocess.CompletedProcess[str]],
    inputs: dict[str, Any],
    server: str,
) -> None:
    """One run after the other is killed in the next step; the last one ends as if nothing had happened."""
    reference, _ = finished
    work = tmp_path / "work"
    for step in FOLDERS:
        before = outputs(work)
        start_and_kill(tmp_path, inputs, server, step)
        kept = outputs(work)
        assert {name: kept[name] for name in before} == before, f"finished work was done again before {step}"
    before = outputs(work)
    done = lifecycle(tmp_path, inputs, server)
    assert done.returncode == 0, done.stderr[-3000:]
    after = outputs(work)
    assert {name: after[name] for name in before} == before
    assert (tmp_path / "report" / "metrics.json").read_bytes() == (reference / "first.json").read_bytes()
    assert not list((work / "outputs").glob("*/*.partial"))
    assert "RUNNING" not in {run.info.status for run in runs(work)}


def start_and_kill(folder: Path, settings: dict[str, Any], server: str, step: str) -> None:
    """Start a run and send SIGKILL as soon as `step` is at work."""
    work = folder / "work"
    params = write_params(folder / "params.yaml", settings)
    command = [sys.executable, "-m", "flows.cli", "run", "lifecycle", "--params", f"{params}:lifecycle"]
    process = subprocess.Popen(
        [*command, "--report.folder", str(folder / "report")],
        env={**environment(work, PREFECT_API_URL=server), "PYTHONPATH": str(ROOT)},
        cwd=folder,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not list((work / "outputs" / step).glob("*.partial")):
        assert process.poll() is None, f"ended before it could be killed in {step}"
        assert time.monotonic() < deadline, f"{step} did not start"
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert list((work / "outputs" / step).glob("*.partial"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prepare": {"model": {"source": "./absent"}}}, "absent"),
        ({"merge": {"methods": ["tise"]}}, "merge.methods"),
        ({"finetune": {"learning_rate": -1}}, "finetune.learning_rate = -1"),
        ({"evaluate": {"nonsense": 1}}, "evaluate.nonsense is not a setting"),
    ],
)
def test_a_mistake_is_one_line_before_any_work(
    tmp_path: Path, inputs: dict[str, Any], change: dict[str, Any], says: str
) -> None:
    settings = {**inputs, **{k: {**inputs[k], **v} for k, v in change.items()}}
    done = lifecycle(tmp_path, settings, "http://127.0.0.1:9/api")
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "work" / "outputs").exists()


def test_a_damaged_model_found_at_work_is_one_line(tmp_path: Path, server: str) -> None:
    """NaN in the weights shows only when they are read; progress lines aside, one line says it."""
    import torch
    from safetensors.torch import load_file, save_file

    settings = tiny_settings(tmp_path / "inputs")
    weights = tmp_path / "inputs" / "model" / "model.safetensors"
    tensors = load_file(weights)
    first = next(iter(tensors))
    tensors[first][0] = torch.nan
    save_file(tensors, weights, metadata={"format": "pt"})
    done = lifecycle(tmp_path, settings, server)
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if "prepare " not in line]
    assert len(said) == 1, done.stderr
    assert first in said[0]
