"""MLflow without hidden state: ids travel as values, every write names its run.

A flow run is one parent run; each candidate (method x seed) is a child of it. The active run of
`mlflow.start_run` is thread-local and MLFLOW_RUN_ID overrides a parent id, so neither is used.
"""

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
from filelock import FileLock
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from pydantic import BaseModel

from tasks.config import Config
from tasks.dvc import dvc_tags
from tasks.reference import Reference
from tasks.settings import settings

PARENT_TAG = "mlflow.parentRunId"
CANDIDATE_TAG = "seedloom.candidate"
STAGE_PARAM = "candidate.stage"
PARAM_LIMIT = 6000
_candidate_lock = threading.Lock()


class RunContext(Config):
    """The MLflow ids of a flow run, passed to each task by value."""

    tracking_uri: str
    experiment_id: str
    parent_run_id: str
    flow: str
    flow_run_id: str | None = None

    @property
    def client(self) -> MlflowClient:
        return client_for(self.tracking_uri)

    @property
    def run_url(self) -> str | None:
        """The parent run's page in the MLflow UI, when an address is known."""
        base = ui_address(self.tracking_uri)
        return base and f"{base}/#/experiments/{self.experiment_id}/runs/{self.parent_run_id}"

    @property
    def compare_url(self) -> str | None:
        """The page that puts the candidates side by side; the parent's when there are none to compare."""
        base, runs = ui_address(self.tracking_uri), children(self)
        if base is None or len(runs) < 2:
            return self.run_url
        return compare_page(base, self.experiment_id, [run.info.run_id for run in by_stage(runs)])


def ui_address(tracking_uri: str) -> str | None:
    """Where the MLflow UI is, when that is known."""
    return settings().mlflow_url or (tracking_uri if tracking_uri.startswith("http") else None)


def by_stage(candidates: Sequence[Any]) -> list[Any]:
    """The candidates' runs as people read them: the base first, then what was made from it."""
    stages = ("base", "expert", "merge", "compressed")
    ranks = {stage: rank for rank, stage in enumerate(stages)}
    return sorted(candidates, key=lambda run: ranks.get(run.data.params.get(STAGE_PARAM, ""), len(stages)))


def compare_page(base: str, experiment: str, run_ids: Sequence[str]) -> str:
    """MLflow's compare page of some runs."""
    runs, experiments = (quote(json.dumps(value)) for value in (list(run_ids), [experiment]))
    return f"{base}/#/compare-runs?runs={runs}&experiments={experiments}"


@lru_cache(maxsize=8)
def client_for(tracking_uri: str) -> MlflowClient:
    """One client a store and process. A fresh SQLite file is migrated by one process at a time."""
    if tracking_uri.startswith("sqlite:///"):
        database = Path(tracking_uri.removeprefix("sqlite:///"))
        database.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(database.with_suffix(".lock")):
            client = MlflowClient(tracking_uri)
            client.search_experiments(max_results=1)
            return client
    return MlflowClient(tracking_uri)


def experiment_id(client: MlflowClient, name: str) -> str:
    """The experiment's id, created when it is not there (a race between two flows is settled)."""
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name, artifact_location=settings().artifact_root)
        except MlflowException:
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return found.experiment_id


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted names, each value cut to what MLflow keeps."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = str(value)[:PARAM_LIMIT]
    return flat


def process_tags() -> dict[str, str]:
    """Who writes this run: lets a later run tell a dead writer from a busy one."""
    process = psutil.Process()
    return {
        "seedloom.host": socket.gethostname(),
        "seedloom.pid": str(process.pid),
        "seedloom.pid_started": f"{process.create_time():.2f}",
    }


