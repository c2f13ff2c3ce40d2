"""The n-gram model: distributions by their definition, both paths, save and load."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from methods.common.errors import ConfigError, DataError
from methods.pmatic import NGram, Steps

TEXT = b"the cat sat on the mat, the cat ate the rat; " * 6 + b"a dog sat on a log."


def definition(text: bytes, context: bytes, order: int, discounts: list[float]) -> np.ndarray:
    """Interpolated Kneser-Ney, written with dictionaries."""
    p = np.full(256, 1 / 256)
    grams = [text[i : i + order + 1] for i in range(len(text) - order)]
    tables = [Counter(grams)]
    while len(tables[-1]) and len(next(iter(tables[-1]))) > 1:
        tables.append(Counter(gram[1:] for gram in tables[-1]))
    tables = tables[::-1]
    for length in range(order + 1):
        if length > len(context):
            break
        start = context[len(context) - length :]
        found = {g[-1]: c for g, c in tables[length].items() if g[:-1] == start}
        if not found:
            continue
        total, discount = sum(found.values()), discounts[length]
        p = p * discount * len(found) / total
        for token, count in found.items():
            p[token] += (count - discount) / total
    return p


@pytest.mark.parametrize("order", [0, 1, 3, 6])
def test_distributions_are_those_of_the_definition(order: int) -> None:
    model = NGram.fit_bytes(TEXT, order)
    discounts = [table.discount for table in model._orders]
    for context in (b"", b"t", b"the ", b"the cat", b"zzz", b"on the m"):
        state = model.start(1)
        for byte in context:
            model.push(state, np.asarray([byte]))
        p = np.exp(model.logits(state)[0])
        assert p.sum() == pytest.approx(1, abs=1e-9)
        assert p == pytest.approx(definition(TEXT, context, order, discounts), abs=1e-12)


def test_both_paths_agree_and_the_file_holds_all(tmp_path: Path) -> None:
    model = NGram.fit_bytes(TEXT, 4)
    ids = np.frombuffer(b"the dog ate the log zz", dtype=np.uint8)
    parallel = np.concatenate(list(model.score(ids)))
    assert parallel == pytest.approx(np.concatenate(list(Steps(model).score(ids))), abs=1e-12)
    model.save(tmp_path / "model.safetensors")
    again = NGram.load(tmp_path / "model.safetensors")
    assert again.fingerprint == model.fingerprint
    assert (np.concatenate(list(again.score(ids))) == parallel).all()
    assert NGram.fit_bytes(TEXT[1:], 4).fingerprint != model.fingerprint


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="order = 7"):
        NGram.fit_bytes(TEXT, 7)
    with pytest.raises(DataError, match="more than 3 tokens"):
        NGram.fit_bytes(b"abc", 3)
    with pytest.raises(DataError, match="outside 0 to 3"):
        NGram.fit(np.arange(9), 4, 1)
    (tmp_path / "other").write_bytes(b"hello")
    with pytest.raises(DataError, match="no n-gram model"):
        NGram.load(tmp_path / "other")
    with pytest.raises(DataError, match="damaged"):
        NGram(4, [(np.asarray([2, 1]), np.asarray([1, 1]))])
    with pytest.raises(DataError, match="another vocabulary"):
        NGram(3, [(np.asarray([1, 3]), np.asarray([1, 1]))])
