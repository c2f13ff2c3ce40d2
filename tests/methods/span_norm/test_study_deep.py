"""The deeper search: the walk over the rates, and a comparison in which the seed of the search has no part."""

from typing import Any

import pytest

from methods.span_norm.study import Run
from methods.span_norm.study_deep import (
    COMPARED,
    RATES,
    SEARCH,
    START,
    chosen_rate,
    compared_runs,
    deep_claims,
    next_rate,
    search_runs,
)

BASE = Run("span", "inv_sqrt_depth", START, 0, layers=3, steps=10, warmup=2)
SPAN, PRE = "span/inv_sqrt_depth", "prenorm/inv_sqrt_depth"


@pytest.mark.parametrize("best", [*RATES])
def test_the_walk_ends_between_two_worse_neighbours(best: float) -> None:
    losses: dict[float, float] = {}
    while (rate := next_rate(losses)) is not None:
        assert rate not in losses
        losses[rate] = abs(RATES.index(rate) - RATES.index(best))
    assert chosen_rate(losses) == best
    place = RATES.index(best)
    assert set(RATES[max(place - 1, 0) : place + 2]) <= set(losses)
    # What lies beyond a worse neighbour is not paid for, but for the one step in the wrong direction.
    assert len(losses) <= abs(place - RATES.index(START)) + 3


def test_both_placements_are_searched_alike_and_compared_on_other_seeds_at_their_own_rates() -> None:
    searched = search_runs(BASE, 7)
    assert [(run.candidate, run.seed, run.drop) for run in searched] == [(SPAN, 7, False), (PRE, 7, False)]
    runs = compared_runs({SPAN: 1e-3, PRE: 4e-3}, BASE, (1, 2))
    assert [(run.candidate, run.rate, run.seed) for run in runs] == [
        (SPAN, 1e-3, 1),
        (PRE, 4e-3, 1),
        (SPAN, 1e-3, 2),
        (PRE, 4e-3, 2),
    ]
    assert {(run.layers, run.steps, run.warmup, run.drop) for run in runs} == {(3, 10, 2, True)}


def rows(gain: float, noise: float) -> list[dict[str, Any]]:
    """The search says the reverse of the comparison, and loudly."""
    found = []
    for name, loss in ((SPAN, 5.0), (PRE, 1.0)):
        found += [row(name, rate, 0, loss + (rate != 2e-3), SEARCH) for rate in (2e-3, 2.83e-3)]
        for seed in range(1, 5):
            worse = (name == PRE) * (gain + noise * (-1) ** seed)
            found.append(
                row(
                    name,
                    2e-3,
                    seed,
                    1.5 + 0.1 * seed + worse,
                    COMPARED,
                    drop=[0.1, 0.3 - 0.1 * (name == PRE)],
                )
            )
    return found


def row(candidate: str, rate: float, seed: int, loss: float, stage: str, **more: Any) -> dict[str, Any]:
    return {
        "candidate": candidate,
        "rate": rate,
        "seed": seed,
        "loss": loss,
        "start": 6.0,
        "diverged": None,
        "stage": stage,
        "layers": 48,
        "steps": 1500,
    } | more


@pytest.mark.parametrize(
    ("gain", "noise", "better", "not_worse"),
    [
        (0.02, 0.001, True, True),
        (0.02, 0.03, False, False),
        (-0.01, 0.001, False, True),
        (-0.03, 0.001, False, False),
    ],
)
def test_only_a_paired_interval_shows_that_one_is_better(
    gain: float, noise: float, better: bool, not_worse: bool
) -> None:
    found = {claim.name: claim for claim in deep_claims(rows(gain, noise))}
    claim = found["deep/gain_over_prenorm"]
    assert claim.values == pytest.approx([gain - noise, gain + noise] * 2)
    assert claim.held is better
    assert found["deep/not_worse"].held is not_worse
    assert found[f"deep/rate/{SPAN}"].values == (2e-3,)
    assert found[f"deep/loss/{SPAN}"].mean == pytest.approx(1.75)
    assert found["deep/layer_use"].values == pytest.approx([0.05] * 4)


def test_a_run_that_left_the_finite_numbers_counts_with_its_start() -> None:
    broken = rows(0.02, 0.001)
    next(r for r in broken if r["stage"] == COMPARED and r["candidate"] == SPAN).update(diverged=3, drop=None)
    found = {claim.name: claim for claim in deep_claims(broken)}
    assert found["deep/gain_over_prenorm"].values[0] == pytest.approx(1.619 - 6.0)
    assert found["deep/gain_over_prenorm"].held is False
    assert len(found["deep/layer_use"].values) == 3
