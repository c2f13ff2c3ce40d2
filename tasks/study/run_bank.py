"""Rows of a study that are kept one by one: a study that was killed does only what is missing."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

from tasks.settings import settings as machine

logger = logging.getLogger("seedloom")
Item = TypeVar("Item")


def bank_file(name: str, key: Mapping[str, Any], suffix: str = ".json") -> Path:
    """Where the result with this key is kept; the key is everything that it depends on, JSON values."""
    record = json.dumps(key, sort_keys=True)
    return machine().work / name / f"{hashlib.sha256(record.encode()).hexdigest()[:32]}{suffix}"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a finished part, one JSON object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def banked(
    name: str,
    items: Sequence[Item],
    key: Callable[[Item], Mapping[str, Any]],
    work: Callable[[Item], dict[str, Any]],
    processes: int = 1,
) -> list[dict[str, Any]]:
    """The row of every item, from the work folder or done now, in the order of `items`.

    Args:
        name: of the bank's folder below the work folder.
        items: what to do.
        key: everything that an item's row depends on, JSON values; a version among them.
        work: makes the row, JSON values; with several processes a function of a module.
        processes: items at the same time.
    """
    files = [bank_file(name, key(item)) for item in items]
    missing = [place for place, file in enumerate(files) if not file.is_file()]
    done = len(items) - len(missing)
    for place, row in _rows([(place, items[place]) for place in missing], work, processes):
        files[place].parent.mkdir(parents=True, exist_ok=True)
        part = files[place].with_suffix(".part")
        part.write_text(json.dumps(row, sort_keys=True), encoding="utf-8")
        part.replace(files[place])
        done += 1
        logger.info("%s: %d of %d", name, done, len(items))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _rows(
    items: Sequence[tuple[int, Item]], work: Callable[[Item], dict[str, Any]], processes: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    if processes == 1 or len(items) < 2:
        for place, item in items:
            yield place, work(item)
        return
    # A fresh interpreter for each worker: a forked one would share torch's threads.
    pool = ProcessPoolExecutor(min(processes, len(items)), mp_context=multiprocessing.get_context("spawn"))
    try:
        waiting = {pool.submit(work, item): place for place, item in items}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
