"""Settings of the flow `littlebit2`."""

from pydantic import Field

from tasks.report.config import StudyReportSettings
from tasks.study.littlebit2_config import LittleBit2Study


class LittleBit2Config(LittleBit2Study):
    """Models below one bit per weight: the paper's claims against its baselines."""

    report: StudyReportSettings = Field(
        default=StudyReportSettings(), description="Where the results go", json_schema_extra={"position": 90}
    )
