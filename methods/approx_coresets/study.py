"""What the study measures: one function a kind of row, each a pure function of its arguments and seed.

`excess` is cost(P, S) / OPT(P) - 1 for the solution S that a solver found on the summary; `factor` the same without
the 1 taken off. Where OPT is unknown it is the best cost that anything in the study reached, so excesses are computed
when all rows are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.cluster import KMeans, MiniBatchKMeans

from methods.approx_coresets.audit import FITTED, audit, by_band, solution_bank
from methods.approx_coresets.coreset import ApproxCoreset
from methods.approx_coresets.exact import line_optimum
from methods.approx_coresets.solvers import swap_medoids
from methods.approx_coresets.space import Dense, Floats, Ints
from methods.approx_coresets.summaries import birch_points, tree_points, voronoi_summary

Row = dict[str, Any]
Summary = tuple[Floats, Floats]

# Parameters of `ApproxCoreset` by the name of the method in tables.
SAMPLED: Mapping[str, Mapping[str, Any]] = {
    "four_term": {},
    "two": {"scores": "two"},
    "lightweight": {"scores": "lightweight"},
    "uniform": {"scores": "uniform"},
    "group": {"method": "group", "init_factor": 2},
    "residual": {"weights": "residual"},
    "normalised": {"weights": "normalised"},
    "voronoi": {"weights": "voronoi"},
    # Ablations of the rough solution A.
    "four_term_lloyd1": {"init_lloyd": 1},
    "four_term_2k": {"init_factor": 2},
    "four_term_parallel": {"init": "k-means||"},
    "four_term_random": {"init": "random"},
}
STARTS = 5  # of the solver on a summary


def summarise(name: str, X: Floats, k: int, size: int, state: int) -> Summary:
    """A summary of `size` points by any method of the study: points and weights."""
    if name in SAMPLED:
        made = ApproxCoreset(k, size=size, random_state=state, **SAMPLED[name]).fit(X)
        return made.points_, made.weights_
    if name == "tree":
        return tree_points(X, size, state)
    if name == "tree_means":
        summary = voronoi_summary(X, tree_points(X, size, state)[0])
        return summary.points, summary.weights
    if name == "sampled_means":
        points, _ = summarise("four_term", X, k, size, state)
        summary = voronoi_summary(X, points)
        return summary.points, summary.weights
    if name == "birch":
        order = np.random.default_rng(state).permutation(len(X))  # the tree depends on the order of the rows
        return birch_points(X[order], size)
    raise ValueError(f"summary {name!r} is not known")


def solve(summary: Summary, k: int, state: int) -> tuple[Floats, float]:
    """The solver's centres on a summary and their cost there."""
    points, weights = summary
    solver = KMeans(k, n_init=STARTS, random_state=state).fit(points, sample_weight=weights)
    centres = np.asarray(solver.cluster_centers_, dtype=np.float64)
    return centres, Dense(points, 2).cost(centres, weights)


# -- exact optima on a line --------------------------------------------------------------------------------------------


LINES = ("separated", "normal", "lognormal")


def line_points(kind: str, n: int, k: int, random: np.random.Generator) -> Floats:
    """`separated`: k equal clusters of spread 1, 5 apart; `normal`, `lognormal`: no clusters at all."""
    if kind == "separated":
        return np.asarray(random.normal(size=n) + 5.0 * random.integers(0, k, size=n))
    return random.normal(size=n) if kind == "normal" else random.lognormal(size=n)


def line_rows(
    kind: str, z: int, state: int, methods: Sequence[str], sizes: Sequence[int], n: int
) -> list[Row]:
    """Optimum of each coreset against the optimum of all points, both exact (5 centres)."""
    k = 5
    x = line_points(kind, n, k, np.random.default_rng(state))
    best, _ = line_optimum(x, k, z=z)
    rows = []
    for name in methods:
        factors = {}
        for size in sizes:
            omega = ApproxCoreset(k, size=size, z=z, random_state=state, **SAMPLED[name]).fit(x[:, None])
            _, found = line_optimum(omega.points_, k, omega.weights_, z)
            factors[str(size)] = Dense(x[:, None], z).cost(found[:, None]) / best
        rows.append({"part": "line", "kind": kind, "method": name, "z": z, "seed": state, "factors": factors})
    return rows


# -- instances that tell methods apart --------------------------------------------------------------------------------


