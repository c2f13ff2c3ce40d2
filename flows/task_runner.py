"""Where a flow's tasks run: threads, a Dask cluster or a Ray cluster, by SEEDLOOM_TASK_RUNNER."""

from typing import Any

from methods.common.errors import ConfigError
from tasks.settings import settings


def task_runner() -> Any:
    """The configured Prefect task runner.

    Raises:
        ConfigError: when the runner's package is not installed, with the command that installs it.
    """
    kind, workers = settings().task_runner, settings().workers
    if kind == "threads":
        from prefect.task_runners import ThreadPoolTaskRunner

        return ThreadPoolTaskRunner(max_workers=workers)
    try:
        if kind == "dask":
            from prefect_dask import DaskTaskRunner

            address = settings().dask_address
            if address:
                return DaskTaskRunner(address=address)
            from flows.local_dask import local_dask

            return local_dask(workers)
        from prefect_ray import RayTaskRunner

        return RayTaskRunner(init_kwargs={"num_cpus": workers})
    except ImportError as error:
        raise ConfigError(
            f"SEEDLOOM_TASK_RUNNER={kind} needs a package that is not installed; pip install 'seedloom[{kind}]'"
        ) from error
