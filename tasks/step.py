"""A step: plain work on files, made into a Prefect task that is cached, resumable and atomic.

The work is a function `work(out, **inputs) -> summary` that writes into the folder `out`. Its inputs are settings
models, references and plain values. What it made is kept under a key of its name, version, settings and the
digests of its inputs; a second call with the same key returns the first one's output. `out` may hold what a killed
attempt left, for work that can go on from there.
"""

import hashlib
import inspect
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import task
from prefect.context import TaskRunContext
from prefect.results import ResultStore
from prefect.tasks import Task
from pydantic import BaseModel

from methods.common.errors import ConfigError, DataError, NumericalError
from tasks.config import Config
from tasks.reference import Kind, Reference
from tasks.settings import settings
from tasks.tracking import RunContext
from tasks.workspace import StorageError, Workspace

logger = logging.getLogger("seedloom")


class _ThreadTimeoutNotice(logging.Filter):
    """Prefect warns at each submitted task that a thread cannot be interrupted; that is known here."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "Timeouts in worker threads cannot interrupt" not in record.getMessage()


class _ExpectedErrors(logging.Filter):
    """A mistake in the inputs and a full disk are one line; where in the code they were noticed helps nobody."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ConfigError | DataError | NumericalError | StorageError):
            record.exc_info = None
        return True


logging.getLogger("prefect.task_runs").addFilter(_ThreadTimeoutNotice())
for runs in ("prefect.task_runs", "prefect.flow_runs"):
    logging.getLogger(runs).addFilter(_ExpectedErrors())

Work = Callable[..., dict[str, Any]]
KindOf = Kind | Callable[[dict[str, Any]], Kind]


class StepResult(Config):
    """What a step hands on.

    Attributes:
        reference: the output.
        summary: small JSON values that the work returned; the same for the same inputs.
        timings: measured seconds and rates of the attempt that made the output.
    """

    reference: Reference
    summary: dict[str, Any]
    timings: dict[str, Any]

    @property
    def path(self) -> Path:
        return self.reference.path


def identity(value: Any) -> Any:
    """What of an input counts for the key: content, never a path."""
    if isinstance(value, StepResult):
        value = value.reference
    if isinstance(value, Reference):
        return {"kind": value.kind, "digest": value.digest}
    if isinstance(value, BaseModel):
        return {"model": type(value).__name__, **value.model_dump(mode="json")}
    if isinstance(value, dict):
        return {str(name): identity(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [identity(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"a step input is a {type(value).__name__}; pass settings, references or plain values")


def step_key(name: str, version: str, inputs: dict[str, Any]) -> str:
    """The content address of a step's output."""
    record = {"step": name, "version": version, "inputs": identity(inputs)}
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:32]


def run_step(
    name: str, version: str, kind: KindOf, work: Work, inputs: dict[str, Any], label: str = ""
) -> StepResult:
    """Do the work, or find it done; the heart of a step, usable without Prefect."""
    label = label or name
    workspace = Workspace(settings().work)
    key = step_key(name, version, inputs)
    finished = workspace.find(name, key)
    if finished is None:
        with workspace.claim(name, key) as out:
            finished = workspace.find(name, key)  # another process may have made it while we waited
            if finished is None:
                logger.info("%s: started", label)
                started = time.perf_counter()
                summary = work(out, **{n: _plain(v) for n, v in inputs.items()})
                timings = {"seconds": time.perf_counter() - started, **summary.pop("timings", {})}
                record = {
                    "step": name,
                    "version": version,
                    "inputs": identity(inputs),
                    "summary": summary,
                    "timings": timings,
                }
                finished = workspace.finish(name, key, record)
                logger.info("%s: done in %.1f s", label, timings["seconds"])
    return StepResult(
        reference=finished.reference(kind(inputs) if callable(kind) else kind),
        summary=finished.manifest["summary"],
        timings=finished.manifest["timings"],
    )


def _plain(value: Any) -> Any:
    """Work functions see references, not the results that carried them."""
    if isinstance(value, StepResult):
        return value.reference
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def step(
    name: str,
    *,
    kind: KindOf,
    version: str,
    timeout_seconds: float,
    tags: tuple[str, ...] = (),
    live: bool = False,
) -> Callable[[Work], Task[..., StepResult]]:
    """Decorate work as a Prefect task `task(ctx, label, **inputs) -> StepResult`.

    Args:
        name: the step's name and its folder in the work folder.
        kind: what the output holds, or a function of the inputs that says it.
        version: raise it when the work changes what it makes; older outputs are then not reused.
        timeout_seconds: Prefect fails the task after this.
        tags: Prefect tags beside the step's name.
        live: give the work the keyword `ctx` and `label` to write to MLflow while it runs.
    """

    def decorate(work: Work) -> Task[..., StepResult]:
        def cache_key(_context: TaskRunContext, parameters: dict[str, Any]) -> str:
            key = step_key(name, version, parameters["inputs"])
            # Prefect's record holds the output's path, so it is one of this place: a work folder may be moved.
            place = hashlib.sha256(str(settings().work).encode()).hexdigest()[:8]
            record = f"{name}-{key}-{place}"
            if Workspace(settings().work).find(name, key) is None:
                # Prefect would answer from its record although the files are gone or damaged.
                _forget(record)
            else:
                logger.info("%s: reused", parameters["label"])
            return record

        @task(
            name=name,
            description=inspect.getdoc(work),
            version=version,
            cache_key_fn=cache_key,
            persist_result=True,
            cache_result_in_memory=False,
            result_serializer="json",
            timeout_seconds=timeout_seconds,
            task_run_name="{label}",
            tags={name, *tags},
        )
        def run(ctx: RunContext | None, label: str, inputs: dict[str, Any]) -> StepResult:
            bound = (lambda out, **given: work(out, ctx=ctx, label=label, **given)) if live else work
            return run_step(name, version, kind, bound, inputs, label)

        return run

    return decorate


def _forget(key: str) -> None:
    store = ResultStore()
    path = Path(getattr(store.result_storage, "basepath", settings().work / "results")) / key
    path.unlink(missing_ok=True)