def skewed_mixture(state: int, d: int = 10) -> tuple[Floats, Ints]:
    """Twenty clusters of 20,000 down to 10 points and twenty outliers in one place 2,000 away; with planted labels."""
    random = np.random.default_rng(state)
    sizes = np.rint(np.geomspace(20_000, 10, 20)).astype(int)
    centres = random.normal(size=(20, d)) * 20
    parts = [random.normal(size=(n, d)) + c for n, c in zip(sizes, centres, strict=True)]
    far = np.zeros(d)
    far[0] = 2000.0
    parts.append(random.normal(size=(20, d)) + far)
    labels = np.repeat(np.arange(21), [*sizes, 20])
    return np.concatenate(parts), labels


def planted_cost(X: Floats, labels: Any) -> float:
    means = np.stack([X[labels == i].mean(axis=0) for i in range(int(labels.max()) + 1)])
    return Dense(X, 2).cost(means)


def skewed_rows(state: int, methods: Sequence[str], sizes: Sequence[int]) -> list[Row]:
    """Cost of the solution found on each summary, relative to the planted clustering."""
    X, labels = skewed_mixture(state)
    planted = planted_cost(X, labels)
    rows: list[Row] = []
    for name in methods:
        for size in sizes:
            centres, _ = solve(summarise(name, X, 21, size, state), 21, state)
            factor = Dense(X, 2).cost(centres) / planted
            rows.append({"part": "skewed", "method": name, "size": size, "seed": state, "factor": factor})
    return rows


