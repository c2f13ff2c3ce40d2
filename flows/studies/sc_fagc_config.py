"""Settings of the flow `sc_fagc`."""

from pydantic import Field

from tasks.report.config import StudyReportSettings
from tasks.study.sc_fagc_config import ScFagcStudy


class ScFagcConfig(ScFagcStudy):
    """Clusters whose sizes keep within bounds: SC-FAGC's claims beside other clusterings."""

    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": 90}
    )
