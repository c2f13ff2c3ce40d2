"""`seedloom up`: Prefect server, MLflow server and every flow as a deployment; one Ctrl-C ends all."""

import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from flows.servers.children import Child, Guard
from flows.servers.state import Running, clear, record, running
from methods.common.errors import ConfigError
from tasks.settings import Settings, settings
from tasks.workspace import Workspace

HOST = "127.0.0.1"
START_PATIENCE = 900.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ServerError(OSError):
    """A server did not start or ended by itself; the message holds the end of its log."""


@dataclass
class Part:
    """One of the three: how it is started, how one sees that it is ready, how long it may take to end."""

    name: str
    child: Child
    ready: Callable[[], bool]
    stop_seconds: float
    ready_after: float | None = None


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def owner_of(port: int) -> str:
    """Who listens on the port, as far as this user may see it."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:
        pass
    return ""


def check_port(port: int, option: str, variable: str) -> None:
    """Refuse a port that another program holds.

    Raises:
        ConfigError: naming the port, its owner and the option that changes it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except PermissionError:
            raise ConfigError(
                f"{option} {port}: this user may not open that port; give one above 1023"
            ) from None
        except OSError:
            raise ConfigError(
                f"{option} {port}: the port is in use{owner_of(port)}; stop that program, "
                f"or give another port with {option} or {variable}"
            ) from None


def check_start(current: Settings, prefect_port: int, mlflow_port: int) -> None:
    """Refuse what would fail later: a second start on the same folder, a bad folder, busy ports."""
    Workspace(current.work).check()
    if found := running(current.work):
        raise ConfigError(
            f"`seedloom up` already runs on {current.work} (process {found.pid}): open {found.prefect} "
            f"and {found.mlflow}, or stop it with `kill {found.pid}`"
        )
    if prefect_port == mlflow_port:
        raise ConfigError(
            f"--prefect-port and --mlflow-port are both {mlflow_port}; give two different ports"
        )
    check_port(prefect_port, "--prefect-port", "SEEDLOOM_PREFECT_PORT")
    if not remote_mlflow(current):
        check_port(mlflow_port, "--mlflow-port", "SEEDLOOM_MLFLOW_PORT")


def remote_mlflow(current: Settings) -> str | None:
    """The address of a tracking server that somebody else runs."""
    uri = current.mlflow_tracking_uri or ""
    return uri.rstrip("/") if uri.startswith(("http://", "https://")) else None


class Servers:
    """The parts of one `seedloom up`, started together and ended together."""

    def __init__(
        self,
        current: Settings,
        environment: dict[str, str],
        prefect_port: int,
        mlflow_port: int,
        at_once: int,
    ) -> None:
        self.work = current.work
        self.logs = self.work / "logs"
        self.prefect = f"http://{HOST}:{prefect_port}"
        remote = remote_mlflow(current)
        self.mlflow = remote or f"http://{HOST}:{mlflow_port}"
        self.parts: list[Part] = []
        self.guard = Guard()
        self.started = time.monotonic()
        base = {
            **{name: value for name, value in environment.items() if name != "MLFLOW_RUN_ID"},
            "SEEDLOOM_WORK_DIR": str(self.work),
            "PYTHONUNBUFFERED": "1",
        }
        self._start(
            "Prefect",
            [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(prefect_port)],
            {**base, **prefect_environment(self.work, self.prefect)},
            lambda: answers(f"{self.prefect}/api/health"),
            stop_seconds=15,
        )
        if not remote:
            self._start(
                "MLflow",
                [sys.executable, "-W", "ignore", "-m", "flows.servers.mlflow_server", str(mlflow_port)],
                base,
                lambda: answers(f"{self.mlflow}/health"),
                stop_seconds=10,
            )
        self.ready_file = self.work / "flows-ready.json"
        self.ready_file.unlink(missing_ok=True)
        self._start(
            "flows",
            [sys.executable, "-m", "flows.servers.deployments", str(self.ready_file), str(at_once)],
            {
                "PREFECT_LOGGING_LEVEL": "INFO",
                "PREFECT_RUNNER_POLL_FREQUENCY": "2",
                **base,
                "PREFECT_API_URL": f"{self.prefect}/api",
                "SEEDLOOM_MLFLOW_URL": self.mlflow,
            },
            self.ready_file.exists,
            stop_seconds=40,
        )

    def _start(
        self,
        name: str,
        command: list[str],
        env: dict[str, str],
        ready: Callable[[], bool],
        stop_seconds: float,
    ) -> None:
        child = Child(name, command, env, self.logs / f"{name.lower()}.log")
        self.guard.watch(child)
        self.parts.append(Part(name, child, ready, stop_seconds))

    def poll(self) -> None:
        """Look at each part once.

        Raises:
            ServerError: one of them ended by itself.
        """
        for part in self.parts:
            if part.child.status is not None:
                raise ServerError(
                    f"{part.name} ended by itself (exit status {part.child.status}); "
                    f"the end of {part.child.log}:\n" + "\n".join(part.child.last_lines())
                )
            if part.ready_after is None and part.ready():
                part.ready_after = time.monotonic() - self.started
        waited = time.monotonic() - self.started
        late = [part for part in self.parts if part.ready_after is None]
        if late and waited > START_PATIENCE:
            raise ServerError(
                f"{late[0].name} was not ready after {waited:.0f} s; the end of {late[0].child.log}:\n"
                + "\n".join(late[0].child.last_lines())
            )

    @property
    def all_ready(self) -> bool:
        return all(part.ready_after is not None for part in self.parts)

    def progress(self) -> str:
        seconds = time.monotonic() - self.started
        words = [f"{part.name} {'ready' if part.ready_after is not None else '...'}" for part in self.parts]
        return f"starting ({seconds:.0f} s): {', '.join(words)}"

    def served(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ready_file.read_text())
        return found

    def stop(self) -> list[str]:
        """End the flows first, which still report to the servers; returns the parts that had to be forced."""
        forced = [part.name for part in reversed(self.parts) if not part.child.stop(part.stop_seconds)]
        self.guard.release()
        self.ready_file.unlink(missing_ok=True)
        return forced


