"""Interference metrics against a plain numpy writing, and the LoRA identity against dense matrices."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import nn

from methods.common.errors import ConfigError
from methods.merge_early_stop import increments, interference, lora_cosine, lora_gram, merge_direction
from methods.merge_early_stop.interference import Interference
from methods.merge_early_stop.sources import ExpertStream


def taus(rows: np.ndarray) -> list[dict[str, torch.Tensor]]:
    half = rows.shape[1] // 2
    return [{"a": torch.from_numpy(r[:half]), "b": torch.from_numpy(r[half:])} for r in rows]


def test_identical_and_opposite_vectors() -> None:
    x = np.random.default_rng(0).normal(size=(1, 40)).astype(np.float32)
    same = interference(taus(np.repeat(x, 3, axis=0)))
    assert same.keep_rate == pytest.approx(1.0)
    assert float(same.sign_conflict.max()) == 0.0
    assert float(same.weighted_sign_conflict.max()) == 0.0
    torch.testing.assert_close(same.cosine, torch.ones(3, 3, dtype=torch.float64))
    opposite = interference(taus(np.concatenate([x, -x])))
    assert opposite.keep_rate == 0.0
    assert float(opposite.sign_conflict[0, 1]) == 1.0
    assert float(opposite.weighted_sign_conflict[0, 1]) == 1.0
    assert float(opposite.cosine[0, 1]) == pytest.approx(-1.0)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 4), size=st.integers(2, 300), sparse=st.booleans())
def test_equals_numpy(seed: int, count: int, size: int, sparse: bool) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(count, size)).astype(np.float32)
    if sparse:
        rows *= draw.random(rows.shape) < 0.3
    got = interference(taus(rows))
    wide = rows.astype(np.float64)
    np.testing.assert_allclose(got.norms, np.linalg.norm(wide, axis=1), rtol=1e-6)
    total = np.abs(wide).sum()
    assert got.keep_rate == pytest.approx(np.abs(wide.sum(0)).sum() / total if total else 1.0, rel=1e-6)
    for i in range(count):
        for j in range(i + 1, count):
            product = wide[i] * wide[j]
            least = np.minimum(np.abs(wide[i]), np.abs(wide[j]))
            both = (product != 0).sum()
            assert float(got.sign_conflict[j, i]) == pytest.approx(
                (product < 0).sum() / both if both else 0.0
            )
            weighted = least[product < 0].sum() / least.sum() if both else 0.0
            assert float(got.weighted_sign_conflict[i, j]) == pytest.approx(weighted, rel=1e-6)
    means = got.means()
    assert -1 <= means["cosine"] <= 1
    assert 0 <= means["keep_rate"] <= 1


def test_zero_vectors_and_refusals() -> None:
    got = interference(taus(np.zeros((2, 4), dtype=np.float32)))
    assert got.means() == {
        "norm": 0.0, "cosine": 0.0, "sign_conflict": 0.0, "weighted_sign_conflict": 0.0, "keep_rate": 1.0
    }  # fmt: skip
    with pytest.raises(ConfigError, match="empty"):
        interference([])
    with pytest.raises(ConfigError, match="differ"):
        interference([{"a": torch.zeros(1)}, {"a": torch.zeros(2)}])
    with pytest.raises(ConfigError, match="2 late and 1 early"):
        increments([{}, {}], [{}])


def test_increments() -> None:
    early, late = [{"w": torch.tensor([1.0, 2.0])}], [{"w": torch.tensor([4.0, 0.0])}]
    torch.testing.assert_close(increments(late, early)[0]["w"], torch.tensor([3.0, -2.0]))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), ranks=st.lists(st.integers(1, 5), min_size=2, max_size=3))
def test_lora_inner_products_equal_dense_ones(seed: int, ranks: list[int]) -> None:
    draw = torch.Generator().manual_seed(seed)

    def one(rank: int) -> dict[str, tuple[torch.Tensor, torch.Tensor, float]]:
        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=draw, dtype=torch.float64)

        return {m: (normal(9, rank), normal(rank, 7), 0.5 + rank) for m in ("q", "v")}

    adapters = [one(r) for r in ranks]
    dense = torch.stack([torch.cat([(s * b @ a).flatten() for b, a, s in x.values()]) for x in adapters])
    expected = dense @ dense.T
    assert float((lora_gram(adapters) - expected).abs().max() / expected.abs().max()) <= 1e-10
    norms = dense.norm(dim=1)
    assert float((lora_cosine(adapters) - expected / norms[:, None] / norms).abs().max()) <= 1e-10


def test_modules_of_one_adapter_only_and_streamed_adapters() -> None:
    b, a = torch.ones(3, 1, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    gram = lora_gram([{"q": (b, a, 2.0)}, {"v": (b, a, 1.0)}])
    torch.testing.assert_close(gram, torch.tensor([[24.0, 0.0], [0.0, 6.0]], dtype=torch.float64))

    base = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    import copy

    adapters = []
    for seed, target in ((0, ["0"]), (1, ["0", "1"])):
        torch.manual_seed(seed)
        adapters.append(get_peft_model(copy.deepcopy(base), LoraConfig(r=2, target_modules=target)))
        with torch.no_grad():
            for n, p in adapters[-1].named_parameters():
                if "lora_" in n:
                    p.normal_()
    streamed = interference(ExpertStream(base, adapters))
    dense = [merge_direction(base, [x]) for x in adapters]
    names = sorted(set(dense[0]) | set(dense[1]))
    filled = [{n: d.get(n, torch.zeros_like(base.state_dict()[n])) for n in names} for d in dense]
    plain = interference(filled)
    assert isinstance(streamed, Interference)
    torch.testing.assert_close(streamed.cosine, plain.cosine)
    factors = [
        {
            name: (
                m.lora_B["default"].weight.detach(),
                m.lora_A["default"].weight.detach(),
                m.scaling["default"],
            )
            for name, m in x.base_model.model.named_modules()
            if hasattr(m, "lora_A")
        }
        for x in adapters
    ]
    torch.testing.assert_close(lora_cosine(factors), plain.cosine, atol=1e-6, rtol=0)
