"""prefect.yaml: names every flow, and its process pool runs one for real."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.registry import FLOWS
from tests.flows.tiny_lifecycle import ROOT, environment, tiny_settings
from tests.up import Up

FILE = ROOT / "prefect.yaml"


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(FILE.read_text())
    return found


def test_every_flow_has_a_deployment(content: dict[str, Any]) -> None:
    entries = {item["name"]: item["entrypoint"] for item in content["deployments"]}
    assert entries == {f"{flow.name}-pool": f"{flow.module}.{flow.name}" for flow in FLOWS}


def test_the_pools_to_fill_are_whole(content: dict[str, Any]) -> None:
    pools = content["definitions"]["pools"]
    assert set(pools) == {"process", "docker", "kubernetes"}
    for kind in ("docker", "kubernetes"):
        assert {"image", "env"} <= set(pools[kind]["job_variables"])
    for item in content["deployments"]:
        assert item["work_pool"] == pools["process"]
        assert item["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}


def test_it_holds_no_path_of_one_machine() -> None:
    assert "/home" not in FILE.read_text()
    assert str(ROOT) not in FILE.read_text()


@pytest.mark.server
def test_a_worker_of_the_process_pool_runs_a_flow(up: Up, tmp_path: Path, content: dict[str, Any]) -> None:
    env = environment(
        tmp_path / "work",
        PREFECT_API_URL=f"{up.prefect}/api",
        PREFECT_HOME=str(tmp_path / "prefect"),
        SEEDLOOM_HOME=str(tmp_path),
        PYTHONPATH=str(ROOT),
    )

    def prefect(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *arguments],
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    pool = content["definitions"]["pools"]["process"]["name"]
    prefect("work-pool", "create", pool, "--type", "process")
    prefect("--no-prompt", "deploy", "--name", "prepare-pool")
    deployment = up.api("/deployments/name/prepare/prepare-pool")
    assert deployment["pull_steps"] == []
    config = tiny_settings(tmp_path / "inputs")["prepare"] | {"output": "prepared"}
    run = up.api(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": {"config": config}})["id"]
    output = prefect("worker", "start", "--pool", pool, "--run-once")
    found = up.wait(run, patience=10)
    assert found["state_type"] == "COMPLETED", output[-3000:]
    listing = json.loads((tmp_path / "prepared" / "tasks" / "toy0" / "task.json").read_text())
    assert listing["name"] == "toy0"
