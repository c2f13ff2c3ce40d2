"""Run a flow from the command line: on a running Prefect server when there is one, else on a temporary one."""

import contextlib
import logging
import os
import sys
import urllib.request
from typing import Any

import psutil
import typer
from rich.console import Console
from rich.markdown import Markdown

from flows.interrupts import insist
from flows.registry import FlowEntry
from flows.servers.state import running
from flows.servers.tracking import check_tracking
from methods.common.errors import ConfigError
from tasks.config import Config
from tasks.settings import settings


def find_server() -> str | None:
    """The API address of the running server: the user's, else that of a `seedloom up` on this work folder."""
    given = os.environ.get("PREFECT_API_URL")
    up = running(settings().work)
    address = given or (f"{up.prefect}/api" if up else None)
    if address is None:
        return None
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=2):
            return address
    except OSError:
        if given:
            raise OSError(
                f"PREFECT_API_URL={given} does not answer; start that server (`seedloom up`) or unset the variable"
            ) from None
        return None
    except ValueError as error:
        raise ConfigError(
            f"PREFECT_API_URL={given} is no address ({error}); give one such as http://127.0.0.1:4200/api, or unset it"
        ) from None


def end_orphan_servers() -> None:
    """End the temporary servers that runs on this work folder left when they were killed."""
    home = os.environ["PREFECT_HOME"]
    # In a container process 1 may itself be a run, whose server is no orphan.
    with contextlib.suppress(psutil.Error):
        if any("seedloom" in part or part == "flows.cli" for part in psutil.Process(1).cmdline()):
            return
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.ppid() != 1 or "prefect.server.api.server:create_app" not in process.cmdline():
                continue
            given = process.environ()
            if given.get("PREFECT__SERVER_EPHEMERAL") == "1" and given.get("PREFECT_HOME") == home:
                process.terminate()


def run_flow(entry: FlowEntry, config: Config) -> Any:
    """Run to the end and print the report; a flow's failure is raised."""
    check_tracking(settings().mlflow_tracking_uri)
    server = find_server()
    if server:
        os.environ["PREFECT_API_URL"] = server
    else:
        end_orphan_servers()
    if up := running(settings().work):
        os.environ.setdefault("SEEDLOOM_MLFLOW_URL", up.mlflow)
        settings.cache_clear()
    show_progress()
    insist()
    flow = entry.load_flow()
    quiet_runs()
    report = flow(config)
    print_report(report)
    return report


def quiet_runs() -> None:
    """What fails in a run is raised and said once; Prefect's own lines about it go to the server alone."""
    from prefect.logging.configuration import setup_logging

    setup_logging()
    for handler in logging.getLogger().handlers:
        handler.addFilter(
            lambda record: not record.name.startswith(("prefect.flow_runs", "prefect.task_runs"))
        )


def show_progress() -> None:
    """One line a step on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("seedloom")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False  # Prefect's console would say it again


def print_report(report: Any) -> None:
    """The table, the verdicts and where to look."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(Markdown((report.folder / "report.md").read_text()))
    if report.best:
        typer.echo(f"best candidate: {report.best}")
    typer.echo(f"files:          {report.folder}")
    typer.echo(
        f"MLflow run:     {report.run_url or report.run_id + '  (`seedloom up` shows it in a browser)'}"
    )
