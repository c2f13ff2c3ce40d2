"""Lines for the person who watches the run: a doubt is not an error, and must not stay unseen."""

import logging
from collections.abc import Iterable

logger = logging.getLogger("seedloom")
_said: set[str] = set()


def say_once(lines: Iterable[str]) -> None:
    """Each line once a process, on the terminal and in the run's log; several steps meet the same doubt."""
    for line in lines:
        if line not in _said:
            _said.add(line)
            logger.warning("note: %s", line)
