"""Expected redundancy of every design over a range of bounds, on the path events of an n-gram model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from methods.pmatic.design import base_bins, base_cost, base_design, base_share, plan_design
from methods.pmatic.ngram import NGram
from methods.pmatic.predictor import Predictor
from methods.pmatic.study_data import Split, byte_ids
from methods.pmatic.tree import CodeTree

ORDER = 6
PAPER_RADII = {1e-5: 0.005, 1e-3: 0.05, 1e-2: 0.125}
DYNAMIC_FROM = 1e-4  # below, dynamic programming has too few calibration events in its windows to differ
DYNAMIC_EVENTS = 500_000


def events_of(predictor: Predictor, tree: CodeTree, text: bytes) -> np.ndarray:
    """Log-odds of the path events of a text."""
    ids, at, found = byte_ids(text), 0, []
    for logits in predictor.score(ids):
        found.append(tree.events(logits, ids[at : at + len(logits)])[0])
        at += len(logits)
    return np.concatenate(found)


def ideal_bits(predictor: Predictor, text: bytes) -> float:
    """The model's own cost of a text, bits a byte."""
    ids, at, total = byte_ids(text), 0, 0.0
    for logits in predictor.score(ids):
        part = ids[at : at + len(logits)]
        total -= float((logits[np.arange(len(part)), part] - np.logaddexp.reduce(logits, axis=1)).sum())
        at += len(logits)
    return total / math.log(2) / len(text)


def best_base_radius(x: np.ndarray, delta: float) -> float:
    """Base PMATIC's best r for these very events: more than a user could know."""
    few = x[:: max(1, len(x) // 100_000)]
    bins = min(base_bins(delta), key=lambda m: base_cost(base_design(None, delta, 1 / (2 * m)), few)["total"])
    return 1 / (2 * bins)


def design_rows(parts: Split, seed: int, deltas: Sequence[float]) -> list[dict[str, Any]]:
    """One row a tree, bound and design: redundancy in bits a byte, over the model's own expected cost.

    Designs are fitted on the calibration part; base PMATIC's r is the best for the test part itself.
    """
    model = NGram.fit_bytes(parts.train, ORDER)
    counts = np.bincount(byte_ids(parts.train), minlength=256)
    rows: list[dict[str, Any]] = []
    for tree in (CodeTree.flat(256), CodeTree.huffman(counts)):
        fit, test = (events_of(model, tree, text) for text in (parts.calibration, parts.test))
        a_byte = len(test) / len(parts.test)
        for delta in deltas:
            radius = best_base_radius(test, delta)
            base = base_design(None, delta, radius)
            found = {
                "base": (base, base_share(base)),
                "base_adaptive": (base, None),
                "uniform": (plan_design(fit, 4 * delta, "uniform"), None),
                "rule_only": (plan_design(None, 4 * delta), None),
                "companded": (plan_design(fit, 4 * delta), None),
            }
            if delta in PAPER_RADII:
                paper = base_design(None, delta, PAPER_RADII[delta])
                found["base_paper_r"] = (paper, base_share(paper))
            if delta >= DYNAMIC_FROM:
                found["dp"] = (plan_design(fit[-DYNAMIC_EVENTS:], 4 * delta, "dp"), None)
            for name, (synchroniser, helper) in found.items():
                cost = synchroniser.redundancy(test, helper)
                rows.append(
                    {
                        "seed": seed,
                        "tree": tree.kind,
                        "delta": delta,
                        "design": name,
                        "redundancy": cost["total"] * a_byte,
                        "helper_bits": cost["helper"] * a_byte,
                        "quantisation_bits": cost["quantisation"] * a_byte,
                        "helper_rate": cost["helper_rate"],
                        "declared_rate": helper or 0.0,
                        "boundaries": len(synchroniser.edges) // 2,
                        "radius": radius if name.startswith("base") else 0.0,
                        "ideal": cost["ideal"] * a_byte,
                        "events_per_byte": a_byte,
                        "calibration_events": len(fit),
                    }
                )
    return rows
