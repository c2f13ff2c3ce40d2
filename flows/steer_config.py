"""Settings of the flow `steer`."""

from pydantic import Field

from flows.steps_config import LAST, path
from tasks.report.config import StudyReportSettings
from tasks.steer.config import SteerSettings


class SteerConfig(SteerSettings):
    """Fit steering of a model's reasoning on questions with answers, and compare it on other questions."""

    model: str = path("prepared/model", "Folder of the model, as the prepare or merge flow writes it", 0)
    output: str = path("steered", "Folder to write: the steering, to lie beside the model", LAST)
    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": LAST + 1}
    )
