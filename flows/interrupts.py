"""Ctrl-C that cannot get lost.

Python drops an exception that is raised while a destructor or a weak reference's callback runs, and with it the
interrupt: the run would go on as if nobody had pressed the keys.
"""

import os
import signal
import threading
from types import FrameType

AGAIN_SECONDS = 1.0

_noticed = threading.Event()


def notice() -> None:
    """The interrupt has arrived where it is dealt with; it is not raised again."""
    _noticed.set()


def insist() -> None:
    """Raise KeyboardInterrupt in the main thread on Ctrl-C, again and again until `notice` is called."""
    _noticed.clear()
    signal.signal(signal.SIGINT, _interrupt)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    if _noticed.is_set():
        return
    timer = threading.Timer(AGAIN_SECONDS, _again)
    timer.daemon = True
    timer.start()
    raise KeyboardInterrupt


def _again() -> None:
    if not _noticed.is_set():
        os.kill(os.getpid(), signal.SIGINT)
