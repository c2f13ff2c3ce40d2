"""The deeper and longer search: each placement's rate from one seed, the comparison on other seeds.

The rate is searched by a walk over a grid in steps of 1.41: from a common start to lower loss, until both neighbours of
the best rate are worse. The seed of the search takes no part in the comparison: a rate that won by luck gains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from methods.span_norm.schemes import shown
from methods.span_norm.study import Run
from methods.span_norm.study_claims import PRE, SPAN, Claim, final_loss, variant
from methods.span_norm.study_plan import GRID, LONGER

Rows = Sequence[Mapping[str, Any]]
RATES = (2.5e-4, 3.54e-4, 5e-4, 7.07e-4, *GRID)
START = 2e-3
COMPARED_CANDIDATES = (SPAN, PRE)
SEARCH, COMPARED = "search", "compared"


def next_rate(losses: Mapping[float, float]) -> float | None:
    """The rate to try after these (held-out loss by rate); None when both neighbours of the best are known.

    The lower neighbour comes first: longer trainings want lower rates, and a run that failed says so too.
    """
    if not losses:
        return START
    best = RATES.index(chosen_rate(losses))
    open_ends = [
        RATES[place]
        for place in (best - 1, best + 1)
        if 0 <= place < len(RATES) and RATES[place] not in losses
    ]
    return open_ends[0] if open_ends else None


def chosen_rate(losses: Mapping[float, float]) -> float:
    """The rate with the lowest loss; the lower one of equals."""
    return min(sorted(losses), key=lambda rate: losses[rate])


def search_runs(base: Run, seed: int, further: Sequence[str] = ()) -> list[Run]:
    """The candidates as they are searched; their rates are still to be set.

    Args:
        base: the sizes that all share.
        seed: of the search.
        further: other placements as scheme/start; with a third word, `longer`, also a longer warm-up.
    """
    found = []
    for name in (*COMPARED_CANDIDATES, *further):
        scheme, init, *longer = name.split("/")
        warmup = base.warmup * (LONGER if longer else 1)
        found.append(replace(base, scheme=scheme, init=init, warmup=warmup, seed=seed))
    return found


def name_of(run: Run, base: Run) -> str:
    """The candidate of a run, with its warm-up where that is not the usual one."""
    return variant({"candidate": run.candidate, "warmup": run.warmup}, base.warmup)


def compared_runs(searched: Mapping[str, float], base: Run, seeds: Sequence[int]) -> list[Run]:
    """Each candidate at its own rate (by candidate), seed by seed; also what each block does at the end."""
    return [
        replace(run, rate=searched[run.candidate], drop=True)
        for seed in seeds
        for run in search_runs(base, seed)
    ]


def deep_claims(rows: Rows) -> list[Claim]:
    """The comparison, and what the search chose.

    Args:
        rows: results of runs with a field `stage`, `search` or `compared`.
    """
    searched = [row for row in rows if row["stage"] == SEARCH]
    compared = [row for row in rows if row["stage"] == COMPARED]
    names = list(dict.fromkeys(str(row["candidate"]) for row in searched))
    found = []
    for name in names:
        rates = {r["rate"]: final_loss(r) for r in searched if r["candidate"] == name}
        found += [
            Claim(
                f"deep/rate/{name}",
                f"rate that the search chose, {shown(name)}",
                (chosen_rate(rates),),
                rule="report",
            ),
            Claim(
                f"deep/searched/{name}",
                f"held-out loss at that rate on the seed of the search, {shown(name)}",
                (min(rates.values()),),
                rule="report",
            ),
        ]
        if losses := _by_seed(compared, name, final_loss):
            words = f"held-out loss at that rate on the seeds of the comparison, {shown(name)}"
            found.append(Claim(f"deep/loss/{name}", words, tuple(losses.values()), rule="report"))
    pair = [_by_seed(compared, name, final_loss) for name in (PRE, SPAN)]
    if not all(pair):
        return found
    gains = _paired(*pair)
    words = f"with {compared[0]['layers']} blocks and {compared[0]['steps']} steps, each at its own rate, SpanNorm is"
    found += [
        Claim(
            "deep/not_worse",
            f"{words} not worse than equally scaled PreNorm by more than 0.02, by a paired 95 % interval",
            gains,
            -0.02,
            ">=",
            "interval",
        ),
        Claim(
            "deep/gain_over_prenorm",
            f"{words} better than equally scaled PreNorm, by a paired 95 % interval above 0",
            gains,
            0.0,
            ">=",
            "interval",
        ),
    ]
    drops = [_by_seed([r for r in compared if r.get("drop")], name, _mean_rise) for name in (PRE, SPAN)]
    if all(drops):
        found.append(
            Claim(
                "deep/layer_use",
                "leaving one block out costs more in SpanNorm than in PreNorm (difference of means)",
                _paired(*reversed(drops)),
                0.0,
                ">=",
                "interval",
            )
        )
    return found


def _by_seed(rows: Rows, candidate: str, value: Any) -> dict[int, float]:
    return {int(row["seed"]): float(value(row)) for row in rows if row["candidate"] == candidate}


def _mean_rise(row: Mapping[str, Any]) -> float:
    return float(np.mean(row["drop"]))


def _paired(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, ...]:
    """One minus the other, by seed."""
    return tuple(one[seed] - other[seed] for seed in sorted(one.keys() & other.keys()))
