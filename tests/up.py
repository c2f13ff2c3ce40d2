"""A `seedloom up` for tests: on ports that the system chooses, in a folder of its own."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.flows.tiny_lifecycle import ROOT, environment
from tests.servers import free_port

READY = "Ctrl-C ends everything"
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def request(url: str, body: Any = None, method: str | None = None, **headers: str) -> Any:
    """JSON from `url`; a body makes it a POST."""
    data = None if body is None else json.dumps(body).encode()
    sent = urllib.request.Request(
        url, data=data, method=method, headers={"content-type": "application/json", **headers}
    )
    with urllib.request.urlopen(sent, timeout=30) as answer:
        return json.loads(answer.read() or "null")


@dataclass
class Up:
    """A running `seedloom up`.

    Attributes:
        folder: where it was started: the form's relative paths begin here.
        prefect: address of the Prefect UI.
        mlflow: address of the MLflow UI.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    prefect: str
    mlflow: str

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def output(self) -> str:
        return (self.folder / "up.log").read_text()

    def api(self, path: str, body: Any = None) -> Any:
        return request(f"{self.prefect}/api{path}", body)

    def deployment(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api(f"/deployments/name/{name}/{name}")
        return found

    def start_run(self, name: str, config: dict[str, Any]) -> str:
        deployment = self.deployment(name)["id"]
        run: str = self.api(f"/deployments/{deployment}/create_flow_run", {"parameters": {"config": config}})[
            "id"
        ]
        return run

    def wait(self, run: str, patience: float = 240) -> dict[str, Any]:
        """The flow run when it has ended."""
        deadline = time.monotonic() + patience
        while True:
            found: dict[str, Any] = self.api(f"/flow_runs/{run}")
            if found["state_type"] in ENDED:
                return found
            assert time.monotonic() < deadline, f"{found['state_name']} after {patience} s"
            time.sleep(0.3)

    def processes(self) -> list[psutil.Process]:
        """It and everything below it."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def end(self) -> int:
        """Ctrl-C; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=120)


def start_up(folder: Path, *options: str, patience: float = 240) -> Up:
    """Start it and wait until it says that it is ready."""
    folder.mkdir(parents=True, exist_ok=True)
    prefect, mlflow = free_port(), free_port()
    command = [sys.executable, "-m", "flows.cli", "up", "--prefect-port", str(prefect)]
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--mlflow-port", str(mlflow), *options],
            cwd=folder,
            env=environment(folder / "work", PYTHONPATH=str(ROOT)),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    up = Up(process, folder, f"http://127.0.0.1:{prefect}", f"http://127.0.0.1:{mlflow}")
    deadline = time.monotonic() + patience
    while READY not in up.output:
        assert process.poll() is None, up.output
        assert time.monotonic() < deadline, up.output
        time.sleep(0.2)
    return up
