"""Servers that tests start for themselves, on loopback and on ports that the system chooses."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def prefect_server(home: Path, patience: float = 180) -> Iterator[str]:
    """A Prefect server with an empty database in `home`; yields its API address."""
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    env |= {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "ERROR",
        "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}/api"
    try:
        deadline = time.monotonic() + patience
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=2):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((home / "server.log").read_text()[-2000:]) from None
                time.sleep(0.3)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)