@lru_cache(maxsize=1)
def git_tags() -> dict[str, str]:
    """The commit of the working folder, marked `-dirty` when tracked files differ; none outside git."""

    def git(*arguments: str) -> str | None:
        try:
            result = subprocess.run(
                ["git", *arguments], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return result.stdout.strip()

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {}
    return {"git.commit": commit + ("-dirty" if git("status", "--porcelain", "-uno") else "")}


def log_params(ctx: RunContext, run_id: str, config: BaseModel | Mapping[str, Any]) -> None:
    values = config.model_dump(mode="json") if isinstance(config, BaseModel) else config
    params = [Param(name, value) for name, value in flatten(values).items()]
    for start in range(0, len(params), 100):
        ctx.client.log_batch(run_id, params=params[start : start + 100])


def log_metrics(ctx: RunContext, run_id: str, values: Mapping[str, float], step: int = 0) -> None:
    """Write one value a name in one request."""
    now = int(time.time() * 1000)
    metrics = [Metric(name, float(value), now, step) for name, value in values.items()]
    for start in range(0, len(metrics), 1000):
        ctx.client.log_batch(run_id, metrics=metrics[start : start + 1000])


def log_trace(ctx: RunContext, run_id: str, rows: Sequence[Mapping[str, float]]) -> None:
    """Write a training curve: each row has `step` and any number of named values."""
    now = int(time.time() * 1000)
    metrics = [
        Metric(name, float(value), now, int(row["step"]))
        for row in rows
        for name, value in row.items()
        if name != "step" and value is not None
    ]
    for start in range(0, len(metrics), 1000):
        ctx.client.log_batch(run_id, metrics=metrics[start : start + 1000])


def log_input(ctx: RunContext, run_id: str, name: str, reference: Reference, context: str) -> None:
    """Record a data set or model that the run read, by digest."""
    dataset = Dataset(
        name=name,
        digest=reference.digest[:36],
        source_type="local",
        source=reference.path.name,
    )
    ctx.client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", context)])])


def candidate_run(ctx: RunContext, name: str, tags: Mapping[str, str] | None = None) -> str:
    """The child run of a candidate, created at its first mention.

    The same name in the same flow run is the same MLflow run, so that training and evaluation of one
    candidate meet on one page.
    """
    with _candidate_lock:
        if "'" in name or '"' in name:
            # MLflow's filters have no way to write a quotation mark.
            found = [run for run in children(ctx) if run.data.tags.get(CANDIDATE_TAG) == name]
        else:
            found = ctx.client.search_runs(
                [ctx.experiment_id],
                f"tags.`{PARENT_TAG}` = '{ctx.parent_run_id}' and tags.`{CANDIDATE_TAG}` = '{name}'",
                max_results=1,
            )
        if found:
            return found[0].info.run_id
        run = ctx.client.create_run(
            ctx.experiment_id,
            run_name=name,
            tags={PARENT_TAG: ctx.parent_run_id, CANDIDATE_TAG: name, **process_tags(), **(tags or {})},
        )
        return run.info.run_id


def set_tags(ctx: RunContext, run_id: str, tags: Mapping[str, str]) -> None:
    ctx.client.log_batch(run_id, tags=[RunTag(name, str(value)) for name, value in tags.items()])


@contextmanager
def system_metrics(ctx: RunContext, run_id: str) -> Iterator[None]:
    """Processor, memory and GPU load of a training, sampled into its run."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor = SystemMetricsMonitor(run_id, sampling_interval=5, tracking_uri=ctx.tracking_uri)
    monitor.start()
    try:
        yield
    finally:
        monitor.finish()


@contextmanager
def flow_run(flow: str, config: BaseModel, flow_run_id: str | None = None) -> Iterator[RunContext]:
    """Open the parent run of a flow and close it, and its children, with the flow's fate."""
    current = settings()
    client = client_for(current.tracking_uri)
    experiment = experiment_id(client, current.experiment)
    close_dead_runs(client, experiment)
    tags = {"seedloom.flow": flow, **process_tags(), **git_tags(), **dvc_tags()}
    if flow_run_id:
        tags["prefect.flow_run_id"] = flow_run_id
    if api := os.environ.get("PREFECT_API_URL"):
        tags["prefect.ui"] = f"{api.removesuffix('/api')}/v2/runs/flow-run/{flow_run_id}"
    run = client.create_run(experiment, run_name=flow, tags=tags)
    ctx = RunContext(
        tracking_uri=current.tracking_uri,
        experiment_id=experiment,
        parent_run_id=run.info.run_id,
        flow=flow,
        flow_run_id=flow_run_id,
    )
    log_params(ctx, ctx.parent_run_id, config)
    status = "FAILED"
    try:
        yield ctx
        status = "FINISHED"
    except Exception:
        raise
    except BaseException:  # Ctrl-C, or Prefect's signal that the run is cancelled
        status = "KILLED"
        raise
    finally:
        for child in children(ctx):
            if child.info.status == "RUNNING":
                client.set_terminated(child.info.run_id, status)
        client.set_terminated(ctx.parent_run_id, status)


def children(ctx: RunContext) -> list[Any]:
    """The child runs of a flow run, oldest first."""
    return list(
        ctx.client.search_runs(
            [ctx.experiment_id],
            f"tags.`{PARENT_TAG}` = '{ctx.parent_run_id}'",
            max_results=1000,
            order_by=["attributes.start_time ASC"],
        )
    )


def dead_runs(client: MlflowClient, experiment: str) -> list[Any]:
    """Open runs whose writer on this machine was killed."""
    host = socket.gethostname()
    return [
        run
        for run in client.search_runs([experiment], "attributes.status = 'RUNNING'", max_results=1000)
        if run.data.tags.get("seedloom.host") == host and not _alive(run.data.tags)
    ]


def close_dead_runs(client: MlflowClient, experiment: str) -> list[str]:
    """Mark runs whose writer was killed on this machine as KILLED; returns their ids."""
    dead = [run.info.run_id for run in dead_runs(client, experiment)]
    for run_id in dead:
        client.set_terminated(run_id, "KILLED")
    return dead


def _alive(tags: Mapping[str, str]) -> bool:
    try:
        started = psutil.Process(int(tags["seedloom.pid"])).create_time()
    except (psutil.NoSuchProcess, KeyError, ValueError):
        return False
    return abs(started - float(tags["seedloom.pid_started"])) < 1.0
