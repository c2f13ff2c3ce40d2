"""Settings of the flow `coreset`."""

from pydantic import Field

from flows.steps_config import LAST, path
from tasks.cluster.coreset_config import StreamCoresetSettings
from tasks.report.config import StudyReportSettings


class CoresetConfig(StreamCoresetSettings):
    """Cluster files larger than memory through a small weighted part of their rows."""

    output: str = path("coreset", "Folder to write: coreset.npz, rows.csv, centres.npy, labels", LAST)
    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": LAST + 1}
    )
