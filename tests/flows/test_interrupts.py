"""An interrupt that falls into a destructor is raised again, and only until somebody has noticed it."""

import subprocess
import sys

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
