"""Settings of the lifecycle: one group a step, the same groups that the single steps use."""

from pydantic import Field

from tasks.compress.config import CompressSettings
from tasks.config import Config
from tasks.evaluate.config import EvaluateSettings
from tasks.merge.config import MergeSettings
from tasks.prepare.config import PrepareSettings
from tasks.report.config import ReportSettings
from tasks.train.config import FinetuneSettings


class LifecycleConfig(Config):
    """Prepare, fine-tune, merge, compress and evaluate one model. The default runs on the embedded example."""

    prepare: PrepareSettings = Field(
        PrepareSettings(),
        description="The model, the task sets and the held-out text",
        json_schema_extra={"position": 0},
    )
    finetune: FinetuneSettings = Field(
        FinetuneSettings(stoppings=("merge_aware", "own_optimum")),
        description="How experts are trained and stopped",
        json_schema_extra={"position": 1},
    )
    merge: MergeSettings = Field(
        MergeSettings(), description="How experts are merged", json_schema_extra={"position": 2}
    )
    compress: CompressSettings = Field(
        CompressSettings(), description="How the best merge is compressed", json_schema_extra={"position": 3}
    )
    evaluate: EvaluateSettings = Field(
        EvaluateSettings(), description="How every candidate is scored", json_schema_extra={"position": 4}
    )
    report: ReportSettings = Field(
        ReportSettings(), description="Where the results go", json_schema_extra={"position": 5}
    )
