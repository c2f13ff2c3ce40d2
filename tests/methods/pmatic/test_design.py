"""Designs: dynamic programming against every choice, companding against its formula, base PMATIC's bins."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import betainc

from methods.common.errors import ConfigError
from methods.pmatic import plan_design
from methods.pmatic.design import (
    base_cost,
    base_design,
    base_share,
    best_boundaries,
    companded_boundaries,
    companding_width,
    equal_width,
)
from methods.pmatic.synchroniser import ONE, UNIT


@pytest.fixture(scope="module")
def log_odds() -> np.ndarray:
    draw = np.random.default_rng(1)
    return np.concatenate([draw.normal(-3, 2, size=30_000), draw.normal(3, 3, size=30_000)]).clip(-40, 40)


def plain_cost(x: np.ndarray, boundaries: tuple[float, ...], Delta: float, share: float, least: int) -> float:
    """The cost of a choice, interval by interval."""
    total, start = 0.0, -math.inf

    def interval(low: float, high: float, bits: float) -> float:
        p = 1 / (1 + np.exp(-x[(x >= low) & (x < high)]))
        if not len(p):
            return 0.0
        mean = p.mean()
        return len(p) * (-mean * math.log2(mean) - (1 - mean) * math.log2(1 - mean) + bits)

    for t in (*boundaries, math.inf):
        if ((x >= start) & (x < t - Delta)).sum() < least:
            return math.inf
        total += interval(start, t - Delta, -math.log2(1 - share))
        if t < math.inf:
            total += interval(t - Delta, t + Delta, -math.log2(share))
        start = t + Delta
    return total


@pytest.mark.parametrize(("Delta", "least"), [(0.01, 5), (0.2, 1), (0.5, 20)])
def test_dynamic_programming_finds_the_best_of_all_choices(
    log_odds: np.ndarray, Delta: float, least: int
) -> None:
    x = log_odds[::200]
    grid = np.asarray([-6.0, -3.1, -2.4, -0.9, 0.0, 0.7, 1.9, 3.3, 5.0])
    costs = {
        chosen: plain_cost(x, chosen, Delta, 0.02, least)
        for count in range(len(grid) + 1)
        for chosen in itertools.combinations(grid.tolist(), count)
        if all(b - a >= 4 * Delta for a, b in itertools.pairwise(chosen))
    }
    best = min(costs, key=lambda chosen: costs[chosen])
    found, cost = best_boundaries(x, Delta, grid, 0.02, least)
    assert tuple(found) == best
    assert cost == pytest.approx(costs[best])


def test_cells_follow_the_companding_rule() -> None:
    Delta, share = 1e-5, 0.001
    boundaries = np.asarray(companded_boundaries(Delta, share))
    assert boundaries == pytest.approx(-boundaries[::-1])
    widths = np.diff(boundaries)
    assert widths == pytest.approx(companding_width(boundaries[:-1] + widths / 2, Delta, share), rel=0.1)
    # The map is the incomplete beta function I_p(1/3, 1/3): equal steps of it from boundary to boundary.
    steps = np.diff(betainc(1 / 3, 1 / 3, 1 / (1 + np.exp(-boundaries))))
    assert steps == pytest.approx(np.full(len(steps), steps.mean()), rel=0.01)


@pytest.mark.parametrize("design", ["companded", "dp", "uniform"])
@pytest.mark.parametrize("Delta", [1e-6, 1e-3, 0.05, 0.8, 30.0])
def test_every_design_keeps_its_distances(log_odds: np.ndarray, design: str, Delta: float) -> None:
    found = plan_design(log_odds[::20], Delta, design)  # type: ignore[arg-type]
    gap = found.smallest_gap()
    assert gap is None or gap >= 2 * found.bound
    assert found.Delta >= Delta
    # One cell with one probability is always there to fall back on.
    assert found.redundancy(log_odds)["total"] < (1.0 if design != "uniform" else 1.2)


def test_designs_cost_what_they_should(log_odds: np.ndarray) -> None:
    fit, test = log_odds[::2], log_odds[1::2]
    for delta in (1e-5, 1e-3, 1e-2):
        base = base_cost(base_design(fit, delta, None), test)["total"]
        ours = plan_design(fit, 4 * delta).redundancy(test)["total"]
        dynamic = plan_design(fit, 4 * delta, "dp").redundancy(test)["total"]
        assert ours < 0.65 * base
        assert dynamic <= 1.02 * ours
        assert ours <= 1.6 * dynamic
    # Without any calibration the rule alone is nearly as good: it needs only the bound.
    assert (
        plan_design(None, 4e-3).redundancy(test)["total"]
        < 2 * plan_design(fit, 4e-3).redundancy(test)["total"]
    )


def test_boundaries_that_do_not_pay_for_their_place_are_left_out(log_odds: np.ndarray) -> None:
    free, priced = (plan_design(log_odds, 4e-6, boundary_bits=bits) for bits in (0.0, 56.0))
    few, many = len(priced.edges) // 2, len(free.edges) // 2
    assert 3 < few < many / 1.5
    cost = {found: found.redundancy(log_odds)["total"] * len(log_odds) for found in (free, priced)}
    assert cost[priced] + 56 * few < cost[free] + 56 * many


def test_base_pmatic_is_the_papers(log_odds: np.ndarray) -> None:
    found = plan_design(None, design="uniform_p", delta=1e-3, r=0.05)
    assert found.kind == "tv"
    assert np.diff(found.boundaries) == pytest.approx(np.full(8, 0.1), abs=1e-9)
    assert found.probabilities[0::2] == tuple(round(ONE * (0.05 + 0.1 * k)) for k in range(10))
    assert found.probabilities[1::2] == tuple(round(ONE * 0.1 * k) for k in range(1, 10))
    assert base_share(found) == pytest.approx(1e-3 / 0.05, rel=1e-5)
    assert found.bound * UNIT == pytest.approx(1e-3, abs=1e-8)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"Delta": None}, "Delta is missing"),
        ({"Delta": 0.0}, "Delta = 0.0"),
        ({"Delta": math.nan}, "Delta = nan"),
        ({"Delta": 1.0, "design": "best"}, "design = 'best'"),
        ({"design": "uniform_p"}, "give delta"),
        ({"design": "uniform_p", "delta": 0.5}, "below 0.25"),
        ({"design": "uniform_p", "delta": 1e-2, "r": 0.02}, "above 2 delta"),
        ({"design": "uniform_p", "delta": 1e-3, "r": 0.03}, "must be an integer"),
        ({"design": "uniform", "Delta": 0.1, "width": 0.2}, "at least 4 Delta"),
    ],
)
def test_designs_that_cannot_be_are_refused(values: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan_design(None, **values)
    with pytest.raises(ConfigError, match="finite numbers"):
        plan_design(np.asarray([math.nan]), 0.1)


def test_equal_cells_have_the_width_that_the_bound_asks_for() -> None:
    for Delta in (1e-6, 1e-3):
        width = equal_width(Delta)
        assert width**3 == pytest.approx(96 * Delta * math.log(width / (2 * Delta)), rel=0.15)
