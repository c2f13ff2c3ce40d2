"""Settings of the flow `pmatic`."""

from pydantic import Field

from tasks.report.config import StudyReportSettings
from tasks.study.pmatic_config import PmaticStudy


class PmaticConfig(PmaticStudy):
    """Lossless compression that decodes on another machine: the paper's claims against its baselines."""

    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": 90}
    )
