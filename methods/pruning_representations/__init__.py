"""Pruning recipes for language models; `magnitude` and `wanda` change a model in place and return it."""

from methods.pruning_representations.calibration import prune_blocks, sample_sequences
from methods.pruning_representations.magnitude import magnitude
from methods.pruning_representations.masks import keep_mask, parse_pattern
from methods.pruning_representations.wanda import InputNorm, wanda, wanda_scores

__all__ = [
    "InputNorm",
    "keep_mask",
    "magnitude",
    "parse_pattern",
    "prune_blocks",
    "sample_sequences",
    "wanda",
    "wanda_scores",
]
