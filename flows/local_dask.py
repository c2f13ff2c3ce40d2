"""Dask on this machine: a cluster of a flow's own, on loopback, whose end cannot fail a finished flow."""

import logging
from typing import Any

from prefect_dask import DaskTaskRunner

logger = logging.getLogger("seedloom")


class LocalDaskTaskRunner(DaskTaskRunner):  # type: ignore[misc]
    """One process a worker. Prefect makes copies of a runner from its constructor's arguments, hence no new ones."""

    def __exit__(self, *args: Any) -> None:
        try:
            super().__exit__(*args)
        except TimeoutError:
            # On a busy machine a worker that was killed may be gone too late for Dask; its results are all in.
            logger.warning("a Dask worker was slow to end and was killed; its tasks had ended before")


def local_dask(workers: int) -> LocalDaskTaskRunner:
    return LocalDaskTaskRunner(
        cluster_kwargs={
            "n_workers": workers,
            "threads_per_worker": 1,
            "host": "127.0.0.1",
            "dashboard_address": "127.0.0.1:0",
            "silence_logs": logging.ERROR,
        }
    )
