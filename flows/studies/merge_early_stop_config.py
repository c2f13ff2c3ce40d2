"""Settings of the flow `merge_early_stop`."""

from pydantic import Field

from tasks.report.config import StudyReportSettings
from tasks.study.merge_early_stop_config import MergeEarlyStopStudy


class MergeEarlyStopConfig(MergeEarlyStopStudy):
    """When to stop experts that will be merged: the paper's claims against its baselines."""

    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": 90}
    )
