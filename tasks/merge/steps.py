"""The merge step as a Prefect task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.merge.config import MergeSettings
from tasks.reference import Reference
from tasks.step import step


@step("merge", kind="model", version="2", timeout_seconds=24 * 3600)
def merge(
    out: Path,
    *,
    settings: MergeSettings,
    method: str,
    base: Reference,
    experts: list[Reference],
    tasks: Reference,
) -> dict[str, Any]:
    """Merge the experts by one method into a model folder, its coefficient chosen on the select parts."""
    from tasks.merge.candidates import merge_candidate

    return merge_candidate(out, settings=settings, method=method, base=base, experts=experts, tasks=tasks)
