"""Settings of the single steps: the same groups as in the lifecycle, with files in and files out."""

from pydantic import Field

from tasks.compress.config import CompressSettings
from tasks.evaluate.config import EvaluateSettings
from tasks.merge.config import MergeSettings
from tasks.prepare.config import PrepareSettings
from tasks.report.config import ReportSettings
from tasks.train.config import FinetuneSettings

# Forms send an emptied text field as the default, so "nothing" needs a word of its own.
NONE = "none"


class PrepareConfig(PrepareSettings):
    """Store a model as safetensors, build task sets and held-out text."""

    output: str = Field(
        "prepared",
        min_length=1,
        description="Folder to write: model, tasks, text",
        json_schema_extra={"position": 90},
    )


class FinetuneConfig(FinetuneSettings):
    """Train one expert a task from a base model."""

    model: str = Field(
        "prepared/model",
        min_length=1,
        description="Folder of the base model",
        json_schema_extra={"position": 0},
    )
    tasks: str = Field(
        "prepared/tasks",
        min_length=1,
        description="Folder of task sets, as the prepare flow writes it",
        json_schema_extra={"position": 1},
    )
    output: str = Field(
        "experts",
        min_length=1,
        description="Folder to write: one expert a task",
        json_schema_extra={"position": 90},
    )


class MergeConfig(MergeSettings):
    """Merge experts of one base model."""

    model: str = Field(
        "prepared/model",
        min_length=1,
        description="Folder of the base model",
        json_schema_extra={"position": 0},
    )
    experts: tuple[str, ...] = Field(
        ("experts",),
        min_length=1,
        description="Experts: folders of adapters or full models, what the finetune flow wrote, or hub ids",
        json_schema_extra={"position": 1},
    )
    tasks: str = Field(
        "prepared/tasks",
        min_length=1,
        description="Folder of task sets; their select parts choose the coefficients",
        json_schema_extra={"position": 2},
    )
    output: str = Field(
        "merged",
        min_length=1,
        description="Folder to write: one model a method",
        json_schema_extra={"position": 90},
    )


class CompressConfig(CompressSettings):
    """Compress a model by each recipe."""

    model: str = Field(
        "merged",
        min_length=1,
        description="Folder of the model; of several merges, the one with the best select score",
        json_schema_extra={"position": 0},
    )
    text: str = Field(
        "prepared/text/calibration",
        min_length=1,
        description="Folder of calibration text, as the prepare flow writes it",
        json_schema_extra={"position": 1},
    )
    output: str = Field(
        "compressed",
        min_length=1,
        description="Folder to write: one model a recipe",
        json_schema_extra={"position": 90},
    )


class EvaluateConfig(EvaluateSettings):
    """Score models side by side."""

    models: tuple[str, ...] = Field(
        ("prepared/model", "experts", "merged", "compressed"),
        min_length=1,
        description="Folders of models, adapters, or what the other flows wrote; or hub ids",
        json_schema_extra={"position": 0},
    )
    base: str = Field(
        "prepared/model",
        min_length=1,
        description="Folder of the base model that adapters sit on; 'none' when there is none",
        json_schema_extra={"position": 1},
    )
    tasks: str = Field(
        "prepared/tasks", min_length=1, description="Folder of task sets", json_schema_extra={"position": 2}
    )
    text: str = Field(
        "prepared/text",
        min_length=1,
        description="Folder of held-out text; 'none' leaves perplexity out",
        json_schema_extra={"position": 3},
    )
    report: ReportSettings = Field(
        ReportSettings(), description="Where the results go", json_schema_extra={"position": 91}
    )
