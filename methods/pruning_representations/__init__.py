"""Pruning seen through the representation hierarchy: recipes, probes, and the estimates that connect them.

S. He, G. Sun, H. Zhang, Y. Fu, A. Li: "Demystifying When Pruning Works via Representation Hierarchies", ICML 2026
(https://arxiv.org/abs/2603.24652). `magnitude`, `wanda` and `sparsegpt` change a model in place and return it;
`drop_sublayers` returns a smaller one.
"""

from methods.pruning_representations.calibration import prune_blocks, sample_sequences
from methods.pruning_representations.drop import drop_sublayers
from methods.pruning_representations.magnitude import magnitude
from methods.pruning_representations.masks import keep_mask, parse_pattern
from methods.pruning_representations.probe import RepresentationProbe
from methods.pruning_representations.rank import Ranking, rank_layers
from methods.pruning_representations.second_order import angular, second_order_cos, second_order_kl
from methods.pruning_representations.sparsegpt import sparsegpt
from methods.pruning_representations.tables import LayerTable, OptionTable, StepTable
from methods.pruning_representations.wanda import InputNorm, wanda, wanda_scores

__all__ = [
    "InputNorm",
    "LayerTable",
    "OptionTable",
    "Ranking",
    "RepresentationProbe",
    "StepTable",
    "angular",
    "drop_sublayers",
    "keep_mask",
    "magnitude",
    "parse_pattern",
    "prune_blocks",
    "rank_layers",
    "sample_sequences",
    "second_order_cos",
    "second_order_kl",
    "sparsegpt",
    "wanda",
    "wanda_scores",
]
