"""A person's own samples, clustered: features, each method's labels, the rows with their cluster, a comparison."""

import shutil
from pathlib import Path

from prefect import flow

from flows.cluster_config import ClusterConfig
from flows.pipeline import open_run
from flows.task_runner import start, task_runner
from tasks.cluster.features import check_features
from tasks.cluster.steps import assign, cluster_samples, prepare_features
from tasks.output_folder import check_output, write_output
from tasks.prepare.steps import source_fingerprint
from tasks.report.cluster import (
    Clustering,
    candidates,
    cluster_table,
    figures,
    log_methods,
    score_table,
    tables,
)
from tasks.report.publish import Report, markdown_table, publish, report_folder
from tasks.step import StepResult
from tasks.tracking import log_input


def check(config: ClusterConfig) -> None:
    """Refuse samples that are not there and an output folder that holds other files."""
    check_features(config.features)
    check_output(Path(config.output), [Path(config.features.source)])


@flow(
    name="cluster",
    description="Cluster a table, embeddings or images, with bounds on the clusters' sizes.",
    task_runner=task_runner(),
)
def cluster(config: ClusterConfig = ClusterConfig()) -> Report:
    check(config)
    with open_run("cluster", config) as ctx:
        source = {"settings": config.features, "fingerprint": source_fingerprint(config.features.source)}
        features = start(prepare_features, ctx, "features", source).result()
        log_input(ctx, ctx.parent_run_id, "samples", features.reference, "training")
        running = [
            start(
                cluster_samples,
                ctx,
                method.label,
                {"method": method, "features": features.reference, "seed": config.seed},
            )
            for method in config.methods
        ]
        labelled = [step.result() for step in running]
        assigned = [
            start(
                assign,
                ctx,
                f"rows {method.label}",
                {**source, "labels": found.reference, "column": config.column, "shards": config.shards},
            ).result()
            for method, found in zip(config.methods, labelled, strict=True)
        ]
        names = [method.label for method in config.methods]
        output = write_output(Path(config.output), lambda place: _fill(place, names, labelled, assigned))
        found = candidates(labelled)
        log_methods(ctx, found)
        shown, metrics = cluster_table(found)
        return publish(
            ctx,
            "Clusters",
            report_folder(ctx, config.report.folder),
            metrics,
            shown,
            tables(found, features.path),
            figures(found, features.path),
            [],
            notes=_notes(found, output),
        )


def _notes(found: list[Clustering], output: Path) -> str:
    scores = score_table(found)
    against = [] if scores.empty else ["## Against the true classes", markdown_table(scores)]
    doubts = "\n".join(f"- {line}" for one in found for line in one.facts.get("notes", []))
    return "\n\n".join([*against, doubts, f"Written to `{output}`."])


def _fill(place: Path, names: list[str], labelled: list[StepResult], assigned: list[StepResult]) -> None:
    for name, *parts in zip(names, labelled, assigned, strict=True):
        for part in parts:
            shutil.copytree(part.path, place / name, dirs_exist_ok=True)
