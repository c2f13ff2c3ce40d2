"""Settings of the flow `cluster`."""

from pydantic import Field

from flows.steps_config import LAST, path
from tasks.cluster.config import ClusterSettings
from tasks.report.config import StudyReportSettings


class ClusterConfig(ClusterSettings):
    """Cluster a table, embeddings or images, with bounds on the clusters' sizes."""

    column: str = Field(
        "cluster",
        min_length=1,
        description="Name of the column with the cluster in assigned.parquet",
        json_schema_extra={"position": LAST - 2},
    )
    shards: bool = Field(
        False,
        description="Also write one Parquet file a cluster, to split or balance a training set by them",
        json_schema_extra={"position": LAST - 1},
    )
    output: str = path("clustered", "Folder to write: labels, sizes and rows, a folder a method", LAST)
    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": LAST + 1}
    )
