"""Serves every flow of the registry as a deployment: `python -m flows.servers.deployments READY_FILE AT_ONCE`.

The flows, with the libraries that they import, are loaded in a process that registers them and ends; the one that
stays only starts flow runs, each in a process of its own.
"""

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any
from uuid import UUID

from flows.registry import FLOWS, FlowEntry
from tasks.settings import configure_environment

SECONDS_TO_WAIT = 900
REGISTER = "register"


def describe(entry: FlowEntry) -> str:
    """The text above the run form."""
    kind = f"The study of the paper in `seeds/{entry.paper}`" if entry.paper else "A step of the main job"
    kind = "The main job" if entry.name == "lifecycle" else kind
    return (
        f"{entry.summary[0].upper()}{entry.summary[1:]}.\n\n"
        f"{kind}. Press **Run**, then **Custom run**, and change what you like: every field has a default, and "
        "relative paths start in the folder where `seedloom up` was started. When the run has ended, its "
        f"**Artifacts** tab holds the report and the link to MLflow. On the command line: "
        f"`seedloom run {entry.name} --help`."
    )


def tags(entry: FlowEntry) -> list[str]:
    return ["seedloom", "study" if entry.paper else "lifecycle" if entry.name == "lifecycle" else "step"]


def deployment(entry: FlowEntry) -> Any:
    """The flow as a deployment of the same name, whose runs wait for each other."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.deployments.runner import EntrypointType

    return entry.load_flow().to_deployment(
        name=entry.name,
        description=describe(entry),
        tags=tags(entry),
        concurrency_limit=ConcurrencyLimitConfig(
            limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE
        ),
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def wait_for_server(api: str) -> None:
    end = time.monotonic() + SECONDS_TO_WAIT
    while True:
        try:
            with urllib.request.urlopen(f"{api}/health", timeout=5):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.3)


async def close_dead_runs(deployment_ids: list[Any]) -> int:
    """Only this process starts runs of its deployments: what is still running was cut off with the former one."""
    from prefect import get_client
    from prefect.client.schemas.filters import (
        DeploymentFilter,
        DeploymentFilterId,
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import State, StateType
    from prefect.states import Crashed

    unfinished = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
    async with get_client() as client:
        runs = await client.read_flow_runs(
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=unfinished))
            ),
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=deployment_ids)),
        )
        state: State[Any] = Crashed(
            message="`seedloom up` ended while this run was going on; run it again, it resumes"
        )
        for run in runs:
            await client.set_flow_run_state(run.id, state, force=True)
    return len(runs)


def register(listing: Path) -> None:
    """Make the deployments on the server and write their ids: {"served": {name: id}, "left_out": {name: reason}}."""
    from prefect.settings import get_current_settings

    deployments, left_out = [], {}
    for entry in FLOWS:
        # A flow whose extra packages are missing must not take the others with it.
        try:
            deployments.append(deployment(entry))
        except Exception as error:
            left_out[entry.name] = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"left out: {entry.name}: {left_out[entry.name]}", flush=True)
    wait_for_server(str(get_current_settings().api.url))
    ids = [item.apply() for item in deployments]
    closed = asyncio.run(close_dead_runs(ids))
    if closed:
        print(f"{closed} run(s) of the former `seedloom up` marked as crashed", flush=True)
    served = {item.name: str(id_) for item, id_ in zip(deployments, ids, strict=True)}
    listing.write_text(json.dumps({"served": served, "left_out": left_out}))


def serve(listing: Path, ready_file: Path, at_once: int) -> None:
    """Register the flows, say that they are ready, and start their runs until SIGTERM."""
    registering = subprocess.Popen(
        [sys.executable, "-m", "flows.servers.deployments", REGISTER, str(listing)]
    )
    from prefect.deployments.runner import RunnerDeployment
    from prefect.runner import Runner

    class Registered(RunnerDeployment):
        """A deployment that the server already has."""

        known: UUID

        async def aapply(self, *_: Any, **__: Any) -> UUID:
            return self.known

    if status := registering.wait():
        sys.exit(status)
    runner = Runner(name="seedloom", limit=at_once)
    for name, known in json.loads(listing.read_text())["served"].items():
        runner.add_deployment(Registered(name=name, flow_name=name, known=UUID(known)))
    listing.replace(ready_file)
    asyncio.run(runner.start())


def main(arguments: list[str]) -> None:
    configure_environment()
    if arguments[0] == REGISTER:
        register(Path(arguments[1]))
    else:
        ready_file = Path(arguments[0])
        serve(ready_file.with_suffix(".partial"), ready_file, int(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
