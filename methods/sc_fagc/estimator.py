"""SC-FAGC: Size-Constrained Fast Anchor Graph Clustering, as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from methods.common.checks import check_number, check_powers
from methods.common.clustering_scores import overshoot
from methods.common.errors import ConfigError, DataError
from methods.sc_fagc.anchors import choose_anchors
from methods.sc_fagc.bounds import SizeBounds
from methods.sc_fagc.eigen import top_eigenvectors
from methods.sc_fagc.graph import anchor_graph, anchor_similarity, given_similarity
from methods.sc_fagc.irw import Weighted, critical_eps, is_collapsed, objective_value, reweighted
from methods.sc_fagc.rounding import round_bounded
from methods.sc_fagc.start import one_hot, random_labels, spectral_rows, start_labels
from methods.sc_fagc.transmission import bounded_labels

FIRST_STEPS = 5
ANNEAL_STEPS = 20
SAME = 1e-7
OVERSHOOT = 0.2


class SCFAGC(ClusterMixin, BaseEstimator):
    """Cluster samples through a graph of anchors, with lower and upper bounds on every cluster's size.

    Anchors stand for equal shares of the samples; a sparse graph ties each sample to its nearest anchors; the anchors
    are clustered by maximising the similarity kept inside clusters plus an entropy, under the bounds (a series of
    doubly bounded transport problems); their hard labels meet the bounds strictly, and the samples take their labels
    through the graph. Time and memory grow linearly with the samples.

    The bounds hold exactly for the anchors; the samples' sizes follow them closely and are reported (`data_sizes_`,
    `overshoot_`). `transmission="bounded"` enforces them sample by sample.

    Args:
        n_clusters: c >= 1.
        n_anchors: m; None takes a power of two near 20 c, at least 128, at most n. `bkhk` needs a power of two and
            rounds up, with a warning.
        n_neighbors: s, anchors that a sample is tied to, 1 <= s < m; lowered to m - 1 when m is None and small.
        size_min, size_max: bounds of a cluster's size, a number or one a cluster; None takes 0.8 and 1.2 of an equal
            share. Which cluster gets which number is arbitrary: the largest bounds go to the largest clusters found
            at the start.
        size_unit: `samples`, `anchors`, or `share` (multiples of an equal share).
        eps: weight of the entropy; `auto` is `eps_share` of the critical value above which labels would be noise.
        eps_share: in (0, 1), see `eps`.
        objective: `sum` or `ratio`, see `methods.sc_fagc.irw`.
        anneal: multiples of the critical eps at which each start is first relaxed, largest first; those not above `eps`
            are left out, and () goes straight to `eps`. Near the critical value the landscape is smoother, and a start
            that is caught in a poor optimum leaves it.
        init: `spectral`, `kmeans` (on the anchors), `random`, or labels `[m]` of the anchors.
        n_init: starts; the best by the objective after a few steps is finished.
        affinity: `anchor`, the graph of anchors; or `precomputed`: X is a similarity of the samples, `[n, n]`, dense or
            CSR, symmetric and not negative. Each sample is then its own anchor, and the bounds hold for the samples.
        anchor_method: `bkhk`, `kmeans`, `random`, or anchors `[m, d]`.
        anchor_refine: steps of k-means that move the anchors of `bkhk`; with 0 each stands for an equal share.
        solver: of the transport problems: `newton` (each Sinkhorn-Knopp sweep followed by a Newton step on the
            multipliers that bind), `sinkhorn` (sweeps, accelerated after `ot_max_iter`), or `sweeps` (never).
        transmission: `argmax` of the anchors' hard labels, `soft` membership, or `bounded`.
        irw: False stops after one linear step, for ablation.
        max_iter, tol: of the outer loop.
        ot_max_iter, ot_tol: of the transport problems.
        random_state: seed of anchors and starts.

    Attributes:
        labels_: `[n]`.
        anchors_: `[m, d]` (of no `precomputed` fit); anchors to which no sample pointed are gone.
        anchor_labels_: `[m]`, within the bounds.
        membership_: F, `[m, c]`.
        affinity_: W, `[m, m]`.
        anchor_sizes_, data_sizes_: `[c]`.
        bounds_: (lower, upper) in whole anchors, `[c]` each.
        data_bounds_: the same in samples.
        overshoot_: largest share by which a cluster of samples misses its bounds, 0 when none does.
        eps_, eps_critical_: the entropy's weight and its critical value.
        objective_path_: J by outer step.
        ot_iterations_: sweeps of each transport problem.
        n_iter_: outer steps.
        converged_: whether the loop and every transport problem converged.
        collapsed_: whether the membership is uniform, and the labels mean nothing.

    Raises (from `fit`, all ValueErrors that name the numbers):
        ConfigError: a parameter out of its range; bounds that cannot be met, in samples or in anchors.
        DataError: fewer samples than clusters or anchors; fewer distinct anchors than clusters or neighbours need.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_anchors: int | None = None,
        n_neighbors: int = 5,
        size_min: Any = None,
        size_max: Any = None,
        size_unit: str = "samples",
        eps: Any = "auto",
        eps_share: float = 0.5,
        objective: str = "sum",
        anneal: tuple[float, ...] = (0.8,),
        init: Any = "spectral",
        n_init: int = 10,
        affinity: str = "anchor",
        anchor_method: Any = "bkhk",
        anchor_refine: int = 3,
        solver: str = "newton",
        transmission: str = "argmax",
        irw: bool = True,
        max_iter: int = 100,
        tol: float = 1e-7,
        ot_max_iter: int = 500,
        ot_tol: float = 1e-7,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_anchors = n_anchors
        self.n_neighbors = n_neighbors
        self.size_min = size_min
        self.size_max = size_max
        self.size_unit = size_unit
        self.eps = eps
        self.eps_share = eps_share
        self.objective = objective
        self.anneal = anneal
        self.init = init
        self.n_init = n_init
        self.affinity = affinity
        self.anchor_method = anchor_method
        self.anchor_refine = anchor_refine
        self.solver = solver
        self.transmission = transmission
        self.irw = irw
        self.max_iter = max_iter
        self.tol = tol
        self.ot_max_iter = ot_max_iter
        self.ot_tol = ot_tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Cluster the samples `[n, d]`, dense or CSR; `y` is ignored."""
        x = validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32), ensure_min_samples=2)
        self._check_parameters(x.shape[0])
        check_powers("X", x)
        rng = check_random_state(self.random_state)
        c = self.n_clusters

        if self.affinity == "precomputed":
            self.affinity_ = given_similarity(x)
            graph = sparse.eye_array(x.shape[0], format="csr")
        else:
            anchors = self._place_anchors(x, rng)
            # Bounds that cannot be met are told before the graph is made.
            SizeBounds.of(self.size_min, self.size_max, self.size_unit, c, x.shape[0], len(anchors))
            graph = self._tie(x, anchors)
            self.affinity_, _ = anchor_similarity(graph)
        m = graph.shape[1]
        sizes = SizeBounds.of(self.size_min, self.size_max, self.size_unit, c, x.shape[0], m)
        low, high = sizes.on_anchors(x.shape[0], m, strict=self.transmission != "bounded")
        self.bounds_ = (low, high)
        self.data_bounds_ = (sizes.lower, sizes.upper)

        found = self._membership(low, high, rng)
        self.membership_ = found.membership
        self.anchor_labels_ = round_bounded(self.membership_, low, high)
        self.anchor_sizes_ = np.bincount(self.anchor_labels_, minlength=c)
        self.objective_path_ = np.asarray(found.path)
        self.ot_iterations_ = np.asarray([solve.sweeps for solve in found.solves], dtype=np.int64)
        self.n_iter_ = len(found.solves)
        self.converged_ = found.converged
        self.collapsed_ = is_collapsed(self.membership_)
        if self.transmission == "bounded":
            on_samples = sizes.on_samples(x.shape[0])
            self.labels_ = bounded_labels(graph @ self.membership_, *on_samples, rng)
        else:
            self.labels_ = self._transmit(graph)
        self.data_sizes_ = np.bincount(self.labels_, minlength=c)
        self.overshoot_ = overshoot(self.data_sizes_, sizes.lower, sizes.upper)
        self._warn()
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Labels of samples `[n, d]` through their own ties to the anchors; no bound is applied to new samples."""
        return self._transmit(self._graph_of(X), new=True)

    def predict_membership(self, X: Any) -> np.ndarray:
        """Soft membership B F of samples `[n, d]`, `[n, c]`."""
        return np.asarray(self._graph_of(X) @ self.membership_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.affinity == "precomputed"
        return tags

    def _graph_of(self, X: Any) -> sparse.csr_array:
        check_is_fitted(self)
        if self.affinity == "precomputed":
            raise ConfigError(
                "affinity='precomputed' labels the given samples only; new ones need affinity='anchor'"
            )
        x = validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32), reset=False)
        check_powers("X", x)
        return anchor_graph(x, self.anchors_, self.n_neighbors_)

    def _transmit(self, graph: sparse.csr_array, new: bool = False) -> np.ndarray:
        soft = self.transmission == "soft" or (new and self.transmission == "bounded")
        table = self.membership_ if soft else one_hot(self.anchor_labels_, self.n_clusters)
        # B has few entries a row: the product is [n, c], never [n, m].
        return np.asarray((graph @ table).argmax(axis=1))

    def _check_parameters(self, n: int) -> None:
        for name, least in (
            ("n_clusters", 1),
            ("n_neighbors", 1),
            ("n_init", 1),
            ("anchor_refine", 0),
            ("max_iter", 1),
            ("ot_max_iter", 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise ConfigError(f"{name}={value!r}: give a whole number of at least {least}")
        for name, known in (
            ("affinity", ("anchor", "precomputed")),
            ("objective", ("sum", "ratio")),
            ("solver", ("sinkhorn", "newton", "sweeps")),
            ("transmission", ("argmax", "soft", "bounded")),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}={getattr(self, name)!r}: give one of {', '.join(known)}")
        if self.eps != "auto" and not (
            isinstance(self.eps, int | float | np.number) and 0 < float(self.eps) < np.inf
        ):
            raise ConfigError(f"eps={self.eps!r}: give 'auto' or a number above 0")
        check_number("eps_share", self.eps_share, above=0, below=1)
        check_number("tol", self.tol, least=0)
        check_number("ot_tol", self.ot_tol, above=0)
        if not isinstance(self.anneal, tuple | list):
            raise ConfigError(f"anneal={self.anneal!r}: give a tuple of numbers, () for none")
        for factor in self.anneal:
            check_number("anneal", factor, above=0)
        if n < self.n_clusters:
            raise DataError(f"X has n_samples={n}, fewer than n_clusters={self.n_clusters}; lower n_clusters")

    def _place_anchors(self, x: Any, rng: np.random.RandomState) -> np.ndarray:
        n, c = x.shape[0], self.n_clusters
        if not isinstance(self.anchor_method, str):
            anchors = np.asarray(self.anchor_method, dtype=np.float64)
            if anchors.ndim != 2 or anchors.shape[1] != x.shape[1] or not np.isfinite(anchors).all():
                raise DataError(
                    f"anchor_method: anchors of shape {anchors.shape}; give finite ones of shape [m, {x.shape[1]}]"
                )
            if len(anchors) < max(c, 2):
                raise DataError(
                    f"anchor_method: {len(anchors)} anchors for n_clusters={c}; give at least {max(c, 2)}"
                )
            return anchors
        if self.anchor_method not in ("bkhk", "kmeans", "random"):
            raise ConfigError(
                f"anchor_method={self.anchor_method!r}: give 'bkhk', 'kmeans', 'random' or an array of anchors"
            )
        method: Any = self.anchor_method
        largest = 2 ** (n.bit_length() - 1)
        if self.n_anchors is None:
            m = min(2 ** int(np.ceil(np.log2(max(20 * c, 128)))), largest)
            if m < c:  # more clusters than the largest power of two below n: each sample is an anchor
                m, method = n, "random"
        else:
            m = self.n_anchors
            if isinstance(m, bool) or not isinstance(m, int | np.integer) or m < 2:
                raise ConfigError(f"n_anchors={m!r}: give None or a whole number of at least 2")
            if m > n:
                raise DataError(f"X has n_samples={n}, fewer than n_anchors={m}; lower n_anchors")
            if m < c:
                raise ConfigError(f"n_anchors={m} is below n_clusters={c}; raise it")
            if method == "bkhk" and m & (m - 1):
                rounded = min(2 ** int(m).bit_length(), largest)
                warnings.warn(
                    f"n_anchors={m} is no power of two; bkhk takes {rounded}", UserWarning, stacklevel=3
                )
                m = rounded
        return choose_anchors(x, int(m), method, rng, self.anchor_refine)

    def _tie(self, x: Any, anchors: np.ndarray) -> sparse.csr_array:
        """The graph on anchors that samples point to; sets `anchors_` and `n_neighbors_`."""
        given = len(anchors)
        while True:
            m = len(anchors)
            s = self.n_neighbors
            if self.n_anchors is None and isinstance(self.anchor_method, str):
                s = min(s, m - 1)
            if m < max(self.n_clusters, 2) or s >= m:
                if m < given:
                    raise DataError(
                        f"X: samples point to {m} of the {given} anchors only, too few for n_clusters="
                        f"{self.n_clusters} and n_neighbors={s}; remove equal rows, or lower these numbers"
                    )
                raise ConfigError(f"n_neighbors={s}: give 1 to {m - 1}, below the {m} anchors")
            graph = anchor_graph(x, anchors, s)
            used = np.asarray(graph.sum(axis=0)).ravel() > 0
            if used.all():
                self.anchors_, self.n_neighbors_ = anchors, s
                return graph
            # Without the unused anchors the ties change, so that they are made anew: new samples get the same ones.
            anchors = anchors[used]

    def _membership(self, low: np.ndarray, high: np.ndarray, rng: np.random.RandomState) -> Weighted:
        c, m = self.n_clusters, self.affinity_.shape[0]
        if c == 1:
            self.eps_critical_ = self.eps_ = np.nan
            alone = np.ones((m, 1))
            return Weighted(alone, (objective_value(self.affinity_, alone, 0.0),), (), True)
        values, vectors = top_eigenvectors(self.affinity_, min(max(c, 2), m))
        self.eps_critical_ = critical_eps(float(values[1]), c)
        self.eps_ = self.eps_share * self.eps_critical_ if self.eps == "auto" else float(self.eps)
        given: dict[str, Any] = {
            "eps": self.eps_,
            "objective": self.objective,
            "solver": self.solver,
            "ot_max_iter": self.ot_max_iter,
            "ot_tol": self.ot_tol,
            "tol": self.tol,
        }
        steps = self.max_iter if self.irw else 1
        warm = [factor * self.eps_critical_ for factor in self.anneal if self.irw]
        best: Weighted | None = None
        for start in self._starts(vectors, low, high, rng):
            for eps in sorted((eps for eps in warm if eps > self.eps_), reverse=True):
                start = reweighted(
                    self.affinity_, start, low, high, max_iter=ANNEAL_STEPS, **{**given, "eps": eps}
                ).membership
            found = reweighted(self.affinity_, start, low, high, max_iter=min(FIRST_STEPS, steps), **given)
            # Starts that meet in one optimum differ by rounding and in the clusters' names: the first of them counts.
            if best is None or found.path[-1] > best.path[-1] + SAME * abs(best.path[-1]):
                best = found
        assert best is not None
        left = steps - len(best.solves)
        if left <= 0 or (len(best.solves) < FIRST_STEPS):
            return best
        rest = reweighted(self.affinity_, best.membership, low, high, max_iter=left, **given)
        return Weighted(rest.membership, best.path + rest.path[1:], best.solves + rest.solves, rest.converged)

    def _starts(
        self, vectors: np.ndarray, low: np.ndarray, high: np.ndarray, rng: np.random.RandomState
    ) -> list[np.ndarray]:
        c, m = self.n_clusters, self.affinity_.shape[0]
        if not isinstance(self.init, str):
            labels = np.asarray(self.init)
            if labels.shape != (m,) or not np.isin(labels, np.arange(c)).all():
                raise ConfigError(
                    f"init: labels of shape {labels.shape}; give {m} whole numbers from 0 to {c - 1}"
                )
            return [one_hot(round_bounded(one_hot(labels.astype(int), c), low, high), c)]
        if self.init not in ("spectral", "kmeans", "random"):
            raise ConfigError(
                f"init={self.init!r}: give 'spectral', 'kmeans', 'random' or labels of the anchors"
            )
        if self.init == "random":
            return [one_hot(random_labels(m, low, high, rng), c) for _ in range(self.n_init)]
        if self.init == "kmeans" and self.affinity == "precomputed":
            raise ConfigError(
                "init='kmeans' needs features, and affinity='precomputed' has none; give 'spectral'"
            )
        rows = spectral_rows(vectors[:, :c]) if self.init == "spectral" else self.anchors_
        starts = [start_labels(rows, low, high, rng, turn) for turn in range(self.n_init)]
        return [one_hot(labels, c) for labels in starts]

    def _warn(self) -> None:
        if self.collapsed_:
            warnings.warn(
                f"the membership is uniform: eps={self.eps_:.4g} against the critical {self.eps_critical_:.4g}; the "
                "labels mean nothing. Lower eps",
                ConvergenceWarning,
                stacklevel=3,
            )
        if not self.converged_ and self.irw:
            warnings.warn(
                f"not converged after {self.n_iter_} steps; raise max_iter or ot_max_iter, or set solver='newton'",
                ConvergenceWarning,
                stacklevel=3,
            )
        if self.overshoot_ > OVERSHOOT:
            warnings.warn(
                f"a cluster of samples misses its bounds by {100 * self.overshoot_:.0f} %: they hold for the anchors; "
                "set transmission='bounded' to hold them for the samples, or raise n_anchors",
                UserWarning,
                stacklevel=3,
            )
