"""Child processes that are watched, logged and never left behind."""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

# Ends the groups named on its standard input when that closes without a "done": the parent was killed.
GUARD = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
groups = []
for line in sys.stdin:
    if line.strip() == "done":
        sys.exit()
    groups.append(int(line))
def send(number):
    left = []
    for group in groups:
        try:
            os.killpg(group, number)
            left.append(group)
        except OSError:
            pass
    return left
send(signal.SIGTERM)
end = time.monotonic() + 5
while send(0) and time.monotonic() < end:
    time.sleep(0.1)
send(signal.SIGKILL)
"""


class Child:
    """A process in a group of its own, so that Ctrl-C reaches the parent only and one signal reaches all its children.

    Attributes:
        name: what people call it.
        log: file with its output; the former start's is kept as `<log>.previous`.
    """

    def __init__(self, name: str, command: Sequence[str], env: dict[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists():
            log.replace(log.with_name(f"{log.name}.previous"))
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """None while it runs, else its exit status."""
        return self.process.poll()

    def last_lines(self, count: int = 12) -> list[str]:
        with self.log.open(errors="replace") as stream:
            return [line.rstrip() for line in deque(stream, maxlen=count)]

    def stop(self, patience: float) -> bool:
        """Ask, wait up to `patience` seconds, then end the whole group; True when it went by itself."""
        self._signal(signal.SIGTERM, group=False)
        try:
            self.process.wait(patience)
            went = True
        except subprocess.TimeoutExpired:
            went = False
        self._signal(signal.SIGKILL, group=True)  # what it started may outlive it
        self.process.wait()
        return went

    def _signal(self, number: int, *, group: bool) -> None:
        try:
            (os.killpg if group else os.kill)(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return


class Guard:
    """A tiny process that ends the children when this process is killed and cannot do it itself."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def watch(self, child: Child) -> None:
        self._write(str(child.process.pid))

    def release(self) -> None:
        self._write("done")
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()

    def _write(self, line: str) -> None:
        if self.process.stdin is not None:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
