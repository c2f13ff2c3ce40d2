"""The base of every settings model: one model is the form, the options, the params.yaml block and the logged params."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Frozen settings that refuse unknown fields; defaults are checked like any other value."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
