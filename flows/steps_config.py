"""Settings of the single steps: the same groups as in the lifecycle, with files in and files out."""

from typing import Annotated, Any

from pydantic import Field

from tasks.compress.config import CompressSettings
from tasks.config import Distinct
from tasks.evaluate.config import EvaluateSettings
from tasks.merge.config import MergeSettings
from tasks.prepare.config import PrepareSettings
from tasks.report.config import ReportSettings
from tasks.train.config import FinetuneSettings

# Forms send an emptied text field as the default, so "nothing" needs a word of its own.
NONE = "none"
# Forms show fields by position: inputs first, the step's settings, the output.
LAST = 90


def path(default: str | tuple[str, ...], description: str, position: int) -> Any:
    """A field for files that a step reads or writes."""
    return Field(default, min_length=1, description=description, json_schema_extra={"position": position})


class PrepareConfig(PrepareSettings):
    """Store a model as safetensors, build task sets and held-out text."""

    output: str = path("prepared", "Folder to write: model, tasks, text", LAST)


class FinetuneConfig(FinetuneSettings):
    """Train one expert a task from a base model."""

    model: str = path("prepared/model", "Folder of the base model", 0)
    tasks: str = path("prepared/tasks", "Folder of task sets, as the prepare flow writes it", 1)
    output: str = path("experts", "Folder to write: one expert a task", LAST)


class MergeConfig(MergeSettings):
    """Merge experts of one base model."""

    model: str = path("prepared/model", "Folder of the base model", 0)
    experts: Annotated[tuple[str, ...], Distinct] = path(
        ("experts",),
        "Experts: folders of adapters or full models, what the finetune flow wrote, or hub ids",
        1,
    )
    tasks: str = path("prepared/tasks", "Folder of task sets; their select parts choose the coefficients", 2)
    output: str = path("merged", "Folder to write: one model a method", LAST)


class CompressConfig(CompressSettings):
    """Compress a model by each recipe."""

    model: str = path(
        "merged", "Folder of the model; of several merges, the one with the best select score", 0
    )
    text: str = path(
        "prepared/text/calibration", "Folder of calibration text, as the prepare flow writes it", 1
    )
    output: str = path("compressed", "Folder to write: one model a recipe", LAST)


class EvaluateConfig(EvaluateSettings):
    """Score models side by side."""

    models: Annotated[tuple[str, ...], Distinct] = path(
        ("prepared/model", "experts", "merged", "compressed"),
        "Folders of models, adapters, or what the other flows wrote; or hub ids",
        0,
    )
    base: str = path(
        "prepared/model", "Folder of the base model that adapters sit on; 'none' when there is none", 1
    )
    tasks: str = path("prepared/tasks", "Folder of task sets", 2)
    text: str = path("prepared/text", "Folder of held-out text; 'none' leaves perplexity out", 3)
    steering: str = path(
        NONE,
        "Folder that the steer flow wrote: the model it was fitted on also answers its test questions, plainly and "
        "steered; 'none' leaves this out",
        4,
    )
    report: ReportSettings = Field(
        ReportSettings(), description="Where the results go", json_schema_extra={"position": 91}
    )
