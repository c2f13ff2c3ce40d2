"""Fairness layer: predictions that satisfy parity by construction, in training and on a stream.

"Differentiable Optimization Layers for Guaranteed Fairness in Deep Learning", ICML 2026 (arXiv 2605.17118). The layer
replaces a batch of scores by the closest batch whose group means differ by at most eps,

    y*(z) = argmin ||y - z||^2   s.t.   l <= y <= u,   |A y - c| <= eps,

and gradients flow through the projection. `OnlineParityProjector` keeps the aggregate over a stream of small batches.
"""

from methods.fairness_layer.audit import Audit, audit
from methods.fairness_layer.estimators import FairNetClassifier, FairNetRegressor
from methods.fairness_layer.layer import FairnessLayer, LayerInfo
from methods.fairness_layer.online import OnlineParityProjector
from methods.fairness_layer.projection import InfeasibleParityError
from methods.fairness_layer.rows import (
    AffineRows,
    EqualizedOddsMean,
    MeanParity,
    MeanResidual,
    ParityConstraint,
)
from methods.fairness_layer.sampler import StratifiedGroupBatchSampler

__all__ = [
    "AffineRows",
    "Audit",
    "EqualizedOddsMean",
    "FairNetClassifier",
    "FairNetRegressor",
    "FairnessLayer",
    "InfeasibleParityError",
    "LayerInfo",
    "MeanParity",
    "MeanResidual",
    "OnlineParityProjector",
    "ParityConstraint",
    "StratifiedGroupBatchSampler",
    "audit",
]
