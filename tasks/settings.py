"""Where Seedloom keeps its work and finds its servers: environment variables or `.env`, prefix SEEDLOOM_."""

import contextlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from methods.common.errors import ConfigError

PREFIX = "SEEDLOOM_"
# Database addresses end, or escape, at these.
NOT_IN_WORK = frozenset("?%#")
# What MLflow's stores are called in an address.
STORES = (
    "http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks", "databricks-uc", "uc",
)  # fmt: skip


class Settings(BaseSettings):
    """Machine-level settings. They never change a result, so they are no part of any flow's config."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_file=".env", extra="ignore")

    work_dir: Path = Field(Path(".seedloom"), description="Folder for outputs, caches and local stores.")
    mlflow_tracking_uri: str | None = Field(
        None, description="MLflow tracking store; default: SQLite in the work folder."
    )
    mlflow_url: str | None = Field(
        None, description="Address of the MLflow UI, for links; set by `seedloom up`."
    )
    experiment: str = Field("seedloom", description="MLflow experiment that flow runs are written to.")
    task_runner: Literal["threads", "dask", "ray"] = Field("threads", description="Where tasks run.")
    workers: int = Field(1, ge=1, description="Tasks at the same time; each training uses all cores.")
    dask_address: str | None = Field(None, description="Scheduler of an existing Dask cluster.")
    prefect_port: int = Field(4200, ge=1, le=65535, description="Port of `seedloom up`'s Prefect server.")
    mlflow_port: int = Field(5000, ge=1, le=65535, description="Port of `seedloom up`'s MLflow server.")

    @field_validator("mlflow_tracking_uri", "mlflow_url")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        """A wrong address would make MLflow wait for minutes, or write into a folder of that name."""
        if value is None:
            return None
        kind, separator, rest = value.partition("://")
        if value == "databricks" or (not separator and value.startswith(("/", ".", "file:"))):
            return value
        if not separator or kind.split("+")[0] not in STORES or not rest.strip("/"):
            raise ValueError(
                "is no address of an MLflow store, such as http://127.0.0.1:5000 or sqlite:////folder/mlflow.db"
            )
        return value

    @property
    def work(self) -> Path:
        """The work folder as an absolute path."""
        return self.work_dir.expanduser().resolve()

    @property
    def tracking_uri(self) -> str:
        """The MLflow store: the configured one, else SQLite in the work folder."""
        return self.mlflow_tracking_uri or f"sqlite:///{self.work / 'mlflow.db'}"

    @property
    def artifact_root(self) -> str | None:
        """Where a local store puts artifacts; a remote store decides for itself."""
        return None if self.mlflow_tracking_uri else (self.work / "mlartifacts").as_uri()


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read once.

    Raises:
        ConfigError: one line a wrong value: its variable, the value and what would be right.
    """
    try:
        current = Settings()
    except ValidationError as error:
        lines = []
        for item in error.errors():
            name = f"{PREFIX}{'_'.join(str(part) for part in item['loc'])}".upper()
            message = item["msg"].removeprefix("Value error, ")
            lines.append(f"{name}={item['input']}: {message[0].lower()}{message[1:]}; correct or unset it")
        raise ConfigError("\nerror: ".join(lines)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(".env: is not UTF-8 text; save it as UTF-8") from error
    if wrong := sorted(set(str(current.work)) & NOT_IN_WORK):
        raise ConfigError(
            f"{PREFIX}WORK_DIR={current.work}: a {wrong[0]!r} in the path means something else in the addresses of "
            "Prefect's and MLflow's databases; choose a folder without it"
        )
    return current


def configure_environment() -> Settings:
    """Point Prefect, MLflow and the hub libraries at the work folder; call before importing them.

    Values that the user has already set win. Prefect's database and results live in the work folder so
    that a run never writes to the home folder.
    """
    current = settings()
    home = current.work / "prefect"
    # Prefect makes its home without parents; a folder that cannot be written is reported by Workspace.check.
    with contextlib.suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
    defaults = {
        "PREFECT_HOME": str(home),
        "PREFECT_LOCAL_STORAGE_PATH": str(current.work / "results"),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "seedloom",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "DVC_NO_ANALYTICS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    return current
