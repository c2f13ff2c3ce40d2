"""The curves of a training: one JSON object a step with `step` and named values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

TRACE = "trace.jsonl"
Row = dict[str, float]


def write_trace(folder: Path, rows: Iterable[Row]) -> None:
    (folder / TRACE).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_trace(folder: Path) -> list[Row]:
    """The curves of a finished expert, as they were logged live; none for a folder without."""
    path = folder / TRACE
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
