"""How far a coreset's answers are off, for good solutions and for all: an estimate, never a certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.cluster import BisectingKMeans, KMeans, MiniBatchKMeans, kmeans_plusplus
from sklearn.utils import check_random_state

from methods.approx_coresets.clusterer import _solvable, centres_of
from methods.approx_coresets.coreset import ApproxCoreset
from methods.approx_coresets.solvers import WeightedKMedian, swap_medoids
from methods.approx_coresets.space import Floats, space_of
from methods.common.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

BANDS = ((1.05, "up to 1.05"), (1.5, "1.05 to 1.5"), (3.0, "1.5 to 3"), (np.inf, "above 3"))
FITTED = "on the coreset"  # kind of the solutions that depend on Omega


def band(factor: float) -> str:
    """The name of an approximation factor's band."""
    return next(name for limit, name in BANDS if factor <= limit or limit == np.inf)


def audit(
    X: Any,
    coreset: Any,
    solutions: Mapping[str, Any] | Sequence[Any],
    *,
    sample_weight: Any = None,
    opt_full: float | None = None,
    opt_coreset: float | None = None,
    gamma: float = 2.0,
) -> pd.DataFrame:
    """Each solution's cost on the data and on the coreset, its distortion, and rho.

    rho = [cost(P, S) / OPT(P)] / [cost(Omega, S) / OPT(Omega)]: what the coreset makes of the approximation factor. It
    is 1 + eps or less on every solution within gamma of OPT(Omega) when the coreset is approximation preserving.

    The optima are unknown: without `opt_full` and `opt_coreset` the best of the given solutions stands in, so give
    solutions of equal effort for both sides, those fitted on Omega among them (`solution_bank`): solutions that do not
    depend on Omega flatter it.

    Args:
        X: the data, `(n, d)`, or `(n, n)` distances.
        coreset: a fitted `ApproxCoreset`, or a pair (points `(m, d)`, weights `(m,)`) of any other summary.
        solutions: name -> centres `(j, d)` (row numbers `(j,)` for distances), or a sequence of centres. A name
            "kind/anything" puts the solution in the group `kind`.
        sample_weight: `(n,)` the data's weights.
        opt_full, opt_coreset: best known costs.
        gamma: solutions within this factor of OPT(Omega) are good.

    Returns:
        one row a solution: solution, kind, band (of its factor on the data), cost_full, cost_coreset, factor_full,
        factor_coreset, error (|cost(Omega, S) / cost(P, S) - 1|), distortion (the larger of the ratio and its
        inverse), rho, good; `.attrs` holds the optima and says "estimate".

    Raises:
        ConfigError: gamma below 1.
        DataError: no solution.
    """
    import pandas as pd

    if not gamma >= 1:
        raise ConfigError(f"gamma={gamma}: give a factor of at least 1")
    named = (
        dict(solutions) if isinstance(solutions, Mapping) else {f"S{i}": s for i, s in enumerate(solutions)}
    )
    if not named:
        raise DataError("solutions: give at least one set of centres")
    weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    if isinstance(coreset, ApproxCoreset):
        z, metric, small = coreset.z, coreset.metric, coreset._space(coreset.points_)
        masses, rows_of = coreset.weights_, coreset.indices_
    else:
        z, metric = 2.0, "euclidean"
        small, masses = space_of(np.asarray(coreset[0]), z), np.asarray(coreset[1], dtype=np.float64)
    space = space_of(X, z, metric=metric)
    rows = []
    for name, centres in named.items():
        S = np.asarray(centres)
        if metric == "precomputed":
            on_omega = float(masses @ np.asarray(X[rows_of][:, S]).min(axis=1) ** z)
        else:
            on_omega = small.cost(np.asarray(S, dtype=np.float64), masses)
        rows.append((name, name.partition("/")[0], space.cost(S, weights), on_omega))
    full, omega = np.asarray([r[2] for r in rows]), np.asarray([r[3] for r in rows])
    best_full = float(full.min()) if opt_full is None else float(opt_full)
    best_omega = float(omega.min()) if opt_coreset is None else float(opt_coreset)
    factor_full, factor_omega = _over(full, best_full), _over(omega, best_omega)
    ratio = _over(omega, full)
    table = pd.DataFrame(
        {
            "solution": [r[0] for r in rows],
            "kind": [r[1] for r in rows],
            "band": [band(float(f)) for f in factor_full],
            "cost_full": full,
            "cost_coreset": omega,
            "factor_full": factor_full,
            "factor_coreset": factor_omega,
            "error": np.abs(ratio - 1),
            "distortion": np.maximum(ratio, _over(full, omega)),
            "rho": _over(factor_full, factor_omega),
            "good": factor_omega <= gamma,
        }
    )
    table.attrs.update(opt_full=best_full, opt_coreset=best_omega, gamma=gamma, note="estimate")
    return table


