"""Where the boundaries go: companding, dynamic programming, equal cells, and base PMATIC's bins.

The cost of an event is the helper's, about 2 Delta lambda / w where cells are w wide, and the loss by coding with
the cell's probability, about p (1 - p) w^2 / 24 nats: quadratic in w, so that cells may be wide where the bit is
almost certain. The pointwise minimum is the companding rule

    w(x) = (24 Delta lambda / (p (1 - p)))^(1/3),   lambda = ln((1 - pi) / pi),   pi = P(helper = 1)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from methods.common.errors import ConfigError
from methods.pmatic.synchroniser import UNIT, Synchroniser, bound_units, clip_probability, midpoints

Design = Literal["companded", "dp", "uniform", "uniform_p"]
DESIGNS: tuple[Design, ...] = ("companded", "dp", "uniform", "uniform_p")
OUTER = 11.0  # no boundary beyond these log-odds
START_SHARE = 0.005
FEW_POINTS = 20  # an interval with fewer calibration points keeps its middle
CELL_POINTS = 200  # fewest calibration points of a cell that dynamic programming may choose
OFFSETS = 8
WIDER = (1.0, 1.6, 2.5, 4.0)
OFFSET_POINTS = 50_000  # calibration points that choose the offset of the cells


def plan_design(
    log_odds: np.ndarray | None,
    Delta: float | None = None,
    design: Design = "companded",
    *,
    delta: float | None = None,
    r: float | None = None,
    width: float | None = None,
    grid: int | None = None,
    rounds: int = 4,
    boundary_bits: float = 0.0,
) -> Synchroniser:
    """A synchroniser for a bound, fitted to calibration events.

    Args:
        log_odds: of the path events of calibration text, never of the text to be compressed; None fits nothing.
        Delta: bound on the move of a bit's log-odds.
        design: "companded" (default), "dp" (dynamic programming; falls back to companded unless better on a held-out
            half), "uniform" (equal cells in log-odds) or "uniform_p" (base PMATIC: equal bins in probability).
        delta: bound of base PMATIC, in total variation; for "uniform_p", and elsewhere Delta = 4 delta.
        r: radius of base PMATIC's bins; None takes the best on the calibration events.
        width: of the cells of "uniform"; None takes the minimiser of its distribution-free bound.
        grid, rounds: of "dp": candidates for boundaries (None: n / 150, at most 300), and alternations with pi.
        boundary_bits: what a boundary costs where the design travels with the data; "companded" then widens its cells
            until fewer of them do not pay for as many events as calibration has. 0 counts redundancy alone.

    Raises:
        ConfigError: no bound, or one that is not above 0; r that is not above 2 delta or no half of 1/m.
    """
    x = None if log_odds is None else np.asarray(log_odds, dtype=np.float64)
    if x is not None and (x.ndim != 1 or not np.isfinite(x).all()):
        raise ConfigError("calibration log-odds must be one row of finite numbers")
    if design == "uniform_p":
        if delta is None:
            raise ConfigError("design = uniform_p: give delta, base PMATIC's bound in total variation")
        return base_design(x, delta, r)
    if Delta is None and delta is not None:
        Delta = 4 * delta
    if Delta is None:
        raise ConfigError("Delta is missing: give it, or measure it with estimate_mismatch")
    bound = bound_units(Delta)
    if design == "uniform":
        return _equal_cells(x, bound, width)
    if design not in DESIGNS:
        raise ConfigError(f"design = {design!r}: choose one of {', '.join(DESIGNS)}")
    chosen = _companded(x, bound, boundary_bits)
    if design == "companded" or x is None or not len(x):
        return chosen
    # Dynamic programming overfits: it must beat companding on events that it has not seen.
    half = np.arange(len(x)) % 2 == 0
    fitted = _dynamic(x[half], bound, grid, rounds)
    if fitted is None or _cost(fitted, x[~half]) >= _cost(_companded(x[half], bound), x[~half]):
        return chosen
    return _dynamic(x, bound, grid, rounds) or chosen


def _cost(synchroniser: Synchroniser, x: np.ndarray) -> float:
    return synchroniser.redundancy(x)["total"]


def fit_probabilities(synchroniser: Synchroniser, x: np.ndarray | None) -> Synchroniser:
    """Each interval's probability as the mean over the calibration points in it: its centroid in KL."""
    if x is None or not len(x):
        return synchroniser
    p = 1 / (1 + np.exp(-x))
    number = synchroniser.locate(synchroniser.coordinate(x))
    count = np.bincount(number, minlength=len(synchroniser.colours))
    total = np.bincount(number, weights=p, minlength=len(synchroniser.colours))
    fallback = midpoints(synchroniser.edges, synchroniser.kind)
    fitted = tuple(
        clip_probability(total[i] / count[i]) if count[i] >= FEW_POINTS else fallback[i]
        for i in range(len(count))
    )
    return Synchroniser(
        synchroniser.edges, synchroniser.colours, fitted, synchroniser.bound, synchroniser.kind
    )


