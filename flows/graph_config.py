"""Settings of the flow `graph`."""

from pydantic import Field

from flows.steps_config import LAST, path
from tasks.graphs.config import GraphSettings, TrainGraphSettings
from tasks.report.config import StudyReportSettings


class GraphConfig(TrainGraphSettings):
    """Predict nodes, graphs or edges where the answer depends on what lies far away."""

    graphs: GraphSettings = Field(
        GraphSettings(), description="The graphs and the target", json_schema_extra={"position": 0}
    )
    output: str = path("graph-models", "Folder to write: a model and predictions.csv a method", LAST)
    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": LAST + 1}
    )
