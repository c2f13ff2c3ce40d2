"""One report to every reader: files for DVC, artifacts for Prefect, the parent run in MLflow, and the terminal."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from tasks.config import Config
from tasks.output_folder import earlier_report, mark_report
from tasks.report.verdict import Verdict
from tasks.settings import settings
from tasks.tracking import RunContext, log_metrics, set_tags
from tasks.workspace import storage_errors


class Report(Config):
    """What a flow returns: where its results lie and what they say.

    Attributes:
        flow: name of the flow.
        folder: holds metrics.json, report.md, plots/*.csv and plots/*.png.
        best: name of the best candidate, if the flow compares any.
        verdicts: the claims that the run tested.
        run_id: the MLflow parent run.
        run_url: its page, when an MLflow server is known.
    """

    flow: str
    folder: Path
    best: str = ""
    verdicts: tuple[Verdict, ...] = ()
    run_id: str = ""
    run_url: str | None = None


def report_folder(ctx: RunContext, given: str) -> Path:
    """The user's folder, else one of this run."""
    return Path(given) if given else settings().work / "reports" / ctx.flow / ctx.parent_run_id


def write_files(
    folder: Path,
    metrics: Mapping[str, Any],
    tables: Mapping[str, pd.DataFrame],
    figures: Mapping[str, Figure],
    markdown: str,
) -> None:
    """metrics.json, report.md, plots/<name>.csv and plots/<name>.png; a killed run leaves the earlier report."""
    place = folder.expanduser().resolve()
    staging = place.with_name(f".{place.name}.partial")
    with storage_errors(place.parent):
        shutil.rmtree(staging, ignore_errors=True)
        (staging / "plots").mkdir(parents=True)
        (staging / "metrics.json").write_text(json.dumps(metrics, indent=1, sort_keys=True) + "\n")
        (staging / "report.md").write_text(markdown + "\n")
        for name, table in tables.items():
            table.to_csv(
                staging / "plots" / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n"
            )
        for name, figure in figures.items():
            figure.savefig(staging / "plots" / f"{name}.png", dpi=120, metadata={"Software": None})
        written = [path.relative_to(staging) for path in staging.rglob("*") if path.is_file()]
        # Files that others keep beside a report (a paper's card) stay.
        for name in set(earlier_report(place)) - {path.as_posix() for path in written}:
            (place / name).unlink(missing_ok=True)
        (place / "plots").mkdir(parents=True, exist_ok=True)
        for path in written:
            (staging / path).replace(place / path)
        mark_report(place, [path.as_posix() for path in written])
        shutil.rmtree(staging)


def markdown_table(table: pd.DataFrame) -> str:
    """A GitHub-style table; numbers are already text."""
    head = "| " + " | ".join(table.columns) + " |"
    rule = "|" + "|".join(" --- " for _ in table.columns) + "|"
    rows = ["| " + " | ".join(str(value) for value in row) + " |" for row in table.itertuples(index=False)]
    return "\n".join([head, rule, *rows])


def verdict_lines(verdicts: Sequence[Verdict]) -> str:
    return "\n".join(f"- **{v.word}**: {v.claim} ({v.measured})" for v in verdicts)


@task(
    name="report",
    task_run_name="report",
    timeout_seconds=600,
    tags={"report"},
    description="Publish tables, plots and verdicts.",
)
def publish(
    ctx: RunContext,
    title: str,
    folder: Path,
    metrics: Mapping[str, Any],
    shown: pd.DataFrame,
    tables: Mapping[str, pd.DataFrame],
    figures: Mapping[str, Figure],
    verdicts: Sequence[Verdict],
    best: str = "",
    notes: str = "",
) -> Report:
    """Write the report everywhere.

    Args:
        ctx: the flow's MLflow run.
        title: heading of the report.
        folder: where the files go.
        metrics: what metrics.json holds: the same numbers for the same inputs, never a time.
        shown: the table as people read it, cells already formatted.
        tables: data behind each plot, by name.
        figures: the plots, by the same names.
        verdicts: claims and whether they held.
        best: the best candidate, for flows that compare.
        notes: further markdown, e.g. times.
    """
    sections = [f"# {title}", markdown_table(shown), verdict_lines(verdicts), notes]
    links = [f"MLflow: [this run]({ctx.run_url})" if ctx.run_url else f"MLflow run: {ctx.parent_run_id}"]
    several = (
        ctx.compare_url is not None and ctx.compare_url != ctx.run_url
    )  # a flow may have made one candidate
    if several:
        links[0] += f", [its candidates side by side]({ctx.compare_url})"
    markdown = "\n\n".join(section for section in sections if section)
    write_files(folder, metrics, tables, figures, markdown)

    key = re.sub(r"[^a-z0-9]+", "-", ctx.flow.lower()).strip("-")
    create_markdown_artifact(key=f"{key}-report", markdown="\n\n".join([markdown, *links]), description=title)
    create_table_artifact(key=f"{key}-table", table=shown.to_dict("records"), description=title)
    if ctx.run_url:
        create_link_artifact(
            key=f"{key}-mlflow",
            link=ctx.run_url,
            link_text="This run in MLflow",
            description="Settings, scores, plots and the candidates' own runs in MLflow",
        )
    if several:
        create_link_artifact(
            key=f"{key}-compare",
            link=ctx.compare_url,
            link_text="Compare the candidates in MLflow",
            description="Every candidate side by side in MLflow",
        )

    client = ctx.client
    numbers = {
        name: value
        for name, value in _flat(metrics).items()
        # The candidates' own runs hold their scores; here they would be hundreds of columns.
        if isinstance(value, int | float) and not name.startswith("candidates/")
    }
    chosen = metrics.get("candidates", {}).get(best, {})
    for name, value in chosen.items():
        if (name.startswith(("text/", "size/")) or "/mean/" in name) and isinstance(value, int | float):
            numbers[f"best/{name}"] = value
    log_metrics(ctx, ctx.parent_run_id, numbers)
    client.log_text(ctx.parent_run_id, markdown, "report.md")
    client.log_dict(ctx.parent_run_id, dict(metrics), "metrics.json")
    client.log_table(ctx.parent_run_id, shown, "table.json")
    for name, figure in figures.items():
        client.log_figure(ctx.parent_run_id, figure, f"plots/{name}.png")
    set_tags(
        ctx,
        ctx.parent_run_id,
        {
            "mlflow.note.content": markdown[:5000],
            **({"seedloom.best": best} if best else {}),
            **{f"claim.{i}": f"{v.word}: {v.claim}" for i, v in enumerate(verdicts, 1)},
        },
    )
    return Report(
        flow=ctx.flow,
        folder=folder.resolve(),
        best=best,
        verdicts=tuple(verdicts),
        run_id=ctx.parent_run_id,
        run_url=ctx.run_url,
    )


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}/"))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
