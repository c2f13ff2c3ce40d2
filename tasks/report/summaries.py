"""Tables of the single steps: what a step made, as people read it and as metrics.json keeps it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tasks.candidates import Candidate
from tasks.prepare.task_sets import FEW, few_examples
from tasks.reference import Reference


def size_in_words(size: int) -> str:
    """A size in the unit in which it is not nothing."""
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 / 10 else f"{size / 2**10:.1f} KiB"


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
            rows.append({"part": name, "holds": size_in_words(size), "digest": reference.digest[:12]})
    return pd.DataFrame(rows).fillna(""), {
        "digests": {name: reference.digest for name, reference in parts.items()}
    }


def noted(candidates: Sequence[Candidate]) -> str:
    """What the steps noted about their candidates, each line once, as a list; empty when there is nothing."""
    lines = dict.fromkeys(str(line) for c in candidates for line in c.facts.get("notes") or [])
    return "\n".join(f"- Note: {line}" for line in lines)


# What people read of a step's facts, the column's name and its unit; metrics.json keeps every number.
SHOWN: dict[str, tuple[str, float]] = {
    "steps": ("steps", 1),
    "kept_step": ("kept step", 1),
    "stop_score": ("stop score", 1),
    "coefficient": ("coefficient", 1),
    "select_score": ("select score", 1),
    "size/bytes": ("file MB", 1e-6),
    "size/dense_bytes": ("was MB", 1e-6),
    "size/nominal_bits_per_weight": ("bits/weight", 1),
    "size/stored_bits_per_weight": ("stored bits/weight", 1),
    "size/whole_model_bits": ("bits/parameter of the file", 1),
    "sparsity": ("zeros %", 100),
    "parameters_kept_share": ("parameters kept %", 100),
    "error/mean": ("error of the weights", 1),
}


def candidates_table(candidates: Sequence[Candidate]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """One row a candidate with the main facts that its step measured; all numbers for metrics.json."""
    rows, metrics = [], {}
    for candidate in candidates:
        numbers = {n: v for n, v in candidate.facts.items() if isinstance(v, int | float)}
        metrics[candidate.name] = numbers
        shown = {
            column: f"{numbers[name] * unit:.4g}" for name, (column, unit) in SHOWN.items() if name in numbers
        }
        rows.append({"candidate": candidate.name, **shown, "seconds": f"{candidate.seconds:.1f}"})
    # Candidates of different kinds have different facts; the columns keep one order.
    order = ["candidate", *(column for column, _ in SHOWN.values()), "seconds"]
    table = pd.DataFrame(rows).fillna("-")
    return table[[column for column in order if column in table]], metrics
