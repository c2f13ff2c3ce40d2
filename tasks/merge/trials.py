"""Coefficients that were tried, kept beside the merge: a search that was killed goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.merge.select import TaskScore


class Trials:
    """Scores by coefficient in a file of JSON lines, the first of which says what they depend on.

    Args:
        path: the file; one with other facts, or one that cannot be read, is begun anew.
        facts: everything that a score depends on beside the coefficient, JSON values.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path = path
        first = json.dumps(facts, sort_keys=True)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        whole = lines[1:] if lines[:1] == [first] else []
        self.found: dict[float, dict[str, TaskScore]] = {}
        for line in whole:
            try:
                row = json.loads(line)
                scores = {name: TaskScore(*values) for name, values in row["tasks"].items()}
                self.found[float(row["coefficient"])] = scores
            except (ValueError, TypeError, KeyError, AttributeError):
                break  # the line at which the killed run was writing
        self._write([first, *whole[: len(self.found)]])

    def _write(self, lines: list[str]) -> None:
        self.path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def keep(self, coefficient: float, scores: Mapping[str, TaskScore]) -> None:
        """Add one coefficient's scores."""
        self.found[coefficient] = dict(scores)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"coefficient": coefficient, "tasks": dict(scores)}) + "\n")
