"""Settings of the flow `potential`."""

from pydantic import Field

from flows.steps_config import LAST, path
from tasks.atoms.config import AtomsSettings, PotentialSettings
from tasks.report.config import StudyReportSettings


class PotentialFlowConfig(PotentialSettings):
    """Train an interatomic potential on your structures, and try it in dynamics."""

    atoms: AtomsSettings = Field(
        AtomsSettings(), description="The structures", json_schema_extra={"position": 0}
    )
    output: str = path("potential", "Folder to write: the model, for TaceCalculator", LAST)
    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": LAST + 1}
    )