def prefect_environment(work: Path, address: str) -> dict[str, str]:
    """What the Prefect server needs beyond its command line."""
    port = address.rpartition(":")[2]
    environment = {
        "PREFECT_SERVER_UI_API_URL": f"{address}/api",
        # Any web page could otherwise start flow runs through the visitor's browser.
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{address},http://localhost:{port}",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "DO_NOT_TRACK": "1",
    }
    if "PREFECT_HOME" not in os.environ:
        environment["PREFECT_HOME"] = str(work / "prefect")
    return environment


def up(prefect_port: int | None, mlflow_port: int | None, at_once: int) -> None:
    """Start everything, say where it is, and stay until Ctrl-C.

    Raises:
        ConfigError: a busy port, or a second start on one work folder.
        ServerError: a part did not start, or ended by itself.
    """
    current = settings()
    prefect_port = prefect_port or current.prefect_port
    mlflow_port = mlflow_port or current.mlflow_port
    check_start(current, prefect_port, mlflow_port)

    stop = threading.Event()
    for number in SIGNALS:
        signal.signal(number, lambda *_: stop.set())
    console = Console(highlight=False, soft_wrap=True)
    servers = Servers(current, dict(os.environ), prefect_port, mlflow_port, at_once)
    try:
        wait_until_ready(servers, stop, console)
        if not stop.is_set():
            process = psutil.Process()
            record(
                servers.work,
                Running(
                    pid=process.pid,
                    started=process.create_time(),
                    prefect=servers.prefect,
                    mlflow=servers.mlflow,
                ),
            )
            announce(servers, at_once, console)
        while not stop.wait(1.0):
            servers.poll()
        console.print("stopping: running flows first, then the servers ...")
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        clear(servers.work)
        forced = servers.stop()
    console.print("stopped" + (f" ({', '.join(forced)} had to be ended by force)" if forced else ""))


def wait_until_ready(servers: Servers, stop: threading.Event, console: Console) -> None:
    """Show the progress: one moving line on a terminal, else one line for each part."""
    told: set[str] = set()
    with console.status(servers.progress()) as status:
        while not servers.all_ready and not stop.wait(0.25):
            servers.poll()
            status.update(servers.progress())
            for part in servers.parts:
                if part.ready_after is not None and part.name not in told:
                    told.add(part.name)
                    console.print(f"{part.name} ready after {part.ready_after:.0f} s")


def announce(servers: Servers, at_once: int, console: Console) -> None:
    """Both addresses and the next click."""
    found = servers.served()
    names = list(found["served"])
    for name, reason in found["left_out"].items():
        console.print(f"[yellow]left out: {name}[/]: {reason}")
    if not names:
        raise ServerError(
            f"no flow can be loaded; see {servers.logs / 'flows.log'}, and run `seedloom doctor`"
        )
    console.print()
    console.print(f"  Prefect  {servers.prefect}   run flows: {', '.join(names)}")
    console.print(f"  MLflow   {servers.mlflow}   compare their candidates")
    console.print(f"  logs     {servers.logs}")
    console.print()
    first = "lifecycle" if "lifecycle" in names else names[0]
    console.print(f"  Next: open {servers.prefect}/v2/deployments/deployment/{found['served'][first]}")
    console.print("        and press Run > Custom run: the form holds every setting of the flow.")
    waiting = "one flow run" if at_once == 1 else f"{at_once} flow runs"
    console.print(f"        At most {waiting} at a time, others wait (--at-once). Ctrl-C ends everything.")
