"""Results of many runs, each kept as soon as it is there: a study that was killed does only what is missing."""

from __future__ import annotations

import json
import logging
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

logger = logging.getLogger("seedloom")
Job = TypeVar("Job")
Result = dict[str, Any]


def banked(
    jobs: Mapping[str, Job], work: Callable[[Job], Result], bank: Path, processes: int
) -> list[Result]:
    """Every job's result, from the bank or done now; in the order of `jobs`.

    Args:
        jobs: by a key that says everything that decides the result.
        work: a function of a module; it runs in other processes when there are several.
        bank: folder with one JSON file a key.
        processes: jobs at the same time.
    """
    bank.mkdir(parents=True, exist_ok=True)
    files = {key: bank / f"{key}.json" for key in jobs}
    missing = {key: job for key, job in jobs.items() if not files[key].is_file()}
    done = len(files) - len(missing)
    logger.info("runs: %d of %d are there", done, len(files))
    for key, result in _results(missing, work, processes):
        part = files[key].with_suffix(".part")
        part.write_text(json.dumps(result, sort_keys=True), encoding="utf-8")
        part.replace(files[key])
        done += 1
        logger.info("runs: %d of %d", done, len(files))
    return [json.loads(files[key].read_text(encoding="utf-8")) for key in jobs]


def _results(
    jobs: Mapping[str, Job], work: Callable[[Job], Result], processes: int
) -> Iterator[tuple[str, Result]]:
    if processes == 1 or len(jobs) < 2:
        for key, job in jobs.items():
            yield key, work(job)
        return
    # A fresh interpreter for each worker: a forked one would share torch's threads.
    pool = ProcessPoolExecutor(min(processes, len(jobs)), mp_context=multiprocessing.get_context("spawn"))
    try:
        waiting = {pool.submit(work, job): key for key, job in jobs.items()}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
