"""Fan-out on threads and on a real local Dask cluster: each candidate's run lies under its own flow run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from flows.task_runner import start, task_runner
from methods.common.errors import ConfigError
from tasks.settings import settings
from tests.flows.tiny_lifecycle import ROOT, environment
from tests.up import Up

SCRIPT = """
import json, os, sys
from prefect import flow, task
from flows.pipeline import open_run
from flows.task_runner import task_runner
from tasks.config import Config
from tasks.tracking import candidate_run, log_metrics

@task
def work(ctx, name, number):
    run = candidate_run(ctx, name)
    log_metrics(ctx, run, {"test/number": number})
    ctx.client.set_terminated(run)
    return os.getpid()

@flow(task_runner=task_runner())
def fan_out(label):
    with open_run(label, Config()) as ctx:
        futures = [work.submit(ctx, f"{label}/{number}", number) for number in range(6)]
        return ctx.parent_run_id, [future.result() for future in futures]

if __name__ == "__main__":
    parent, pids = fan_out(sys.argv[1])
    print(json.dumps({"parent": parent, "pids": pids, "own": os.getpid()}))
"""


@pytest.mark.server
def test_dask_keeps_each_candidate_under_its_flow_run(up: Up, tmp_path: Path) -> None:
    (tmp_path / "fan_out.py").write_text(SCRIPT)
    env = environment(
        tmp_path / "work",
        PREFECT_API_URL=f"{up.prefect}/api",
        PREFECT_LOGGING_LEVEL="ERROR",
        SEEDLOOM_TASK_RUNNER="dask",
        SEEDLOOM_WORKERS="2",
        PYTHONPATH=str(ROOT),
    )
    done = subprocess.run(
        [sys.executable, "fan_out.py", "spread"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["own"] not in found["pids"], "the tasks did not leave the flow's process"
    client = MlflowClient(f"sqlite:///{tmp_path / 'work' / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("seedloom").experiment_id], max_results=100)
    children = {run.info.run_name: run for run in runs if run.info.run_id != found["parent"]}
    assert set(children) == {f"spread/{number}" for number in range(6)}
    for number in range(6):
        run = children[f"spread/{number}"]
        assert run.data.tags["mlflow.parentRunId"] == found["parent"]
        assert run.data.metrics["test/number"] == number
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_dask_clusters_listen_on_loopback_only(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEDLOOM_TASK_RUNNER", "dask")
    settings.cache_clear()
    given = task_runner().cluster_kwargs
    assert given["host"] == "127.0.0.1"
    assert given["dashboard_address"].startswith("127.0.0.1:")


def test_an_existing_cluster_is_used(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEDLOOM_TASK_RUNNER", "dask")
    monkeypatch.setenv("SEEDLOOM_DASK_ADDRESS", "tcp://10.0.0.1:8786")
    settings.cache_clear()
    assert task_runner().address == "tcp://10.0.0.1:8786"


def test_a_runner_whose_package_is_missing_names_the_command(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prefect_ray", None)
    monkeypatch.setenv("SEEDLOOM_TASK_RUNNER", "ray")
    settings.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'seedloom\[ray\]'"):
        task_runner()


def test_threads_are_as_many_as_the_settings_say(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEDLOOM_WORKERS", "3")
    settings.cache_clear()
    assert task_runner()._max_workers == 3


class _Step:
    """A Prefect task that says how it was called."""

    def __call__(self, _ctx: object, label: str, _inputs: dict[str, Any]) -> str:
        return f"called {label}"

    def submit(self, _ctx: object, label: str, _inputs: dict[str, Any]) -> str:
        return f"submitted {label}"


@pytest.mark.parametrize(
    ("runner", "workers", "here"), [("threads", 1, True), ("threads", 2, False), ("dask", 1, False)]
)
def test_one_worker_runs_a_step_in_the_flow_s_own_thread(
    runner: str, workers: int, here: bool, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEDLOOM_TASK_RUNNER", runner)
    monkeypatch.setenv("SEEDLOOM_WORKERS", str(workers))
    settings.cache_clear()
    started: Any = start(_Step(), None, "it", {})  # type: ignore[arg-type]
    assert (started.result() if here else started) == ("called it" if here else "submitted it")
