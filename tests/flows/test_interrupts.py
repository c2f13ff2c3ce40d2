"""An interrupt that falls into a destructor is raised again, and only until somebody has noticed it."""

import contextlib
import subprocess
import sys

import psutil

from tests.flows.tiny_lifecycle import ROOT

LOST = """
import os, signal, time
from flows import interrupts

class Loud:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(1000))  # the interrupt is raised here, where Python drops it

interrupts.AGAIN_SECONDS = 0.2
interrupts.insist()
thing = Loud()
del thing
print("dropped", flush=True)
try:
    time.sleep(20)
    print("slept")
except KeyboardInterrupt:
    interrupts.notice()
    print("noticed", flush=True)
time.sleep(0.6)  # not raised any more
print("done")
"""


def test_a_dropped_interrupt_comes_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOST], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.split() == ["dropped", "noticed", "done"], done.stderr
    assert done.returncode == 0


CHILD = """
import subprocess, sys
from flows import pipeline
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
pipeline._end_now()
"""


def test_what_an_interrupted_run_started_ends_with_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=60
    )
    assert done.returncode == 130
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(timeout=10)
    assert not psutil.pid_exists(int(done.stdout)) or psutil.Process(int(done.stdout)).status() == "zombie"
