"""Settings of the flow `dynasteer`."""

from pydantic import Field

from tasks.report.config import StudyReportSettings
from tasks.study.dynasteer_config import DynaSteerStudy


class DynaSteerConfig(DynaSteerStudy):
    """The paper's claims: a planted truth, a small reasoner that is trained here, and a real model."""

    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": 90}
    )
