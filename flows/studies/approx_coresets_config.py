"""Settings of the flow `approx_coresets`."""

from pydantic import Field

from tasks.report.config import StudyReportSettings
from tasks.study.approx_coresets_config import ApproxCoresetsStudy


class ApproxCoresetsConfig(ApproxCoresetsStudy):
    """Clustering a sample and keeping the guarantee: the paper's claims against its baselines."""

    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": 90}
    )
