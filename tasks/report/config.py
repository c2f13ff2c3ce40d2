"""Settings of the report step."""

from pydantic import Field

from tasks.config import Config


class StudyReportSettings(Config):
    """Where the table, the plots and metrics.json go."""

    folder: str = Field(
        default="",
        description="Folder for metrics.json, plots and the table; empty: a folder of this run below the work folder",
    )


class ReportSettings(StudyReportSettings):
    """Where the results go, and whether the best model is registered."""

    register_model: bool = Field(
        default=True, description="Put the best candidate into the MLflow model registry, with its lineage"
    )
    model_name: str = Field(
        default="seedloom-lifecycle",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
        description="Name in the model registry: letters, digits, '-' and '_'",
    )
