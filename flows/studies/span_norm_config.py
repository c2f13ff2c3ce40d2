"""Settings of the flow `span_norm`."""

from pydantic import Field

from tasks.report.config import StudyReportSettings
from tasks.study.span_norm_config import SpanNormStudy


class SpanNormConfig(SpanNormStudy):
    """Where the norms stand in a deep Transformer: SpanNorm's claims against its baselines."""

    report: StudyReportSettings = Field(
        StudyReportSettings(), description="Where the results go", json_schema_extra={"position": 90}
    )
