"""Merge-aware choice of one checkpoint per task: an extension of section 2.5, an upper bound.

It needs all tasks. Greedy coordinate descent: start from one length for all tasks, then change one task's
length at a time to the one whose merge scores best, until a round changes nothing or the budget of merges is
spent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from methods.common.errors import ConfigError
from methods.merge_early_stop.experts import ExpertBank, Key

Choice = Mapping[str, int]


@dataclass(frozen=True)
class Selection:
    """What was chosen: `steps` of each task, and the objective's value there.

    `evaluations` counts the merges that were evaluated, `trace` lists the improvements.
    """

    steps: dict[str, int]
    score: float
    evaluations: int
    trace: list[dict[str, Any]] = field(default_factory=list)


def select_checkpoints(
    bank: Sequence[int] | Mapping[str, Sequence[int]] | ExpertBank,
    objective: Callable[[dict[str, int]], float],
    *,
    tasks: Sequence[str] | None = None,
    seed: int = 0,
    schedule: str = "constant",
    start: Choice | None = None,
    budget: int = 200,
) -> Selection:
    """Choose a step for each task so that the merged score on the select split is high.

    Args:
        bank: an `ExpertBank` (its steps for `seed` and `schedule`), or the candidate steps: for each task, or
            one list with `tasks`.
        objective: `{task: step}` -> merged score (higher is better). It must not see the test split.
        start: where to begin; None tries each uniform length first (counted in the budget).
        budget: merges that may be evaluated. Repeated choices are not evaluated again.

    Returns: `Selection`; its score is never below that of the best uniform length that was tried.
    """
    if isinstance(bank, ExpertBank):
        candidates: dict[str, list[int]] = {}
        for key in bank.weights:
            if isinstance(key, Key) and (key.seed, key.schedule) == (seed, schedule):
                candidates.setdefault(key.task, []).append(key.step)
    elif isinstance(bank, Mapping):
        candidates = {task: list(steps) for task, steps in bank.items()}
    else:
        candidates = {task: list(bank) for task in tasks or ()}
    candidates = {task: sorted(set(steps)) for task, steps in candidates.items()}
    if not candidates or not all(candidates.values()):
        raise ConfigError("there are no checkpoints to choose from; give a bank or steps for each task")
    if budget < 1:
        raise ConfigError(f"budget={budget} must be at least 1")

    known: dict[tuple[int, ...], float] = {}
    names = list(candidates)

    def score(choice: dict[str, int]) -> float | None:
        place = tuple(choice[n] for n in names)
        if place not in known:
            if len(known) >= budget:
                return None
            known[place] = float(objective(dict(choice)))
        return known[place]

    if start is not None:
        starts = [{n: int(start[n]) for n in names}]
    else:
        common = set.intersection(*(set(s) for s in candidates.values()))
        starts = [dict.fromkeys(names, s) for s in sorted(common)] or [
            {n: s[0] for n, s in candidates.items()}
        ]
    scored = [(value, choice) for choice in starts if (value := score(choice)) is not None]
    best, current = max(scored, key=lambda pair: pair[0])
    trace = [{"steps": dict(current), "score": best, "evaluations": len(known)}]
    changed = True
    while changed and len(known) < budget:
        changed = False
        for task in names:
            for step in candidates[task]:
                trial = {**current, task: step}
                value = score(trial)
                if value is not None and value > best:
                    best, current, changed = value, trial, True
                    trace.append({"steps": dict(current), "score": best, "evaluations": len(known)})
    return Selection(dict(current), best, len(known), trace)
