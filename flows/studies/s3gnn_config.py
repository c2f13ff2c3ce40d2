"""Settings of the flow `s3gnn`."""

from pydantic import Field

from tasks.report.config import StudyReportSettings
from tasks.study.s3gnn_config import S3GNNStudy


class S3GNNConfig(S3GNNStudy):
    """Graphs whose answers lie far away: S3GNN's claims beside other graph networks."""

    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": 90}
    )
