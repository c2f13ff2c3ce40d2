"""Settings of the flow `pruning_representations`."""

from pydantic import Field

from tasks.report.config import StudyReportSettings
from tasks.study.pruning_representations_config import PruningRepresentationsStudy


class PruningRepresentationsConfig(PruningRepresentationsStudy):
    """When pruning works, and for which tasks: the paper's claims on a real model, or the verdict on your own."""

    report: StudyReportSettings = Field(
        default=StudyReportSettings(), description="Where the results go", json_schema_extra={"position": 90}
    )
