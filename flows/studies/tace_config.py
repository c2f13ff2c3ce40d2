"""Settings of the flow `tace`."""

from pydantic import Field

from tasks.report.config import StudyReportSettings
from tasks.study.tace_config import TaceStudy


class TaceConfig(TaceStudy):
    """Interatomic potentials on Cartesian and on spherical tensors: the paper's claims with all else fixed."""

    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": 90}
    )