def _over(above: Any, below: Any) -> Floats:
    """A ratio of costs in which nothing over nothing is 1."""
    above, below = np.broadcast_arrays(np.asarray(above, dtype=float), np.asarray(below, dtype=float))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = above / below
    return np.where((above == 0) & (below == 0), 1.0, found)


def by_band(audited: pd.DataFrame) -> pd.DataFrame:
    """The audit in a few lines: largest error and rho in each band of solutions, best band first."""
    order = [name for _, name in BANDS]
    groups = audited.groupby("band")
    table = groups.agg(
        solutions=("rho", "size"),
        error_mean=("error", "mean"),
        error_max=("error", "max"),
        rho_mean=("rho", "mean"),
        rho_max=("rho", "max"),
    )
    return table.reindex([name for name in order if name in table.index])


def solution_bank(
    X: Any, n_clusters: int, *, each: int = 5, z: float = 2, random_state: Any = None
) -> dict[str, Floats]:
    """Solutions of every quality that do not depend on a coreset, named "kind/number".

    Kinds: `seeds` (k-means++ alone), `lloyd` (converged), `bisecting`, `mini-batch`, `perturbed` (converged centres
    with noise of growing size), `swapped` (one centre of a converged set put on a far point), `random` (random rows).
    """
    random = check_random_state(random_state)
    X = np.asarray(X)
    k, state = n_clusters, lambda: int(random.randint(2**31 - 1))
    bank: dict[str, Floats] = {}
    spread = X.std(axis=0)
    for i in range(each):
        bank[f"seeds/{i}"] = kmeans_plusplus(X, k, random_state=state())[0]
        solver = (
            KMeans(k, n_init=1, random_state=state())
            if z == 2
            else WeightedKMedian(k, z=z, n_init=1, random_state=state())
        )
        good = np.asarray(solver.fit(X).cluster_centers_)
        bank[f"lloyd/{i}"] = good
        noise = spread * 2.0 ** (i - each + 1)
        bank[f"perturbed/{i}"] = good + random.normal(size=good.shape) * noise
        moved = good.copy()
        moved[random.randint(k)] = X[random.randint(len(X))]
        bank[f"swapped/{i}"] = moved
        batch = MiniBatchKMeans(k, n_init=1, max_iter=3, random_state=state())
        bank[f"mini-batch/{i}"] = np.asarray(batch.fit(X).cluster_centers_)
        bank[f"random/{i}"] = np.asarray(X[random.choice(len(X), k, replace=False)], dtype=np.float64)
    bank["bisecting/0"] = np.asarray(BisectingKMeans(k, random_state=state()).fit(X).cluster_centers_)
    return bank


def coreset_solutions(
    coreset: ApproxCoreset, *, each: int = 5, estimator: Any = None, random_state: Any = None
) -> dict[str, Any]:
    """Solutions fitted on the coreset, named "on the coreset/number": the ones that may exploit its errors.

    In a distance matrix these are row numbers of the data.
    """
    random = check_random_state(random_state)
    found = {}
    for i in range(each):
        state = int(random.randint(2**31 - 1))
        if coreset.metric == "precomputed":
            chosen, _ = swap_medoids(
                coreset.points_, coreset.n_clusters, coreset.weights_, z=coreset.z, random_state=state
            )
            found[f"{FITTED}/{i}"] = coreset.indices_[chosen]
            continue
        if estimator is not None:
            solver = estimator
        elif coreset.z == 2:
            solver = KMeans(coreset.n_clusters, n_init=1)
        else:
            solver = WeightedKMedian(coreset.n_clusters, z=coreset.z, n_init=1)
        solver = solver.set_params(random_state=state)
        solver.fit(_solvable(coreset.points_), sample_weight=coreset.weights_)
        found[f"{FITTED}/{i}"] = centres_of(solver, coreset)
    return found
