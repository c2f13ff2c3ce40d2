"""`seedloom up`: both servers and all flows on loopback, quick to refuse, clean to end."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.registry import FLOWS
from flows.serve import Part, ServerError, Servers, check_port, check_start, owner_of
from flows.servers.children import Child, Guard
from flows.servers.state import Running, clear, record, running
from methods.common.errors import ConfigError
from tasks.settings import settings
from tests.flows.tiny_lifecycle import ROOT, environment, seedloom, tiny_settings
from tests.servers import free_port
from tests.up import Up

server = pytest.mark.server


# The shared `seedloom up`.


@server
def test_it_prints_both_addresses_and_the_next_click(up: Up) -> None:
    assert up.prefect in up.output
    assert up.mlflow in up.output
    assert f"{up.prefect}/v2/deployments/deployment/{up.deployment('lifecycle')['id']}" in up.output
    for name in ("Prefect", "MLflow", "flows"):
        assert f"{name} ready after" in up.output
    assert "left out" not in up.output
    assert "Traceback" not in up.output
    for address in (f"{up.prefect}/api/health", f"{up.mlflow}/health"):
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert answer.status == 200


@server
def test_a_fresh_store_starts_without_lock_errors(up: Up) -> None:
    for name in ("prefect", "mlflow", "flows"):
        log = (up.work / "logs" / f"{name}.log").read_text()
        assert "database is locked" not in log
        assert "Traceback" not in log


@server
def test_every_flow_is_a_deployment_with_its_form(up: Up) -> None:
    for flow in FLOWS:
        found = up.deployment(flow.name)
        assert found["entrypoint"] == f"{flow.module}.{flow.name}"
        assert found["parameter_openapi_schema"]["properties"]["config"]["default"]
        assert found["enforce_parameter_schema"] is True
        assert flow.summary[1:] in found["description"]
        assert "seedloom" in found["tags"]
        assert found["global_concurrency_limit"]["limit"] == 1
        assert found["concurrency_options"]["collision_strategy"] == "ENQUEUE"


@server
def test_everything_listens_on_loopback_only(up: Up) -> None:
    listening = {
        (connection.laddr.ip, connection.laddr.port)
        for process in up.processes()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {f"http://{ip}:{port}" for ip, port in listening} >= {up.prefect, up.mlflow}
    assert {ip for ip, _ in listening} == {"127.0.0.1"}


@server
def test_other_web_sites_are_kept_out(up: Up) -> None:
    """A page of another origin must not drive the servers through the visitor's browser, by name or by CORS."""
    origin = urllib.request.Request(f"{up.prefect}/api/health", headers={"Origin": "http://evil.example"})
    with urllib.request.urlopen(origin, timeout=10) as answer:
        assert answer.headers["access-control-allow-origin"] is None
    own = urllib.request.Request(f"{up.prefect}/api/health", headers={"Origin": up.prefect})
    with urllib.request.urlopen(own, timeout=10) as answer:
        assert answer.headers["access-control-allow-origin"] == up.prefect
    for path in ("/", "/api/2.0/mlflow/experiments/search?max_results=1"):
        named = urllib.request.Request(f"{up.mlflow}{path}", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(named, timeout=10)
        assert refused.value.code == 403


@server
def test_a_wrong_value_is_refused_by_the_server(up: Up) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        up.start_run("merge", {"density": 7})
    assert refused.value.code in (409, 422)
    assert b"less than or equal to" in (body := refused.value.read()) or b"maximum" in body


@server
def test_a_second_start_is_refused_in_one_line(up: Up) -> None:
    again = seedloom("up", env=environment(up.work), cwd=up.folder)
    assert again.returncode == 2
    assert len(again.stderr.strip().splitlines()) == 1
    assert up.prefect in again.stderr
    assert f"kill {up.process.pid}" in again.stderr


@server
def test_doctor_knows_the_running_servers(up: Up) -> None:
    done = seedloom("doctor", "--quick", env=environment(up.work), cwd=up.folder)
    assert f"{up.prefect}, by `seedloom up`" in done.stdout
    assert f"{up.mlflow}, by `seedloom up`" in done.stdout
    assert "does not answer" not in done.stdout


@server
def test_three_empty_tasks_cost_less_than_two_seconds(up: Up) -> None:
    script = (
        "import time\n"
        "from prefect import flow, task\n"
        "@task\n"
        "def nothing(): pass\n"
        "@flow(name='empty')\n"
        "def empty():\n"
        "    for _ in range(3): nothing()\n"
        "times = []\n"
        "for _ in range(3):\n"
        "    start = time.perf_counter(); empty(); times.append(time.perf_counter() - start)\n"
        "print(min(times))"
    )
    env = environment(up.work, PREFECT_API_URL=f"{up.prefect}/api", PREFECT_LOGGING_LEVEL="ERROR")
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=up.folder, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 2.0


@server
@pytest.mark.ends_up
def test_ctrl_c_ends_everything_and_closes_what_was_running(up: Up, tmp_path: Path) -> None:
    import sqlite3

    config = tiny_settings(tmp_path / "inputs")
    config["finetune"] |= {"max_steps": 100_000, "stoppings": ["fixed"]}
    run = up.start_run("lifecycle", config)
    deadline = time.monotonic() + 120
    while not list((up.work / "outputs" / "finetune").glob("*.partial")):
        assert time.monotonic() < deadline, (up.work / "logs" / "flows.log").read_text()[-2000:]
        time.sleep(0.2)
    processes = up.processes()
    assert len(processes) >= 6  # itself, its guard, two servers, the deployments, the flow run
    assert up.end() == 0
    assert up.output.rstrip().endswith("stopped")
    assert "Traceback" not in up.output
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []
    assert running(up.work) is None
    with sqlite3.connect(up.work / "mlflow.db") as mlflow:
        query = "select status from runs where name = 'lifecycle' order by start_time desc limit 1"
        assert mlflow.execute(query).fetchone() == ("KILLED",)
        assert mlflow.execute("select count(*) from runs where status = 'RUNNING'").fetchone() == (0,)
    with sqlite3.connect(up.work / "prefect" / "prefect.db") as prefect:
        state = prefect.execute("select state_type from flow_run where id = ?", (run,)).fetchone()
        assert state == ("CANCELLED",)


# Its parts, without servers.


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def make_servers(tmp_path: Path, *parts: Part) -> Servers:
    """`Servers` around given parts, as its constructor leaves it."""
    servers = object.__new__(Servers)
    servers.work, servers.logs = tmp_path, tmp_path / "logs"
    servers.parts, servers.guard, servers.started = list(parts), Guard(), time.monotonic()
    servers.ready_file = tmp_path / "ready"
    for part in parts:
        servers.guard.watch(part.child)
    return servers


def child(tmp_path: Path, script: str, name: str = "Prefect") -> Child:
    return Child(name, python(script), dict(os.environ), tmp_path / "logs" / f"{name.lower()}.log")


def test_a_part_that_ends_by_itself_is_named_with_its_last_lines(tmp_path: Path) -> None:
    dying = child(tmp_path, "print('the disk is full'); raise SystemExit(3)")
    dying.process.wait()
    servers = make_servers(tmp_path, Part("Prefect", dying, lambda: False, 1))
    with pytest.raises(ServerError, match=r"Prefect ended by itself \(exit status 3\).*\nthe disk is full"):
        servers.poll()
    servers.stop()


def test_a_slow_part_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import threading

    from rich.console import Console

    from flows.serve import wait_until_ready

    flag = tmp_path / "flag"
    slow = child(
        tmp_path,
        f"import time, pathlib; time.sleep(1.5); pathlib.Path({str(flag)!r}).touch(); time.sleep(60)",
    )
    servers = make_servers(tmp_path, Part("MLflow", slow, flag.exists, 1))
    wait_until_ready(servers, threading.Event(), Console())
    assert "MLflow ready after" in capsys.readouterr().out
    assert servers.stop() == []
    assert slow.status is not None


def test_a_part_that_never_gets_ready_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.serve.START_PATIENCE", 0.0)
    stuck = child(tmp_path, "import time; print('waiting for a lock', flush=True); time.sleep(60)", "MLflow")
    while "lock" not in stuck.log.read_text():
        time.sleep(0.05)
    servers = make_servers(tmp_path, Part("MLflow", stuck, lambda: False, 1))
    with pytest.raises(ServerError, match=r"MLflow was not ready after 0 s.*\nwaiting for a lock"):
        servers.poll()
    servers.stop()


def test_a_part_that_ignores_the_request_is_ended_with_all_it_started(tmp_path: Path) -> None:
    script = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid, flush=True)\n"
        "time.sleep(60)"
    )
    stubborn = child(tmp_path, script)
    while not (line := stubborn.log.read_text()).endswith("\n"):
        time.sleep(0.05)
    assert stubborn.stop(patience=0.3) is False
    deadline = time.monotonic() + 5
    while psutil.pid_exists(int(line)) and psutil.Process(int(line)).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_parent_leaves_no_children(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from flows.servers.children import Child, Guard\n"
        "guard, command = Guard(), [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        f"child = Child('x', command, dict(os.environ), Path({str(tmp_path)!r}) / 'x.log')\n"
        "guard.watch(child)\n"
        "print(child.process.pid, guard.process.pid, flush=True)\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen(python(script), stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 15
    while any(map(psutil.pid_exists, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_busy_port_names_its_owner_and_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        assert str(os.getpid()) in owner_of(port)
        with pytest.raises(ConfigError) as refused:
            check_port(port, "--prefect-port", "SEEDLOOM_PREFECT_PORT")
    message = str(refused.value)
    assert message.startswith(f"--prefect-port {port}: the port is in use by ")
    assert "SEEDLOOM_PREFECT_PORT" in message
    check_port(port, "--prefect-port", "SEEDLOOM_PREFECT_PORT")


def test_one_port_for_both_is_refused(work: Path) -> None:
    port = free_port()
    with pytest.raises(ConfigError, match="two different ports"):
        check_start(settings(), port, port)


def test_a_remote_mlflow_server_is_used_as_it_is(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.serve import remote_mlflow

    monkeypatch.setenv("SEEDLOOM_MLFLOW_TRACKING_URI", "http://mlflow.example:5000/")
    settings.cache_clear()
    assert remote_mlflow(settings()) == "http://mlflow.example:5000"
    with socket.create_server(("127.0.0.1", 0)) as busy:
        check_start(settings(), free_port(), busy.getsockname()[1])


def test_the_state_file_outlives_no_process(tmp_path: Path) -> None:
    own: dict[str, Any] = {"prefect": "http://127.0.0.1:1", "mlflow": "http://127.0.0.1:2"}
    alive = Running(pid=os.getpid(), started=psutil.Process().create_time(), **own)
    record(tmp_path, alive)
    assert running(tmp_path) == alive
    record(tmp_path, alive.model_copy(update={"started": alive.started - 100}))
    assert running(tmp_path) is None
    clear(tmp_path)
    assert running(tmp_path) is None
    clear(tmp_path)
