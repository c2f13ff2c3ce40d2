"""The estimators: parity holds while the answers still rank and explain; the same seed gives the same numbers."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from methods.common.errors import DataError
from methods.fairness_layer import FairNetClassifier, FairNetRegressor, audit


def people(n=600):
    draw = np.random.default_rng(0)
    groups = (draw.random(n) < 0.4).astype(int)
    X = draw.normal(size=(n, 5)) + 0.8 * groups[:, None] * np.array([1, 0, 0, 0, 0])
    score = X[:, 0] + X[:, 1]
    return X, score, (score + draw.normal(size=n) > 0.3), groups


def test_probabilities_satisfy_parity_and_still_rank():
    X, _, y, groups = people()
    y = np.where(y, "yes", "no")
    model = FairNetClassifier(eps=0.01, lr=1e-2).fit(X, y, sensitive_features=groups)
    p = model.predict_proba(X, sensitive_features=groups)[:, 1]
    assert audit(p, groups).pooled_gap <= 0.01 + 1e-9
    assert audit((y == "yes").astype(float), groups).pooled_gap > 0.1
    assert roc_auc_score(y, p) > 0.7
    assert set(model.predict(X, sensitive_features=groups)) == {"no", "yes"}
    again = clone(model).fit(X, y, sensitive_features=groups)
    assert np.array_equal(again.predict_proba(X, sensitive_features=groups)[:, 1], p)


def test_regression_satisfies_parity_and_explains():
    X, y, _, groups = people()
    model = FairNetRegressor(eps=0.02, lr=1e-2).fit(X, y, sensitive_features=groups)
    fair = model.predict(X, sensitive_features=groups)
    assert audit(fair, groups).pooled_gap <= 0.02 + 1e-9
    assert np.corrcoef(fair, y)[0, 1] > 0.8


def test_mistakes_are_refused():
    X, score, y, groups = people(50)
    with pytest.raises(DataError, match="sensitive_features None"):
        FairNetRegressor().fit(X, score)
    with pytest.raises(DataError, match="y holds 1 classes"):
        FairNetClassifier().fit(X, np.zeros(50), sensitive_features=groups)
    with pytest.raises(DataError, match="groups of shape"):
        FairNetClassifier().fit(X, y, sensitive_features=groups[:10])
