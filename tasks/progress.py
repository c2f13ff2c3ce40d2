"""Progress of long work: a bar for a person at a terminal, a line in the log now and then for everybody else."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger("seedloom")
LOG_EVERY = 60.0  # seconds


@contextmanager
def progress_bar(label: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Call what it yields with the finished and all units.

    Without a terminal (a run started from a form, a scheduler, a file) a line is logged when the last one is
    `LOG_EVERY` seconds old, and none of work that takes less.
    """
    from tqdm import tqdm

    with tqdm(desc=label, unit=unit, disable=None, leave=False) as bar:
        told = time.monotonic()

        def on_unit(done: int, total: int) -> None:
            nonlocal told
            bar.total = total
            bar.update(done - bar.n)
            if bar.disable and time.monotonic() - told >= LOG_EVERY:
                told = time.monotonic()
                logger.info("%s: %d of %d %ss", label, done, total, unit)

        yield on_unit
