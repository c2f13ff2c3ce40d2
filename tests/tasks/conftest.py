"""The bundled SmolLM2, materialised once for all tests that need a real model."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled SmolLM2 in bfloat16; SEEDLOOM_TEST_SMOLLM2 names a folder that already holds it."""
    if given := os.environ.get("SEEDLOOM_TEST_SMOLLM2"):
        return Path(given)
    from tasks.prepare.config import ModelSettings
    from tasks.prepare.models import materialise_model

    folder = tmp_path_factory.mktemp("smollm2")
    materialise_model(ModelSettings(dtype="bfloat16"), folder)
    return folder
