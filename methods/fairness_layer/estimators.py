"""scikit-learn estimators: a small network that ends in the fairness layer, with fairlearn's `sensitive_features`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from methods.common.checks import check_number, check_whole
from methods.common.errors import DataError
from methods.fairness_layer.layer import Bounds, FairnessLayer
from methods.fairness_layer.rows import MeanParity, ParityConstraint, as_groups
from methods.fairness_layer.sampler import StratifiedGroupBatchSampler


class _FairNet(BaseEstimator):
    """What both share. A batch given to predict is projected as a whole: a prediction depends on the others in it."""

    _bounds: Bounds = (None, None)

    def __init__(
        self,
        constraint: ParityConstraint | None = None,
        eps: float = 0.05,
        hidden: int = 64,
        epochs: int = 20,
        batch_size: int = 256,
        lr: float = 1e-3,
        random_state: int = 0,
    ) -> None:
        self.constraint, self.eps = constraint, eps
        self.hidden, self.epochs, self.batch_size, self.lr = hidden, epochs, batch_size, lr
        self.random_state = random_state

    def _fit(self, X: np.ndarray, y: np.ndarray, sensitive_features: Any) -> None:
        for field in ("hidden", "epochs", "batch_size"):
            check_whole(field, getattr(self, field), 1)
        check_number("lr", self.lr, above=0)
        if sensitive_features is None:
            raise DataError("sensitive_features None: give one group code for each row")
        groups = as_groups(sensitive_features, len(X))
        self.layer_ = FairnessLayer(self.constraint or MeanParity(), self.eps, self._bounds)
        self.mean_, spread = X.mean(axis=0), X.std(axis=0)
        self.scale_ = np.where(spread > 0, spread, 1.0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            self.network_ = nn.Sequential(
                nn.Linear(X.shape[1], self.hidden), nn.ReLU(), nn.Linear(self.hidden, 1)
            ).double()
        inputs, truth = self._inputs(X), torch.from_numpy(y.astype(np.float64))
        size = min(self.batch_size, len(X))
        sampler = StratifiedGroupBatchSampler(groups, size, self.random_state, drop_last=False)
        optimiser = torch.optim.Adam(self.network_.parameters(), lr=self.lr)
        for _ in range(self.epochs):
            for batch in sampler:
                fair = self.layer_(self._link(self.network_(inputs[batch])[:, 0]), groups[batch], y[batch])
                optimiser.zero_grad()
                self._loss(fair, truth[batch]).backward()
                optimiser.step()

    def _inputs(self, X: np.ndarray) -> torch.Tensor:
        return torch.from_numpy((X - self.mean_) / self.scale_)

    def _scores(self, X: Any, sensitive_features: Any) -> np.ndarray:
        check_is_fitted(self, "network_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        if sensitive_features is None:
            raise DataError("sensitive_features None: give one group code for each row")
        with torch.no_grad():
            raw = self._link(self.network_(self._inputs(X))[:, 0])
            fair: np.ndarray = self.layer_(raw, as_groups(sensitive_features, len(X))).numpy()
        return fair

    def _link(self, raw: torch.Tensor) -> torch.Tensor:
        return raw

    def _loss(self, fair: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(fair, truth)


class FairNetRegressor(RegressorMixin, _FairNet):
    """A network whose predictions satisfy the parity notion; notions that need targets serve training alone."""

    def fit(self, X: Any, y: Any, *, sensitive_features: Any = None) -> FairNetRegressor:
        """Trains with the layer on batches in which every group has its share."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        self._fit(X, y, sensitive_features)
        return self

    def predict(self, X: Any, *, sensitive_features: Any = None) -> np.ndarray:
        """Scores [n] of the batch, which satisfies the notion."""
        return self._scores(X, sensitive_features)


class FairNetClassifier(ClassifierMixin, _FairNet):
    """Two classes; the probabilities of the second satisfy the notion. Parity of scores is not parity of decisions."""

    _bounds = (0.0, 1.0)

    def fit(self, X: Any, y: Any, *, sensitive_features: Any = None) -> FairNetClassifier:
        """Trains with the layer on probabilities. Raises DataError unless y holds two classes."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            raise DataError(f"y holds {len(self.classes_)} classes: give two")
        self._fit(X, codes, sensitive_features)
        return self

    def predict_proba(self, X: Any, *, sensitive_features: Any = None) -> np.ndarray:
        """Probabilities [n, 2] of the batch."""
        fair = self._scores(X, sensitive_features)
        return np.stack((1 - fair, fair), axis=1)

    def predict(self, X: Any, *, sensitive_features: Any = None) -> np.ndarray:
        """Classes at a probability of one half."""
        chosen: np.ndarray = self.classes_[(self._scores(X, sensitive_features) >= 0.5).astype(int)]
        return chosen

    def _link(self, raw: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(raw)

    def _loss(self, fair: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        # The projection may reach the box's ends, where the logarithm has no bound.
        return nn.functional.binary_cross_entropy(fair.clamp(1e-6, 1 - 1e-6), truth)
