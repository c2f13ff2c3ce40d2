"""`CoresetClusterer`: build a coreset, solve on it, label everything."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClusterMixin, clone
from sklearn.cluster import KMeans
from sklearn.utils.validation import check_is_fitted, has_fit_parameter, validate_data

from methods.approx_coresets.coreset import ApproxCoreset
from methods.approx_coresets.seeding import Seeds, step
from methods.approx_coresets.solvers import WeightedKMedian
from methods.approx_coresets.space import Floats, space_of
from methods.common.errors import ConfigError, DataError


class CoresetClusterer(ClusterMixin, BaseEstimator):
    """Any estimator that takes `sample_weight`, fitted on a coreset of the data instead of the data.

    Args:
        estimator: the solver; None takes `KMeans(n_init=5)`, or `WeightedKMedian` when the coreset is not for z = 2.
            One without `cluster_centers_` must have `labels_`; its centres are the weighted means of its clusters.
        coreset: how the coreset is built; None takes `ApproxCoreset()` with its default of 8 clusters.
        polish: steps on all of the data afterwards (Lloyd or Weiszfeld); 0 keeps the coreset's solution.
        random_state: seed of both; None leaves the seeds of `coreset` and `estimator` as they are.

    Attributes:
        cluster_centers_: `(k, d)`.
        labels_: `(n,)` nearest centre of each row.
        inertia_: cost on all of the data.
        coreset_inertia_: cost of the same centres on the coreset.
        coreset_, estimator_: fitted.

    Raises:
        ConfigError: an estimator that takes no `sample_weight`, or a negative `polish`.
    """

    def __init__(
        self,
        estimator: Any = None,
        coreset: ApproxCoreset | None = None,
        *,
        polish: int = 0,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.coreset = coreset
        self.polish = polish
        self.random_state = random_state

    def _made(self) -> tuple[ApproxCoreset, Any]:
        coreset = ApproxCoreset() if self.coreset is None else clone(self.coreset)
        if coreset.metric != "euclidean":
            raise ConfigError(
                "coreset: a distance matrix has no centres to predict with; use swap_medoids on Omega"
            )
        if self.estimator is not None:
            estimator = clone(self.estimator)
        elif coreset.z == 2:
            estimator = KMeans(coreset.n_clusters, n_init=5)
        else:
            estimator = WeightedKMedian(coreset.n_clusters, z=coreset.z)
        if not has_fit_parameter(estimator, "sample_weight"):
            raise ConfigError(
                f"estimator={type(estimator).__name__}: its fit takes no sample_weight, and without weights a coreset "
                "means nothing; choose one that does (KMeans, MiniBatchKMeans, WeightedKMedian)"
            )
        if not isinstance(self.polish, int | np.integer) or self.polish < 0:
            raise ConfigError(f"polish={self.polish!r}: give a number of steps, 0 or more")
        if self.random_state is not None:
            coreset.set_params(random_state=self.random_state)
            if "random_state" in estimator.get_params():
                estimator.set_params(random_state=self.random_state)
        return coreset, estimator

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> CoresetClusterer:
        """Build the coreset of `(n, d)` rows, solve on it, and label every row."""
        coreset, estimator = self._made()
        self.coreset_ = coreset.fit(X, sample_weight=sample_weight)
        self.n_features_in_ = coreset.n_features_in_
        if hasattr(coreset, "feature_names_in_"):
            self.feature_names_in_ = coreset.feature_names_in_
        self.estimator_ = estimator.fit(_solvable(coreset.points_), sample_weight=coreset.weights_)
        centres = centres_of(self.estimator_, coreset)
        X = self._rows(X)
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        space = space_of(X, coreset.z, coreset.chunk_size)
        labels, costs = space.nearest(centres)
        for _ in range(self.polish):
            centres = step(space, Seeds(centres, np.full(len(centres), -1), labels, costs), weights)
            labels, costs = space.nearest(centres)
        self.cluster_centers_, self.labels_ = centres, labels
        self.inertia_ = float(costs.sum() if weights is None else weights @ costs)
        self.coreset_inertia_ = coreset.cost(centres)
        return self

    def predict(self, X: Any) -> NDArray[np.int32]:
        """The nearest centre of each row, `(n,)`."""
        check_is_fitted(self)
        X = self._rows(X)
        return space_of(X, self.coreset_.z, self.coreset_.chunk_size).nearest(self.cluster_centers_)[0]

    def _rows(self, X: Any) -> Any:
        return validate_data(self, X, accept_sparse="csr", dtype="numeric", reset=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        coreset = self.coreset or ApproxCoreset()
        tags.input_tags.sparse = coreset.z == 2
        return tags


def centres_of(estimator: Any, coreset: ApproxCoreset) -> Floats:
    """The centres of a fitted estimator: its own, or the weighted means of its labels.

    Raises:
        DataError: it has neither.
    """
    if hasattr(estimator, "cluster_centers_"):
        return np.asarray(estimator.cluster_centers_, dtype=np.float64)
    labels = getattr(estimator, "labels_", None)
    if labels is None:
        raise DataError(
            f"estimator={type(estimator).__name__}: it gives neither cluster_centers_ nor labels_"
        )
    points = _solvable(coreset.points_)
    found = []
    for label in np.unique(labels[labels >= 0]):
        mine = labels == label
        found.append(coreset.weights_[mine] @ points[mine] / coreset.weights_[mine].sum())
    if not found:
        raise DataError(f"estimator={type(estimator).__name__}: it put no point into a cluster")
    return np.asarray(found, dtype=np.float64)


def _solvable(points: Any) -> Any:
    # Some estimators know sparse matrices only by their older type.
    return sparse.csr_matrix(points) if sparse.issparse(points) else points
