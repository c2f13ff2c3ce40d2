"""Settings of the flow `littlebit2_model`."""

from pydantic import Field

from tasks.report.config import StudyReportSettings
from tasks.study.littlebit2_config import LittleBit2ModelStudy


class LittleBit2ModelConfig(LittleBit2ModelStudy):
    """A model below one bit per weight: compressed, distilled and scored beside its peers."""

    report: StudyReportSettings = Field(
        default=StudyReportSettings(), description="Where the results go", json_schema_extra={"position": 90}
    )
