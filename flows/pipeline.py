"""What every flow does around its stages: open the MLflow run, check the work folder, name the Prefect run."""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from prefect.runtime import flow_run as prefect_run

from flows.interrupts import notice
from tasks.config import Config
from tasks.output_folder import check_report
from tasks.settings import settings
from tasks.tracking import RunContext, flow_run
from tasks.workspace import Workspace

GRACE_SECONDS = 5.0
INTERRUPTED = 130


@contextmanager
def open_run(flow: str, config: Config, needed_bytes: int = 0) -> Iterator[RunContext]:
    """The MLflow parent run of this Prefect flow run.

    Raises:
        StorageError: the work folder cannot hold the run.
        DataError: the report's folder holds somebody's results.
    """
    logging.getLogger("seedloom").setLevel(logging.INFO)  # each step's start and reuse, for the run's log
    Workspace(settings().work).check(needed_bytes)
    report = getattr(getattr(config, "report", None), "folder", "")
    if report:
        check_report(Path(report))
    try:
        with flow_run(flow, config, prefect_run.get_id()) as ctx:
            yield ctx
    except Exception:
        raise
    except BaseException:
        notice()
        _end_soon()
        raise


def _end_soon() -> None:
    """After Ctrl-C or a cancellation, do not wait for a step in a thread, which nothing can interrupt.

    The step's part is kept for the next run, the MLflow runs are closed already.
    """
    timer = threading.Timer(GRACE_SECONDS, _end_now)
    timer.daemon = True
    timer.start()


def _end_now() -> None:
    # What this process started, such as a temporary Prefect server, would live on without it.
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.terminate()
    os._exit(INTERRUPTED)
