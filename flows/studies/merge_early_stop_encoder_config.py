"""Settings of the flow `merge_early_stop_encoder`."""

from pydantic import Field

from tasks.report.config import StudyReportSettings
from tasks.study.merge_early_stop_encoder_config import EncoderBenchStudy


class MergeEarlyStopEncoderConfig(EncoderBenchStudy):
    """When to stop experts that will be merged, on a sentence encoder: text tasks, full fine-tuning and LoRA."""

    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": 90}
    )
