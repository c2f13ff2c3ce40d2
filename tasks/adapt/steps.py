"""The adapt flow's steps as Prefect tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.adapt.config import AdaptSettings, LongText, PositionSettings
from tasks.reference import Reference
from tasks.step import step
from tasks.tracking import RunContext
from tasks.train.steps import curves


@step("adapt-text", kind="data", version="1", timeout_seconds=24 * 3600)
def build_long_text(out: Path, *, text: LongText, model: Reference, fingerprint: str) -> dict[str, Any]:
    """Pack long text into rows of the model's tokens, the end of it held out."""
    from tasks.adapt.adapt import build_long_text as work

    return work(out, text=text, model=model)


@step("adapt", kind="model", version="1", timeout_seconds=30 * 24 * 3600, tags=("training",), live=True)
def adapt(
    out: Path,
    *,
    settings: AdaptSettings,
    model: Reference,
    corpus: Reference,
    ctx: RunContext | None = None,
    label: str = "adapt",
) -> dict[str, Any]:
    """Adapt a model to longer text into a model folder."""
    from tasks.adapt.adapt import adapt as work

    with curves(ctx, label) as on_row:
        return work(out, settings=settings, model=model, corpus=corpus, on_row=on_row)


@step("adapt-positions", kind="report", version="1", timeout_seconds=7 * 24 * 3600)
def measure_positions(
    out: Path, *, settings: PositionSettings, model: Reference, corpus: Reference
) -> dict[str, Any]:
    """Measure a model's answers by the evidence's depth."""
    from tasks.adapt.positions import measure_positions as work

    return work(out, settings=settings, model=model, corpus=corpus)
