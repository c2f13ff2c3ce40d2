"""The evaluate step as a Prefect task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.evaluate.candidate import evaluate_model
from tasks.evaluate.config import EvaluateSettings
from tasks.reference import Reference
from tasks.step import step


@step("evaluate", kind="report", version="2", timeout_seconds=24 * 3600)
def evaluate(
    out: Path,
    *,
    settings: EvaluateSettings,
    model: Reference,
    tasks: Reference,
    base: Reference | None = None,
    text: Reference | None = None,
    dense: Reference | None = None,
    steering: Reference | None = None,
) -> dict[str, Any]:
    """Score one candidate on task sets, held-out text, size and speed."""
    return evaluate_model(
        settings,
        model.expect("model", "adapter"),
        tasks.expect("tasks"),
        text.expect("text") if text else None,
        out,
        base.expect("model") if base else None,
        dense.expect("model") if dense else None,
        steering.expect("data") if steering else None,
    )
