"""`seedloom compare`: the candidates of flow runs in the terminal, as in their reports, and their page in MLflow."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from rich.console import Console
from rich.table import Table

from flows.servers.state import running
from methods.common.errors import ConfigError
from tasks.settings import settings
from tasks.tracking import PARENT_TAG, by_stage, client_for, compare_page, ui_address

RECENT = 5
COLUMNS = 8
SPLITS = ("test/", "select/", "stop/")


def compare(names: Sequence[str]) -> None:
    """Print one table of the candidates of the named flow runs, or of the last one.

    Raises:
        ConfigError: there is no such run, or none has candidates.
    """
    current = settings()
    nothing = ConfigError(f"{current.work} has no flow runs yet; start one with `seedloom run lifecycle`")
    if current.mlflow_tracking_uri is None and not (current.work / "mlflow.db").exists():
        raise nothing
    client = client_for(current.tracking_uri)
    experiment = client.get_experiment_by_name(current.experiment)
    parents = flow_runs(client, experiment.experiment_id) if experiment else []
    if not parents:
        raise nothing
    chosen = [find(name, parents) for name in names] or [last_with_candidates(client, parents)]
    candidates = {run.info.run_id: children(client, run) for run in chosen}
    rows = [
        {**({"run": title(run)} if len(chosen) > 1 else {}), **row}
        for run in chosen
        for row in table_of(client, run, candidates[run.info.run_id])
    ]
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    for run in chosen:
        console.print(f"{title(run)}  {run.info.status.lower()}  {run.info.run_id}")
    console.print(render(rows))
    found = [child.info.run_id for run in chosen for child in candidates[run.info.run_id]]
    up = running(current.work)
    base = up.mlflow if up else ui_address(current.tracking_uri)
    if base and found:
        console.print(
            f"side by side: {compare_page(base, chosen[0].info.experiment_id, found)}", soft_wrap=True
        )
    elif found:
        console.print("`seedloom up`, then this command again, gives the page that shows them side by side")


def flow_runs(client: MlflowClient, experiment: str) -> list[Run]:
    """The parent runs, newest first."""
    found = client.search_runs([experiment], "", max_results=5000, order_by=["attributes.start_time DESC"])
    return [run for run in found if PARENT_TAG not in run.data.tags]


def children(client: MlflowClient, parent: Run) -> list[Run]:
    """A flow run's candidates, the base first."""
    return by_stage(
        client.search_runs(
            [parent.info.experiment_id],
            f"tags.`{PARENT_TAG}` = '{parent.info.run_id}'",
            max_results=1000,
            order_by=["attributes.start_time ASC"],
        )
    )


def title(run: Run) -> str:
    return f"{run.info.run_name} {run.info.run_id[:8]}"


def find(name: str, parents: Sequence[Run]) -> Run:
    """The flow run of that id, start of an id, or flow (its newest run).

    Raises:
        ConfigError: naming the newest runs, when none or several fit.
    """
    fits = [run for run in parents if run.info.run_id.startswith(name)] if len(name) >= 4 else []
    if len(fits) > 1:
        raise ConfigError(f"run {name!r} is the start of {len(fits)} ids; give more of it")
    by_flow = [run for run in parents if run.data.tags.get("seedloom.flow", run.info.run_name) == name]
    if fits or by_flow:
        return (fits or by_flow)[0]
    recent = ", ".join(title(run) for run in parents[:RECENT])
    raise ConfigError(f"run {name!r} is not known; the newest are {recent}")


def last_with_candidates(client: MlflowClient, parents: Sequence[Run]) -> Run:
    """The newest flow run that compares something."""
    for run in parents[:50]:
        if len(children(client, run)) > 1:
            return run
    raise ConfigError("no flow run has candidates to compare yet; start one with `seedloom run lifecycle`")


def table_of(client: MlflowClient, parent: Run, candidates: Sequence[Run]) -> list[dict[str, str]]:
    """The table of the run's report; while it is not written, the candidates' own scores."""
    best = parent.data.tags.get("seedloom.best", "")
    rows = report_table(client, parent) or [
        {"candidate": run.info.run_name or run.info.run_id, **scores(run, main_scores(candidates))}
        for run in candidates
    ]
    for row in rows:
        name = next(iter(row.values()), "")
        plain = name.strip("*")
        if plain != name or plain == best:
            row[next(iter(row))] = f"[bold green]{plain} (best)[/]"
    return rows


def report_table(client: MlflowClient, parent: Run) -> list[dict[str, str]]:
    """What the report logged as `table.json`; empty when there is none."""
    try:
        found = json.loads(Path(client.download_artifacts(parent.info.run_id, "table.json")).read_text())
    except (MlflowException, OSError, ValueError):
        return []
    return [
        {str(column): str(cell) for column, cell in zip(found["columns"], row, strict=True)}
        for row in found["data"]
    ]


def main_scores(candidates: Sequence[Run]) -> list[str]:
    """The metrics worth a column: means over tasks first, then tasks; no errors of the mean and no times."""
    names = sorted({name for run in candidates for name in run.data.metrics})
    names = [n for n in names if not re.search(r"(_stderr|_low|_high)$|^(time|train|stop|system)/", n)]
    return sorted(names, key=lambda name: ("/mean/" not in name, not name.startswith(SPLITS)))[:COLUMNS]


def scores(run: Run, names: Sequence[str]) -> dict[str, str]:
    values: dict[str, Any] = run.data.metrics
    return {name: f"{values[name]:.4g}" if name in values else "-" for name in names}


def render(rows: Sequence[dict[str, str]]) -> Table:
    """Rows that may have different columns as one table."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or column in ("run", "candidate") else "right")
    for row in rows:
        table.add_row(*(row.get(column, "-") for column in columns))
    return table
