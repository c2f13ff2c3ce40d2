"""SC-FAGC: Size-Constrained Fast Anchor Graph Clustering (Liu et al., ICML 2026).

`SCFAGC` is the estimator; `double_bounded_sinkhorn` the transport solver under it; `round_bounded` hard labels with
strict bounds; `anchor_graph` the sparse graph.
"""

from methods.common.clustering_scores import clustering_scores
from methods.sc_fagc.anchors import balanced_anchors
from methods.sc_fagc.estimator import SCFAGC
from methods.sc_fagc.graph import anchor_graph, anchor_similarity
from methods.sc_fagc.irw import critical_eps, objective_value, reweighted
from methods.sc_fagc.rounding import round_bounded
from methods.sc_fagc.transport import TransportInfo, double_bounded_sinkhorn

__all__ = [
    "SCFAGC",
    "TransportInfo",
    "anchor_graph",
    "anchor_similarity",
    "balanced_anchors",
    "clustering_scores",
    "critical_eps",
    "double_bounded_sinkhorn",
    "objective_value",
    "reweighted",
    "round_bounded",
]
