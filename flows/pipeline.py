"""What every flow does around its stages: open the MLflow run, check the work folder, name the Prefect run."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.runtime import flow_run as prefect_run

from tasks.config import Config
from tasks.settings import settings
from tasks.tracking import RunContext, flow_run
from tasks.workspace import Workspace


@contextmanager
def open_run(flow: str, config: Config, needed_bytes: int = 0) -> Iterator[RunContext]:
    """The MLflow parent run of this Prefect flow run.

    Raises:
        StorageError: the work folder cannot hold the run.
    """
    logging.getLogger("seedloom").setLevel(logging.INFO)  # each step's start and reuse, for the run's log
    Workspace(settings().work).check(needed_bytes)
    with flow_run(flow, config, prefect_run.get_id()) as ctx:
        yield ctx
