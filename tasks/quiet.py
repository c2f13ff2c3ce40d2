"""Keep other libraries' progress bars and chatter out of logs."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_lock = threading.Lock()
_depth = 0
_stderr: TextIO | None = None


@contextmanager
def quiet_progress() -> Iterator[None]:
    """No progress bars from code that has no switch for them, unless a person watches a terminal.

    Takes the bars' stream away; loggers hold their own, and errors are raised as ever. Safe when several threads are
    inside at once: the stream comes back with the last one.
    """
    global _depth, _stderr
    with _lock:
        if _depth == 0:
            if sys.stderr.isatty():
                _stderr = None
            else:
                _stderr, sys.stderr = sys.stderr, io.StringIO()
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0 and _stderr is not None:
                sys.stderr, _stderr = _stderr, None


@contextmanager
def quiet_logs(*names: str) -> Iterator[None]:
    """Only errors from loggers that talk about normal work."""
    before = [(logging.getLogger(name), logging.getLogger(name).level) for name in names]
    for logger, _ in before:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in before:
            logger.setLevel(level)
