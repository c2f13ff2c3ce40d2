"""The finetune step as a flow of its own."""

from pathlib import Path

from prefect import flow

from flows.pipeline import open_run
from flows.stages import existing, train_experts
from flows.steps_config import FinetuneConfig
from flows.task_runner import task_runner
from tasks.candidates import save_candidates
from tasks.output_folder import check_output
from tasks.report.publish import Report, publish, report_folder
from tasks.report.summaries import candidates_table


def check(config: FinetuneConfig) -> None:
    """Refuse missing inputs and an output folder that holds other files."""
    existing("model", config.model)
    existing("tasks", config.tasks)
    check_output(Path(config.output), [Path(config.model), Path(config.tasks)])


@flow(name="finetune", description="Train one expert a task, stopped for merging.", task_runner=task_runner())
def finetune(config: FinetuneConfig = FinetuneConfig()) -> Report:
    check(config)
    with open_run("finetune", config) as ctx:
        base, tasks = existing("model", config.model), existing("tasks", config.tasks)
        experts = train_experts(ctx, config, base, tasks)
        output = save_candidates(experts, Path(config.output))
        shown, metrics = candidates_table(experts)
        return publish(
            ctx,
            "Experts",
            report_folder(ctx, ""),
            metrics,
            shown,
            {},
            {},
            [],
            notes=f"Written to `{output}`.",
        )
