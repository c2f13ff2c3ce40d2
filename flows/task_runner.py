"""Where a flow's tasks run: threads, a Dask cluster or a Ray cluster, by SEEDLOOM_TASK_RUNNER."""

from dataclasses import dataclass
from typing import Any, Protocol

from prefect.tasks import Task

from methods.common.errors import ConfigError
from tasks.settings import settings
from tasks.step import StepResult
from tasks.tracking import RunContext


class Started(Protocol):
    """A step that was started."""

    def result(self) -> StepResult:
        """Its result, waited for; what the step raised is raised here."""


@dataclass(frozen=True)
class Finished:
    """A step that is done."""

    step_result: StepResult

    def result(self) -> StepResult:
        return self.step_result


def start(step: Task[..., StepResult], ctx: RunContext, label: str, inputs: dict[str, Any]) -> Started:
    """Start a step on the flow's task runner.

    One worker needs no thread of its own: the step runs here, at once. A model that was loaded in the main thread
    computes up to 1.7 times faster on a CPU than one that was loaded in another, and only the main thread can be
    interrupted by a time limit or Ctrl-C.
    """
    current = settings()
    if current.task_runner == "threads" and current.workers == 1:
        return Finished(step(ctx, label, inputs))
    return step.submit(ctx, label, inputs)


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