def hard_instance(k: int, alpha: int, beta: float = 1.0) -> Floats:
    """The authors' hard instance: k^alpha rows, alpha blocks of k columns; each block alone is an optimal clustering.

    Block a of row r has (k - 1) / k in column floor(r / k^a) mod k and -1 / k elsewhere, times beta^-a.
    """
    n = k**alpha
    blocks = []
    for a in range(alpha):
        block = np.full((n, k), -1.0 / k)
        block[np.arange(n), np.arange(n) // k**a % k] = (k - 1) / k
        blocks.append(block * beta**-a)
    return np.concatenate(blocks, axis=1)


def block_solutions(k: int, alpha: int, beta: float = 1.0) -> list[Floats]:
    """The alpha clusterings by one block each."""
    X, rows = hard_instance(k, alpha, beta), np.arange(k**alpha)
    found = []
    for a in range(alpha):
        labels = rows // k**a % k
        found.append(np.stack([X[labels == i].mean(axis=0) for i in range(k)]))
    return found


def hard_rows(k: int, alpha: int, state: int, methods: Sequence[str], sizes: Sequence[int]) -> list[Row]:
    """Error on the optimal clusterings, and the solver's factor on the summary and on all points."""
    X = hard_instance(k, alpha)
    best = (alpha - 1) * (k - 1) * len(X) / k
    blocks = block_solutions(k, alpha)
    exact = [Dense(X, 2).cost(S) for S in blocks]
    full = KMeans(k, n_init=STARTS, random_state=state).fit(X).inertia_ / best
    rows: list[Row] = []
    for name in methods:
        for size in sizes:
            summary = summarise(name, X, k, size, state)
            errors = [abs(Dense(summary[0], 2).cost(S, summary[1]) / best - 1) for S in blocks]
            centres, _ = solve(summary, k, state)
            rows.append(
                {
                    "part": "hard",
                    "alpha": alpha,
                    "method": name,
                    "size": size,
                    "seed": state,
                    "off_formula": max(abs(cost / best - 1) for cost in exact),
                    "good_error": max(errors),
                    "factor": Dense(X, 2).cost(centres) / best,
                    "full_factor": float(full),
                }
            )
    return rows


# -- real data ---------------------------------------------------------------------------------------------------------


def reference(
    X: Floats, k: int, runs: int, each: int, state: int = 0
) -> tuple[dict[str, Floats], dict[str, float]]:
    """Full-data solutions and the bank of the audit, each with its cost on all points.

    Kinds of the bank: `good` (within 1.02 of the best), `seeds` (k-means++ alone), `bad` (everything else).
    """
    space = Dense(X, 2)
    bank: dict[str, Floats] = {}
    for i in range(runs):
        bank[f"full/{i}"] = np.asarray(KMeans(k, n_init=1, random_state=state + i).fit(X).cluster_centers_)
    rows = np.random.default_rng(state).choice(len(X), min(len(X), 15_000), replace=False)
    for name, centres in solution_bank(X[rows], k, each=each, random_state=state).items():
        kind = name.partition("/")[0]
        bank[f"seeds/{name}" if kind == "seeds" else f"other/{name}"] = centres
    return bank, {name: space.cost(S) for name, S in bank.items()}


def real_row(
    X: Floats,
    k: int,
    name: str,
    size: int,
    state: int,
    bank: Mapping[str, Floats],
    costs: Mapping[str, float],
    given: Summary | None = None,
) -> Row:
    """One summary of real data, or a given one: the solver's solution on it, and its errors on the bank.

    The row holds costs, not factors: the best known cost may come from another row.
    """
    summary = given or summarise(name, X, k, size, state)
    centres, on_omega = solve(summary, k, state)
    full = Dense(X, 2).cost(centres)
    small = Dense(summary[0], 2)
    kept = {one: small.cost(S, summary[1]) for one, S in bank.items()}
    return {
        "part": "real",
        "method": name,
        "size": size,
        "kept": len(summary[1]),
        "seed": state,
        "cost": full,
        "cost_on_summary": on_omega,
        "errors": {one: abs(cost / costs[one] - 1) for one, cost in kept.items()},
        "best_on_summary": min(on_omega, *kept.values()),
    }


def audit_row(X: Floats, k: int, size: int, state: int, bank: Mapping[str, Floats], best: float) -> Row:
    """The audit of one coreset by bands of solutions, those fitted on it among them."""
    omega = ApproxCoreset(k, size=size, random_state=state).fit(X)
    fitted = {}
    for i in range(STARTS):
        centres, _ = solve((omega.points_, omega.weights_), k, 100 * state + i)
        fitted[f"{FITTED}/{i}"] = centres
    table = audit(X, omega, {**bank, **fitted})
    bands = by_band(table)
    mine = table[table.kind == FITTED]
    return {
        "part": "audit",
        "size": size,
        "seed": state,
        "rho_good": float(table[table.good].rho.max()),
        "rho_all": float(table.rho.max()),
        "rho_fitted": float(mine.rho.max()),
        "optimism": float((mine.cost_full / mine.cost_coreset).mean()),
        "bands": {str(b): {c: float(v) for c, v in row.items()} for b, row in bands.iterrows()},
        "best": min(best, float(table.attrs["opt_full"])),
    }


def stream_row(X: Floats, k: int, size: int, parts: int, state: int, order: int) -> Row:
    """The same size by a stream of parts, in an order of the parts."""
    pieces = np.array_split(np.arange(len(X)), parts)
    made = ApproxCoreset(k, size=size, random_state=state)
    for i in np.random.default_rng(order).permutation(parts):
        made.partial_fit(X[pieces[i]])
    centres, _ = solve((made.points_, made.weights_), k, state)
    return {
        "part": "stream",
        "size": size,
        "seed": state,
        "order": order,
        "kept": len(made.weights_),
        "cost": Dense(X, 2).cost(centres),
    }


def metric_row(D: Floats, k: int, sizes: Sequence[int], state: int) -> Row:
    """Medoids by weighted swaps on a coreset of a distance matrix against swaps on all of it; z = 1."""

    def best(matrix: Floats, weights: Any) -> Any:
        starts = (swap_medoids(matrix, k, weights, random_state=10 * state + i) for i in range(3))
        return min(starts, key=lambda found: found[1])[0]

    full = float(D[:, best(D, None)].min(axis=1).sum())
    factors = {}
    for size in sizes:
        omega = ApproxCoreset(k, size=size, z=1, metric="precomputed", random_state=state).fit(D)
        rows = omega.indices_[best(omega.points_, omega.weights_)]
        factors[str(size)] = float(D[:, rows].min(axis=1).sum()) / full
    return {"part": "metric", "seed": state, "factors": factors}


def solver_row(X: Floats, k: int, state: int, data: str, planted: float | None = None) -> Row:
    """Solvers of all points, five starts each: costs, or factors of the planted cost."""
    found = {
        "k_means": KMeans(k, n_init=STARTS, random_state=state).fit(X),
        "mini_batch": MiniBatchKMeans(k, n_init=STARTS, random_state=state).fit(X),
    }
    costs = {name: Dense(X, 2).cost(np.asarray(one.cluster_centers_)) for name, one in found.items()}
    own = solve(summarise("four_term", X, k, min(100 * k, len(X)), state), k, state)[0]
    costs["four_term"] = Dense(X, 2).cost(own)
    scale = planted or 1.0
    return {"part": "solvers", "data": data, "seed": state} | {n: cost / scale for n, cost in costs.items()}


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Of log(value) against log(size)."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


Unit = tuple[str, Callable[[], list[Row]]]
