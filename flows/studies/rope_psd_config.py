"""Settings of the flow `rope_psd`."""

from pydantic import Field

from tasks.report.config import StudyReportSettings
from tasks.study.rope_psd_config import RopePSDStudy


class RopePSDConfig(RopePSDStudy):
    """Long-context adaptation by self-distillation from moved positions: the paper's claims against its baselines."""

    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": 90}
    )
