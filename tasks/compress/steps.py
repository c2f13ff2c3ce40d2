"""The compress step as a Prefect task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.compress.compress import compress_model
from tasks.compress.recipes import CompressionRecipe
from tasks.reference import Reference
from tasks.step import step


@step("compress", kind="model", version="2", timeout_seconds=24 * 3600)
def compress(
    out: Path,
    *,
    recipe: CompressionRecipe,
    model: Reference,
    calibration: Reference | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Compress one model by one recipe into a model folder with compression.json."""
    return compress_model(out, recipe=recipe, model=model, calibration=calibration, seed=seed)
