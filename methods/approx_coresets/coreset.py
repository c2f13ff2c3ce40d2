"""`ApproxCoreset`: a small weighted part of the data, whose good solutions are good solutions of all of it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from methods.approx_coresets import sampling
from methods.approx_coresets.parts import Part, dense, joined, plain, relative_variance, rows_of, with_extra
from methods.approx_coresets.seeding import Seeds, seed
from methods.approx_coresets.settings import checked_size
from methods.approx_coresets.space import Floats, Ints, Space, space_of
from methods.common.checks import check_powers
from methods.common.errors import ConfigError, DataError


@dataclass
class _Built:
    """What one construction gives."""

    points: Any
    weights: Floats
    indices: Ints
    probabilities: Floats
    seeds: Seeds | None
    variance: float = math.nan
    seed_cost: float = math.nan


class ApproxCoreset(BaseEstimator):
    """Sensitivity sampling, read as an approximation-preserving coreset (Prabhu, Schwiegelshohn, Shyam 2026).

    Omega is approximation preserving when every solution S that is good on it stays good:
    `[cost(P, S) / OPT(P)] / [cost(Omega, S) / OPT(Omega)] <= 1 + eps` for all S with at most k centres and
    cost(Omega, S) <= gamma OPT(Omega). A beta-approximation found on Omega is then a (1 + eps) beta approximation.
    `cost(P, S)` is the sum of `v_p d(p, S)^z`.

    Args:
        n_clusters: k, the largest number of centres that will be asked of it.
        size: points to draw; None takes `coreset_size(n_clusters, eps, size_rule)`.
        eps: accuracy from which the size follows, in (0, 1).
        size_rule: "practice" (empirical) or "theory" (the statements' sizes, constants set to 1).
        z: power of the distance: 2 is k-means, 1 is k-median, any other of at least 1 is allowed.
        method: "sensitivity" or "group" sampling.
        scores: how likely a point is drawn: "four_term", "two", "lightweight", "uniform" (sensitivity sampling only).
        weights: "importance" (unbiased), "normalised" (they sum to the data's mass), "residual" (centres carry what is
            missing of their cluster) or "voronoi" (the mass nearest to each point: better solutions, no guarantee).
        init: the rough solution A: "k-means++" (k passes over the data), "k-means||" (seven passes), "random", or
            centres `(K, d)`.
        init_factor: centres of A as a multiple of k.
        init_lloyd: improvement steps of A.
        merge_duplicates: draws of one point become one point with their weights added; else each stays.
        metric: "euclidean", or "precomputed": X is a matrix of distances, centres are points.
        reduce_factor: in a stream, points of each node of the tree as a multiple of the size.
        chunk_size: rows that are looked at at once.
        random_state: seed.

    Attributes:
        points_: `(m', d)`, in a distance matrix `(m', m')`: Omega.
        weights_: `(m',)` its weights.
        indices_: `(m',)` its rows in the data, -1 for a centre that is no row; in a stream, counted from its start.
        probabilities_: `(n,)` how likely a draw was each row (of the last batch's tree in a stream).
        centers_: `(K, d)` the rough solution A; its indices in a distance matrix; None where none was needed.
        seed_cost_: cost of A on the data; NaN where there is none.
        size_: points that were asked for; `len(weights_)` is what is left after equal draws were merged.
        n_seen_: rows seen.
        ess_: (sum w)^2 / sum w^2, the effective number of points.
        mass_ratio_: sum w over the data's mass; 1 in the mean.
        relative_variance_: expected variance of cost(Omega, A) relative to its square.
        guarantee_: what may be claimed of this coreset, in words.

    Raises:
        ConfigError: a parameter out of its range.
        DataError: fewer rows than clusters, negative weights, distances that are none.
        ValueError: scikit-learn's own checks (1-D, NaN, strings, no rows; weights of another length or all zero).
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        size: int | None = None,
        eps: float = 0.1,
        size_rule: str = "practice",
        z: float = 2,
        method: str = "sensitivity",
        scores: str = "four_term",
        weights: str = "importance",
        init: Any = "k-means++",
        init_factor: int = 1,
        init_lloyd: int = 0,
        merge_duplicates: bool = True,
        metric: str = "euclidean",
        reduce_factor: int = 4,
        chunk_size: int = 8192,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.size = size
        self.eps = eps
        self.size_rule = size_rule
        self.z = z
        self.method = method
        self.scores = scores
        self.weights = weights
        self.init = init
        self.init_factor = init_factor
        self.init_lloyd = init_lloyd
        self.merge_duplicates = merge_duplicates
        self.metric = metric
        self.reduce_factor = reduce_factor
        self.chunk_size = chunk_size
        self.random_state = random_state

    # -- building ----------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> ApproxCoreset:
        """Build Omega from all of X.

        Args:
            X: `(n, d)` array, memory map or tensor on the CPU; CSR when z = 2; `(n, n)` distances when precomputed.
            y: ignored.
            sample_weight: `(n,)` v, not negative; None for ones.
        """
        size = checked_size(self)
        X, weights = self._check_data(X, sample_weight, reset=True)
        if X.shape[0] < self.n_clusters:
            raise DataError(
                f"n_samples={X.shape[0]} should be >= n_clusters={self.n_clusters}; give more rows or fewer clusters"
            )
        built = self._build(X, weights, size, check_random_state(self.random_state))
        self._parts = [Part(0 if size >= X.shape[0] else 1, built.points, built.weights, built.indices)]
        self._random = check_random_state(self.random_state)
        self._finish(built, size, X.shape[0], float(X.shape[0] if weights is None else weights.sum()))
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> ApproxCoreset:
        """Take in further rows: merge and reduce along a binary tree, so that memory grows with the logarithm of them.

        Small batches are gathered first. Nodes of the tree keep `reduce_factor` times the size, because errors add up
        from level to level.
        """
        first = not hasattr(self, "_parts")
        size = checked_size(self)
        if self.metric == "precomputed":
            raise ConfigError("metric='precomputed': a stream of distance matrices cannot be joined; use fit")
        if not isinstance(self.init, str):
            raise ConfigError("init: a stream needs a rule ('k-means++'), not fixed centres")
        X, weights = self._check_data(X, sample_weight, reset=first)
        if first:
            self._parts, self._random, self.n_seen_, self._mass = (
                [],
                check_random_state(self.random_state),
                0,
                0.0,
            )
        n = X.shape[0]
        mass = np.ones(n) if weights is None else weights
        kept = self.reduce_factor * size
        rows = np.arange(self.n_seen_, self.n_seen_ + n)
        if n > kept:
            self._parts.append(self._reduced(Part(0, X, mass, rows), kept))
        else:
            some = np.flatnonzero(mass > 0)  # rows of one's own: the caller may use the batch's memory again
            self._parts.append(Part(0, X[some], mass[some], rows[some]))
        self._carry(kept)
        self._finish_stream(size, n, float(mass.sum()))
        return self

    def merge(self, other: ApproxCoreset) -> ApproxCoreset:
        """A new coreset of both coresets' data: all points of both, their weights kept. Neither is changed.

        Rows of `other` count from the end of this one's. `reduce()` makes the union small again.
        """
        check_is_fitted(self, "weights_")
        check_is_fitted(other, "weights_")
        if self.metric == "precomputed" or other.metric == "precomputed":
            raise ConfigError("metric='precomputed': coresets of two distance matrices cannot be joined")
        if self.z != other.z:
            raise ConfigError(f"z={other.z}: this coreset is for z={self.z}; merge coresets of one power")
        if self.n_features_in_ != other.n_features_in_:
            raise DataError(
                f"the coresets have {self.n_features_in_} and {other.n_features_in_} columns; merge parts of one table"
            )
        merged = type(self)(**self.get_params(deep=False))
        merged.n_features_in_ = self.n_features_in_
        merged._random = check_random_state(self.random_state)
        moved = [
            Part(p.level, p.points, p.weights, np.where(p.indices < 0, -1, p.indices + self.n_seen_))
            for p in other._parts
        ]
        merged._parts = [*self._parts, *moved]
        merged.n_seen_, merged._mass = self.n_seen_ + other.n_seen_, self._mass + other._mass
        whole = joined(merged._parts)
        merged._set(whole.points, whole.weights, whole.indices, checked_size(merged))
        merged.centers_, merged.seed_cost_, merged.relative_variance_ = None, math.nan, math.nan
        merged.probabilities_ = np.empty(0)
        return merged

    def reduce(self, size: int | None = None) -> ApproxCoreset:
        """Sample this coreset again down to `size` points (None: the size of its parameters), in place."""
        check_is_fitted(self, "weights_")
        wanted = checked_size(self) if size is None else int(size)
        if wanted < 1:
            raise ConfigError(f"size={size}: give at least 1")
        whole = joined(self._parts)
        if len(whole.weights) > wanted:
            whole = self._reduced(whole, wanted)
        self._parts = [whole]
        self._set(whole.points, whole.weights, whole.indices, wanted)
        return self

    # -- using -------------------------------------------------------------------------------------------------------

    def cost(self, centers: Any) -> float:
        """cost(Omega, S), an estimate of cost(P, S).

        Args:
            centers: `(j, d)`; in a distance matrix row numbers of the data, all of them points of Omega.
        """
        check_is_fitted(self, "weights_")
        if self.metric == "precomputed":
            place = {int(row): i for i, row in enumerate(self.indices_)}
            missing = [int(row) for row in np.asarray(centers) if int(row) not in place]
            if missing:
                raise DataError(f"centers: row {missing[0]} is no point of the coreset; use rows of indices_")
            centers = np.asarray([place[int(row)] for row in np.asarray(centers)])
        else:
            centers = np.asarray(centers, dtype=np.float64)
            if centers.ndim != 2 or centers.shape[1] != self.n_features_in_ or not len(centers):
                raise DataError(f"centers: shape {centers.shape}; give (any, {self.n_features_in_})")
            if not np.isfinite(centers).all():
                raise DataError("centers: some hold NaN or infinity; give finite ones")
        return self._space(self.points_).cost(centers, self.weights_)

    def save(self, path: str | Path) -> Path:
        """Write Omega and how it was made as .npz; nothing in it is pickled."""
        check_is_fitted(self, "weights_")
        params = self.get_params(deep=False)
        if not isinstance(params["init"], str):
            params["init"] = "k-means++"
        if not (params["random_state"] is None or isinstance(params["random_state"], int)):
            params["random_state"] = None
        points = self.points_.toarray() if sparse.issparse(self.points_) else self.points_
        told = {
            "params": params,
            "n_seen": self.n_seen_,
            "mass": self._mass,
            "guarantee": self.guarantee_,
            "columns": int(self.n_features_in_),
            "level": max(part.level for part in self._parts),
        }
        target = Path(path)
        with target.open("wb") as stream:
            np.savez(
                stream,
                points=points,
                weights=self.weights_,
                indices=self.indices_,
                about=np.frombuffer(json.dumps(told, default=plain).encode(), dtype=np.uint8),
            )
        return target

    @classmethod
    def load(cls, path: str | Path) -> ApproxCoreset:
        """What `save` wrote; it can be used, merged and go on with `partial_fit`.

        Raises:
            DataError: no such file, or not a coreset.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                told = json.loads(arrays["about"].tobytes())
                points, weights, indices = (arrays[name] for name in ("points", "weights", "indices"))
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such file") from None
        except (KeyError, ValueError, OSError, EOFError) as error:
            raise DataError(f"{path} is not a saved coreset ({error}); write one with save") from error
        made = cls(**told["params"])
        made.n_features_in_ = told["columns"]
        made.n_seen_, made._mass = told["n_seen"], told["mass"]
        # Not the numbers again by which it was drawn.
        fresh = None if made.random_state is None else [made.random_state, told["n_seen"]]
        made._random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(fresh)))
        made._parts = [Part(told["level"], points, weights, indices)]
        made._set(points, weights, indices, checked_size(made))
        made.centers_, made.seed_cost_, made.relative_variance_ = None, math.nan, math.nan
        made.probabilities_, made.guarantee_ = np.empty(0), told["guarantee"]
        return made

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.z == 2 and self.metric == "euclidean"
        tags.input_tags.pairwise = self.metric == "precomputed"
        return tags

    # -- inside ------------------------------------------------------------------------------------------------------

    def _check_data(self, X: Any, sample_weight: Any, reset: bool) -> tuple[Any, Floats | None]:
        if sparse.issparse(X) and self.z != 2:
            raise ConfigError(f"z={self.z}: sparse rows serve k-means (z=2) only; give a dense array")
        X = validate_data(
            self,
            X,
            accept_sparse="csr" if self.metric == "euclidean" else False,
            dtype="numeric",
            reset=reset,
        )
        check_powers("X", X, max(2.0, float(self.z)), np.float64)
        if self.metric == "precomputed":
            if X.shape[0] != X.shape[1]:
                raise DataError(f"X: shape {X.shape}; precomputed distances are a square matrix")
            if (X < 0).any():
                raise DataError("X: precomputed distances hold a negative number; give distances")
        weights = None
        if sample_weight is not None:
            try:
                weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
            except (TypeError, ValueError) as error:
                raise DataError(f"sample_weight: {str(error).splitlines()[0]}") from error
            if (weights < 0).any():
                raise DataError("sample_weight: holds a negative number; weights are 0 or more")
        return X, weights

    def _space(self, X: Any) -> Space:
        return space_of(X, self.z, self.chunk_size, self.metric)

    def _build(
        self,
        X: Any,
        weights: Floats | None,
        size: int,
        random: np.random.RandomState,
        weigh: str | None = None,
    ) -> _Built:
        """Steps 1 to 5 on some points."""
        n = X.shape[0]
        kind = weigh or self.weights
        if size >= n:
            own = np.ones(n) if weights is None else weights.copy()
            kept = np.flatnonzero(own > 0)
            return _Built(
                rows_of(X, kept, self.metric),
                own[kept],
                kept,
                np.ones(n) if weights is None else own / own.sum(),
                None,
            )
        space = self._space(X)
        seeds = None
        if self.method == "group" or self.scores in ("four_term", "two") or kind == "residual":
            # One centre more than points would leave nothing to draw.
            k = max(1, min(self.init_factor * self.n_clusters, n))
            seeds = seed(space, weights, k, self.init, self.init_lloyd, random)
        if self.method == "group":
            assert seeds is not None
            taken = sampling.group_sample(seeds, weights, size, self.merge_duplicates, random)
            q = np.full(n, np.nan)
        elif kind == "residual":
            assert seeds is not None
            taken = sampling.residual(seeds, weights, size, self.merge_duplicates, random)
            spent = seeds.costs if weights is None else seeds.costs * weights
            q = spent / max(float(spent.sum()), np.finfo(float).tiny)
        else:
            q = (
                sampling.plain_scores(self.scores, space, weights)
                if seeds is None
                else sampling.cluster_scores(self.scores, seeds, weights)
            )
            taken = sampling.sample(q, weights, size, self.merge_duplicates, random)
        points = (
            rows_of(X, taken.indices, self.metric) if (taken.indices >= 0).all() else with_extra(X, taken)
        )
        found = taken.weights
        if kind == "normalised":
            found = found * ((n if weights is None else weights.sum()) / found.sum())
        elif kind == "voronoi":
            near, _ = space.nearest(taken.indices if space.metric else dense(points))
            found = np.bincount(near, weights=weights, minlength=len(found)).astype(np.float64)
        keep = found > 0
        if not keep.all():
            points = points[keep][:, keep] if self.metric == "precomputed" else points[keep]
            found, taken.indices = found[keep], taken.indices[keep]
        made = _Built(points, found, taken.indices, q, seeds)
        if seeds is not None:
            made.seed_cost = float(seeds.costs.sum() if weights is None else seeds.costs @ weights)
            if self.method == "sensitivity" and kind in ("importance", "normalised"):
                made.variance = relative_variance(q, seeds, weights, size)
        return made

    def _reduced(self, part: Part, size: int) -> Part:
        # Between levels the weights must stay unbiased; only what is handed out is weighed as asked.
        weigh = self.weights if self.weights in ("residual", "voronoi") else "importance"
        built = self._build(part.points, part.weights, size, self._random, weigh)
        indices = np.where(built.indices < 0, -1, part.indices[built.indices])
        return Part(part.level + 1, built.points, built.weights, indices)

    def _carry(self, kept: int) -> None:
        """Join parts of one level until no two are left; whole batches below the size are joined as they are."""
        self._parts.sort(key=lambda part: -part.level)
        while len(self._parts) > 1:
            last, before = self._parts[-1], self._parts[-2]
            if before.level > last.level and len(last.weights) + len(before.weights) > kept:
                break
            self._parts[-2:] = [joined([before, last])]
            if len(self._parts[-1].weights) > kept:
                self._parts[-1] = self._reduced(self._parts[-1], kept)

    def _finish_stream(self, size: int, rows: int, mass: float) -> None:
        whole = joined(self._parts)
        # One number of the stream's chance, however many the draw takes: a coreset that is looked at changes nothing.
        random = np.random.RandomState(self._random.randint(2**31 - 1))
        built = self._build(whole.points, whole.weights, size, random)
        built.indices = np.where(built.indices < 0, -1, whole.indices[built.indices])
        self._finish(built, size, self.n_seen_ + rows, self._mass + mass)

    def _finish(self, built: _Built, size: int, seen: int, mass: float) -> None:
        self.n_seen_, self._mass = seen, mass
        self._set(built.points, built.weights, built.indices, size)
        self.probabilities_ = built.probabilities
        self.centers_ = None if built.seeds is None else built.seeds.centres
        self.relative_variance_ = built.variance
        self.seed_cost_ = built.seed_cost

    def _set(self, points: Any, weights: Floats, indices: Ints, size: int) -> None:
        self.points_, self.weights_, self.indices_ = points, weights, np.asarray(indices)
        self.size_ = size
        self.ess_ = float(weights.sum() ** 2 / (weights @ weights))
        self.mass_ratio_ = float(weights.sum() / self._mass)
        self.guarantee_ = self._told(size)

    def _told(self, size: int) -> str:
        if len(self.weights_) >= self.n_seen_:
            return "all points are kept: every cost is exact"
        rule = (
            f"size {size} given" if self.size is not None else f"size {size} by the rule '{self.size_rule}'"
        )
        if self.weights in ("voronoi", "normalised"):
            return f"{rule}; weights '{self.weights}' are biased: no guarantee, measure with audit"
        if self.scores in ("lightweight", "uniform"):
            return f"{rule}; scores '{self.scores}' keep costs up to an additive error at best; measure with audit"
        if self.size is None and self.size_rule == "theory":
            return (
                f"{rule}: the statement's size with its hidden constants set to 1; approximation preserving for "
                f"1 + {self.eps:g} up to those constants, with constant probability"
            )
        return f"{rule}: empirical; approximation preserving in the measurements, not by a theorem; measure with audit"
