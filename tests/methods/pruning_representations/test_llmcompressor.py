"""Wanda and SparseGPT against llm-compressor 0.14.0.1, whose results lie in recorded/ (see its make_*.py)."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from methods.common.linear_layers import linear_layers
from methods.pruning_representations import sparsegpt, wanda
from tests.methods.pruning_representations.tiny import tiny, tokens

RECORDED = json.loads((Path(__file__).parent / "recorded" / "llmcompressor.json").read_text())


def compared(method: Any, key: str, pattern: str) -> list[tuple[float, float, int]]:
    """Per layer: share of equal mask places, ratio of norms, and how many more zeros the peer has."""
    peer = RECORDED[f"{method.__name__} {key}"]
    found = []
    for layer in linear_layers(method(tiny(), tokens(8, 12), pattern=pattern)):
        packed = np.frombuffer(base64.b64decode(peer["masks"][layer.parameter_name]), np.uint8)
        theirs = np.unpackbits(packed)[: layer.weight.numel()].reshape(layer.weight.shape).astype(bool)
        mine = (layer.weight != 0).numpy()
        norm = float(layer.weight.norm()) / peer["norms"][layer.parameter_name]
        found.append((float((mine == theirs).mean()), norm, int(mine.sum() - theirs.sum())))
    return found


@pytest.mark.parametrize("pattern", ["unstructured", "2:4"])
def test_wanda_is_the_peers_bit_for_bit(pattern: str) -> None:
    for same, norm, more in compared(wanda, "0:0" if pattern == "unstructured" else pattern, pattern):
        assert (same, more) == (1, 0)
        assert norm == pytest.approx(1, abs=1e-5)


def test_sparsegpt_with_a_pattern_is_the_peers() -> None:
    for same, norm, more in compared(sparsegpt, "2:4", "2:4"):
        assert (same, more) == (1, 0)
        assert norm == pytest.approx(1, abs=1e-5)


def test_unstructured_sparsegpt_differs_by_the_peers_one_weight_too_many() -> None:
    """The peer removes all scores up to and including the threshold, so one more than half of each block; what follows
    from that weight's error moves a few others."""
    found = compared(sparsegpt, "0:0", "unstructured")
    assert {more for _, _, more in found} == {1}
    assert min(same for same, _, _ in found) > 0.97
    assert np.mean([same for same, _, _ in found]) > 0.985
