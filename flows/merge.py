"""The merge step as a flow of its own."""

from pathlib import Path

from prefect import flow

from flows.pipeline import open_run
from flows.stages import GIVEN, existing, given_candidates, merge_experts
from flows.steps_config import MergeConfig
from flows.task_runner import task_runner
from tasks.candidates import Candidate, best_on_select, save_candidates
from tasks.output_folder import check_output
from tasks.report.publish import Report, publish, report_folder
from tasks.report.summaries import candidates_table, noted


def check(config: MergeConfig) -> None:
    """Refuse missing inputs and an output folder that holds other files."""
    existing("model", config.model)
    existing("tasks", config.tasks)
    given_candidates(config.experts)
    check_output(Path(config.output), [Path(p) for p in (config.model, config.tasks, *config.experts)])


@flow(
    name="merge",
    description="Merge experts of one base, coefficients chosen on held-out examples.",
    task_runner=task_runner(),
)
def merge(config: MergeConfig = MergeConfig()) -> Report:
    check(config)
    with open_run("merge", config) as ctx:
        base, tasks = existing("model", config.model), existing("tasks", config.tasks)
        merged = merge_experts(ctx, config, base, given_candidates(config.experts), tasks)
        output = save_candidates(merged, Path(config.output))
        shown, metrics = candidates_table(merged)
        best = best_on_select(merged, Candidate(name="base", stage="base", method=GIVEN, reference=base))
        chosen = (
            "No merge beats the base" if best is None or best.stage == "base" else f"Best: `{best.name}`,"
        )
        return publish(
            ctx,
            "Merges",
            report_folder(ctx, ""),
            metrics,
            shown,
            {},
            {},
            [],
            best=best.name if best else "",
            notes=f"{chosen} on the select parts. Written to `{output}`.\n\n{noted(merged)}".strip(),
        )