def _from_boundaries(boundaries: Sequence[float], bound: int, x: np.ndarray | None) -> Synchroniser:
    """Boundaries as whole units; one that is too near to the one before it is left out."""
    # Coarser than the bound needs is shorter in the codec.
    coarse = 1 << max(0, bound.bit_length() - 9)
    kept: list[int] = []
    for t in boundaries:
        unit = round(float(t) / UNIT / coarse) * coarse
        if not kept or unit - kept[-1] >= 4 * bound:
            kept.append(unit)
    return fit_probabilities(Synchroniser.windows(kept, bound), x)


# -- companding -----------------------------------------------------------------------------------------------------


def companding_width(x: np.ndarray, Delta: float, share: float) -> np.ndarray:
    """w(x), at least the 4 Delta that two windows need."""
    p = 1 / (1 + np.exp(-np.asarray(x, dtype=np.float64)))
    odds = math.log((1 - share) / share)
    # A little more than 4 Delta: rounding must not push two boundaries too near to each other.
    return np.asarray(np.maximum((24 * Delta * odds / (p * (1 - p))) ** (1 / 3), 4.02 * Delta))


def companded_boundaries(Delta: float, share: float, offset: float = 0.5, wider: float = 1.0) -> list[float]:
    """Boundaries out to +-11 whose distances follow w(x).

    Args:
        Delta: the bound. share: P(helper = 1).
        offset: of the first boundary right of 0, in cells; 0.5 puts a cell around 0, symmetric.
        wider: factor on w(x).
    """
    line = np.linspace(0, OUTER, 4001)
    density = 1 / (wider * companding_width(line, Delta, share))
    cells = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(line))])
    right = np.interp(np.arange(offset, cells[-1], 1), cells, line) if cells[-1] > offset else np.empty(0)
    left = (
        np.interp(np.arange(1 - offset, cells[-1], 1), cells, line) if cells[-1] > 1 - offset else right[:0]
    )
    return [float(t) for t in (*-left[::-1], *right)]


