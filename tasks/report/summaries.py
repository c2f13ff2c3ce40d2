"""Tables of the single steps: what a step made, as people read it and as metrics.json keeps it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tasks.candidates import Candidate
from tasks.prepare.task_sets import FEW, few_examples
from tasks.reference import Reference


def prepared_table(parts: Mapping[str, Reference]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """One row a prepared part: what it is, where from, how large."""
    rows = []
    for name, reference in parts.items():
        for record in sorted(reference.path.rglob("task.json")):
            task = json.loads(record.read_text())
            counts = ", ".join(f"{part} {count}" for part, count in task["counts"].items())
            row = {"part": f"task {task['name']}", "holds": counts, "digest": reference.digest[:12]}
            if few_examples(task["name"], task["counts"]):
                row["note"] = f"parts under {FEW}: rough decisions and intervals"
            rows.append(row)
        if name != "tasks":
            size = sum(p.stat().st_size for p in reference.path.rglob("*") if p.is_file())
            rows.append({"part": name, "holds": f"{size / 2**20:.1f} MiB", "digest": reference.digest[:12]})
    return pd.DataFrame(rows).fillna(""), {
        "digests": {name: reference.digest for name, reference in parts.items()}
    }


def noted(candidates: Sequence[Candidate]) -> str:
    """What the steps noted about their candidates, each line once, as a list; empty when there is nothing."""
    lines = dict.fromkeys(str(line) for c in candidates for line in c.facts.get("notes") or [])
    return "\n".join(f"- Note: {line}" for line in lines)


def candidates_table(candidates: Sequence[Candidate]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """One row a candidate with what its step measured; the same numbers for metrics.json."""
    rows, metrics = [], {}
    for candidate in candidates:
        facts = {n: v for n, v in candidate.facts.items() if isinstance(v, int | float | str)}
        numbers = {n: v for n, v in facts.items() if isinstance(v, int | float)}
        metrics[candidate.name] = numbers
        shown = {n: f"{v:.4g}" if isinstance(v, float) else str(v) for n, v in facts.items()}
        rows.append({"candidate": candidate.name, **shown, "seconds": f"{candidate.seconds:.1f}"})
    return pd.DataFrame(rows).fillna("-"), metrics