def _companded(x: np.ndarray | None, bound: int, boundary_bits: float = 0.0) -> Synchroniser:
    Delta = bound * UNIT
    if x is None or not len(x):
        return _from_boundaries(companded_boundaries(Delta, START_SHARE), bound, None)
    few = x[:: max(1, len(x) // OFFSET_POINTS)]
    price = boundary_bits / len(x)

    def whole_cost(found: Synchroniser, events: np.ndarray) -> float:
        return _cost(found, events) + price * (len(found.edges) // 2)

    best: tuple[float, list[float]] | None = None
    for wider in WIDER if boundary_bits else WIDER[:1]:
        for offset in (0.5, *(i / OFFSETS for i in range(OFFSETS) if 2 * i != OFFSETS)):
            share = START_SHARE
            for _ in range(3):
                boundaries = companded_boundaries(Delta, share, offset, wider)
                found = _from_boundaries(boundaries, bound, few)
                share = min(max(found.redundancy(few)["helper_rate"], 1 / (len(few) + 2)), 0.49)
            if best is None or whole_cost(found, few) < best[0]:
                best = whole_cost(found, few), boundaries
    assert best is not None
    chosen = _from_boundaries(best[1], bound, x)
    alone = fit_probabilities(Synchroniser.windows([], bound), x)  # one cell: valid where no boundary pays
    return alone if whole_cost(alone, x) < whole_cost(chosen, x) else chosen


# -- equal cells ----------------------------------------------------------------------------------------------------


def equal_width(Delta: float) -> float:
    """The minimiser of h2(2 Delta / w) + log2(e) w^2 / 96, which bounds the cost of equal cells for every source."""
    from scipy.optimize import minimize_scalar

    def cost(log_width: float) -> float:
        width = math.exp(log_width)
        share = 2 * Delta / width
        return -(share * math.log2(share) + (1 - share) * math.log2(1 - share)) + width**2 / 96 / math.log(2)

    low = math.log(4 * Delta)
    found = minimize_scalar(cost, bounds=(low, max(low + 1e-6, math.log(2 * OUTER))), method="bounded")
    return math.exp(float(found.x))


def _equal_cells(x: np.ndarray | None, bound: int, width: float | None) -> Synchroniser:
    wide = width if width is not None else equal_width(bound * UNIT)
    if not wide >= 4 * bound * UNIT:
        raise ConfigError(f"width = {wide}: equal cells need at least 4 Delta = {4 * bound * UNIT:.3g}")
    count = int(OUTER // wide)
    return _from_boundaries([(i + 0.5) * wide for i in range(-count - 1, count + 1)], bound, x)


# -- dynamic programming --------------------------------------------------------------------------------------------


def _entropy_cost(count: np.ndarray, total: np.ndarray) -> np.ndarray:
    """n h2(mean p): what the best single probability costs for points with this sum of p."""
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.clip(total / count, 1e-12, 1 - 1e-12)
        cost = -count * (mean * np.log2(mean) + (1 - mean) * np.log2(1 - mean))
    return np.where(count > 0, cost, 0.0)


def best_boundaries(
    x: np.ndarray, Delta: float, candidates: np.ndarray, share: float, cell_points: int = CELL_POINTS
) -> tuple[list[float], float]:
    """The cheapest boundaries among ascending candidates, at least 4 Delta apart.

    D[k] = min over j with g_k - g_j >= 4 Delta of D[j] + cost(cell between) + n_cell log2(1 / (1 - pi)) +
    cost(window k) + n_window log2(1 / pi), with cost(I) = n_I h2(mean p in I).

    Returns:
        the boundaries and their cost in bits over all events.
    """
    points = np.sort(np.asarray(x, dtype=np.float64))
    sums = np.concatenate([[0], np.cumsum(1 / (1 + np.exp(-points)))])
    lower = np.searchsorted(points, candidates - Delta, side="left")
    upper = np.searchsorted(points, candidates + Delta, side="left")
    cell_bits, window_bits = math.log2(1 / (1 - share)), math.log2(1 / share)
    windows = _entropy_cost(upper - lower, sums[upper] - sums[lower]) + (upper - lower) * window_bits
    starts = np.concatenate([[0], upper])  # a cell begins where the line or a window ends

    def cells(end: int, begin: np.ndarray) -> np.ndarray:
        count = end - begin
        cost = _entropy_cost(count, sums[end] - sums[begin]) + count * cell_bits
        return np.where(count >= cell_points, cost, np.inf)

    size = len(candidates)
    best = np.full(size + 1, np.inf)
    before = np.zeros(size + 1, dtype=np.int64)
    best[0] = 0.0
    for k in range(1, size + 1):
        near = np.searchsorted(candidates, candidates[k - 1] - 4 * Delta, side="right")
        allowed = np.arange(min(near, k - 1) + 1)  # 0 is the line's start
        costs = best[allowed] + cells(int(lower[k - 1]), starts[allowed])
        before[k] = allowed[int(np.argmin(costs))]
        best[k] = costs.min() + windows[k - 1]
    last = best + cells(len(points), starts)
    k = int(np.argmin(last))
    total = float(last[k])
    chosen = []
    while k:
        chosen.append(float(candidates[k - 1]))
        k = int(before[k])
    return chosen[::-1], total


def _dynamic(x: np.ndarray, bound: int, grid: int | None, rounds: int) -> Synchroniser | None:
    size = min(300, len(x) // 150) if grid is None else grid
    if size < 2 or len(x) < CELL_POINTS:
        return None
    Delta = bound * UNIT
    # Half of the candidates equally far apart, half at quantiles of the events, where most of the cost is.
    inside = x[np.abs(x) <= OUTER]
    if not len(inside):
        return None
    candidates = np.unique(
        np.concatenate(
            [
                np.linspace(-OUTER, OUTER, size - size // 2),
                np.quantile(inside, np.linspace(0, 1, size // 2 + 2)[1:-1]),
            ]
        )
    )
    share, found = START_SHARE, None
    for _ in range(rounds):
        boundaries, cost = best_boundaries(x, Delta, candidates, share)
        if not math.isfinite(cost):
            return None
        found = _from_boundaries(boundaries, bound, x)
        share = min(max(found.redundancy(x)["helper_rate"], 1 / (len(x) + 2)), 0.49)
    return found


# -- base PMATIC ----------------------------------------------------------------------------------------------------


def base_design(x: np.ndarray | None, delta: float, r: float | None) -> Synchroniser:
    """Base PMATIC: m = 1 / (2 r) equal bins of [0, 1]; quantised to the bin's centre, near an edge to the edge.

    Raises:
        ConfigError: r not above 2 delta, or 1 / (2 r) no integer.
    """
    if not (isinstance(delta, int | float) and math.isfinite(delta) and 0 < delta < 0.25):
        raise ConfigError(f"delta = {delta}: base PMATIC needs a number above 0 and below 0.25")
    if r is None:
        return min(
            (base_design(x, delta, 1 / (2 * m)) for m in base_bins(delta)),
            key=lambda found: 0.0 if x is None else base_cost(found, x)["total"],
        )
    if not (math.isfinite(r) and r > 2 * delta):
        raise ConfigError(f"r = {r}: must be above 2 delta = {2 * delta:g}")
    bins = round(1 / (2 * r))
    if bins < 1 or abs(1 / (2 * r) - bins) > 1e-9 * bins:
        raise ConfigError(f"r = {r}: 1 / (2 r) = {1 / (2 * r):g} must be an integer, such as r = 0.05")
    bound = bound_units(delta)
    centres = [(k + 0.5) / bins for k in range(bins)]
    edges = [k / bins for k in range(1, bins)]
    chosen = [clip_probability(centres[0])]
    for k, edge in enumerate(edges, 1):
        chosen += [clip_probability(edge), clip_probability(centres[k])]
    return Synchroniser.windows([round(edge / UNIT) for edge in edges], bound, chosen, kind="tv")


def base_bins(delta: float) -> list[int]:
    """Numbers of bins to try: those whose radius is above 2 delta, about 30 of them up to 2,000."""
    most = min(2_000, math.ceil(1 / (4 * delta)) - 1)
    return sorted({round(m) for m in np.geomspace(1, max(1, most), 30)})


def base_share(synchroniser: Synchroniser) -> float:
    """The fixed probability delta / r with which base PMATIC codes its helper bit."""
    bins = (len(synchroniser.colours) + 1) // 2
    return min(0.5, synchroniser.bound * UNIT * 2 * bins)


def base_cost(synchroniser: Synchroniser, x: np.ndarray) -> dict[str, float]:
    """The redundancy of base PMATIC with its fixed helper probability."""
    return synchroniser.redundancy(x, helper=base_share(synchroniser))
