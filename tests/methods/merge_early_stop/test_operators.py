"""The operators against hand-computed cases, an independent numpy oracle, and two peers' recorded answers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.common.errors import ConfigError, NumericalError
from methods.merge_early_stop import METHODS, Operator, average, dare, merge, task_arithmetic, ties
from methods.merge_early_stop.operators import InMemory, Merger, kth_largest_magnitude, merge_vectors

PEERS = Path(__file__).parent / "recorded" / "peers.npz"


def vectors(*rows: list[float]) -> list[dict[str, torch.Tensor]]:
    return [{"w": torch.tensor(row)} for row in rows]


# ---- an oracle that shares nothing with the code
# -------------------------------------------------------------------


def oracle_ties(rows: np.ndarray, density: float) -> np.ndarray:
    rows = rows.astype(np.float64)
    keep = max(1, int(density * rows.shape[1]))
    trimmed = np.zeros_like(rows)
    for t, row in enumerate(rows):
        threshold = np.sort(np.abs(row))[-keep]
        trimmed[t] = np.where(np.abs(row) >= threshold, row, 0)
    total = trimmed.sum(0)
    sign = np.sign(total)
    majority = np.sign(sign.sum()) or -1
    sign[(sign == 0)] = majority
    out = np.zeros(rows.shape[1])
    for k in range(rows.shape[1]):
        agreeing = [v for v in trimmed[:, k] if v * sign[k] > 0]
        out[k] = np.mean(agreeing) if agreeing else 0.0
    return out


def test_ties_by_hand_three_experts_six_parameters() -> None:
    taus = vectors(
        [4.0, -3.0, 0.5, 0.1, 2.0, -0.2],
        [-1.0, -5.0, 0.3, 6.0, -2.0, 0.1],
        [3.0, 0.2, -0.1, 5.0, 0.4, -7.0],
    )
    # density 0.5 keeps three: (4, -3, 2), (-5, 6, -2), (3, 5, -7); coordinate 4 sums to zero: 2 - 2.
    # Elected signs of the rest: + - . + . -, a majority of zero (2 plus, 2 minus), which the original sends
    # to minus.
    merged = ties(taus, density=0.5)["w"]
    torch.testing.assert_close(merged, torch.tensor([3.5, -4.0, 0.0, 5.5, -2.0, -7.0]))


def test_ties_zero_sum_takes_the_majority_sign_of_the_whole_vector() -> None:
    taus = vectors(
        [2.0, 3.0, 1.0, 1.0, -1.0, 4.0], [-2.0, 1.0, 1.0, 1.0, -1.0, 4.0], [0.0, 2.0, 1.0, 1.0, -1.0, 4.0]
    )
    merged = ties(taus, density=1.0)["w"]  # signs 0 + + + - +: the tie goes to plus
    torch.testing.assert_close(merged, torch.tensor([2.0, 2.0, 1.0, 1.0, -1.0, 4.0]))
    flipped = ties([{"w": -t["w"]} for t in taus], density=1.0)["w"]
    torch.testing.assert_close(flipped, -merged)


def test_ties_per_tensor_trims_each_tensor_alone() -> None:
    taus = [{"big": torch.tensor([10.0, 9.0]), "small": torch.tensor([0.1, 0.2])}]
    over_all = ties(taus, density=0.5)
    torch.testing.assert_close(over_all["small"], torch.zeros(2))
    alone = ties(taus, density=0.5, trim="per_tensor")
    torch.testing.assert_close(alone["big"], torch.tensor([10.0, 0.0]))
    torch.testing.assert_close(alone["small"], torch.tensor([0.0, 0.2]))


def test_dare_by_hand() -> None:
    """Survivors are divided by 1 - p, the rest is zero, and the mask belongs to the expert's and the tensor's
    name.
    """
    taus = vectors([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0] * 6, [-1.0] * 6)
    alone = [dare([t], drop=0.5, names=[n], seed=3)["w"] for t, n in zip(taus, "abc", strict=True)]
    for tau, kept in zip(taus, alone, strict=True):
        assert set((kept / tau["w"]).tolist()) <= {0.0, 2.0}
        assert 0 < int((kept != 0).sum()) < 6
    together = dare(taus, drop=0.5, names=list("abc"), seed=3)["w"]
    torch.testing.assert_close(together, sum(alone))
    other = dare([{"v": taus[0]["w"], "w": taus[0]["w"]}], drop=0.5, names=["a"], seed=3)
    assert torch.equal(other["w"], alone[0])  # another tensor before it changes nothing
    assert not torch.equal(other["v"], other["w"])


def flush(value: float) -> float:
    """No denormals: the oracle's sums and float32 products treat them differently."""
    return 0.0 if abs(value) < 1e-30 else value


arrays = st.integers(1, 5).flatmap(
    lambda t: st.integers(1, 40).flatmap(
        lambda n: st.lists(
            st.lists(st.floats(-100, 100, width=32).map(flush), min_size=n, max_size=n), min_size=t, max_size=t
        )
    )
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(rows=arrays, density=st.floats(0.05, 1.0))
def test_ties_equals_the_oracle(rows: list[list[float]], density: float) -> None:
    got = ties(vectors(*rows), density=density)["w"].numpy()
    np.testing.assert_allclose(
        got, oracle_ties(np.array(rows, dtype=np.float32), density), rtol=1e-5, atol=1e-6
    )


@settings(max_examples=50, deadline=None)
@given(rows=arrays, method=st.sampled_from(METHODS), seed=st.integers(0, 5))
def test_order_of_experts_changes_nothing(rows: list[list[float]], method: str, seed: int) -> None:
    operator = Operator(method, density=0.5, drop=0.5, seed=seed)
    names = [str(i) for i in range(len(rows))]
    order = np.random.default_rng(seed).permutation(len(rows))
    taus = vectors(*rows)
    one = merge_vectors(taus, operator, names)["w"]
    two = merge_vectors([taus[i] for i in order], operator, [names[i] for i in order])["w"]
    assert float((one - two).abs().max()) <= 1e-7 * max(1.0, float(one.abs().max()))


@settings(max_examples=60, deadline=None)
@given(rows=arrays)
def test_identical_experts(rows: list[list[float]]) -> None:
    taus = vectors(rows[0]) * 3
    torch.testing.assert_close(average(taus)["w"], taus[0]["w"])
    torch.testing.assert_close(ties(taus, density=1.0)["w"], taus[0]["w"])
    torch.testing.assert_close(task_arithmetic(taus, lambda_=0.5)["w"], 1.5 * taus[0]["w"])


@pytest.mark.parametrize("method", ["average", "task_arithmetic", "ties"])
def test_one_expert_at_lambda_one_is_the_expert_to_the_last_bit(method: str) -> None:
    draw = torch.Generator().manual_seed(0)
    base = {"w": torch.randn(200, 900, generator=draw), "b": torch.randn(7, generator=draw)}
    expert = {n: v + 10 * torch.randn(v.shape, generator=draw) for n, v in base.items()}
    merged = merge(base, [expert], method, lambda_=1.0, density=1.0)
    assert all(torch.equal(merged[n], expert[n]) for n in base)


@settings(max_examples=40, deadline=None)
@given(
    data=st.integers(0, 1000), size=st.integers(1, 3000), share=st.floats(0.001, 1.0), wide=st.booleans(),
    quantised=st.booleans(),
)  # fmt: skip
def test_radix_selection_is_exact(data: int, size: int, share: float, wide: bool, quantised: bool) -> None:
    draw = torch.Generator().manual_seed(data)
    x = torch.randn(2, size, generator=draw, dtype=torch.float64 if wide else torch.float32)
    if quantised:  # many equal magnitudes, zeros, both signs
        x = (x * 2).round() / 2
    keep = max(1, int(share * size))
    got = kth_largest_magnitude(lambda: iter(x.split(700, dim=1)), keep)
    assert torch.equal(got, x.abs().sort(dim=1, descending=True).values[:, keep - 1 : keep])


def test_streaming_in_pieces_equals_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    import methods.merge_early_stop.operators as module

    draw = torch.Generator().manual_seed(1)
    taus = [{"a": torch.randn(33, 17, generator=draw), "b": torch.randn(5, generator=draw)} for _ in range(3)]
    for method in METHODS:
        whole = merge_vectors(taus, Operator(method, density=0.3, drop=0.5))
        monkeypatch.setattr(module, "PIECE", 64)
        pieces = merge_vectors(taus, Operator(method, density=0.3, drop=0.5))
        monkeypatch.undo()
        assert all(torch.equal(whole[n], pieces[n]) for n in whole)


def test_a_function_as_method() -> None:
    taus = vectors([1.0, 5.0, -3.0], [2.0, 4.0, 9.0], [3.0, -6.0, 1.0])
    merged = merge_vectors(taus, Operator(lambda piece: piece.median(dim=0).values, 2.0))["w"]
    torch.testing.assert_close(merged, torch.tensor([4.0, 8.0, 2.0]))
    with pytest.raises(ConfigError, match="returned shape"):
        merge_vectors(taus, Operator(lambda piece: piece))


# ---- DARE's statistics
# ---------------------------------------------------------------------------------------------


def test_dare_is_unbiased_and_keeps_the_right_share() -> None:
    from scipy.stats import binom

    draws, size, drop = 2000, 50, 0.9
    tau = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = torch.stack([dare([{"w": tau}], drop=drop, seed=s)["w"] for s in range(draws)]).double()
    error = kept.std(dim=0) / draws**0.5
    # 50 coordinates at 3 standard errors: the mean of the squared z-scores is the joint statement
    z = (kept.mean(dim=0) - tau) / error
    assert int((z.abs() > 3).sum()) <= 1
    assert float(z.mean().abs()) < 3 / size**0.5
    survivors = int((kept != 0).sum())
    low, high = binom.interval(0.999, draws * size, 1 - drop)
    assert low <= survivors <= high


# ---- peers
# ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def peers() -> dict[str, np.ndarray]:
    with np.load(PEERS, allow_pickle=False) as archive:
        return dict(archive)


def recorded_states(peers: dict[str, np.ndarray]) -> list[dict[str, torch.Tensor]]:
    names = [k.removeprefix("model0/") for k in peers if k.startswith("model0/")]
    return [{n: torch.from_numpy(peers[f"model{i}/{n}"]) for n in names} for i in range(4)]


@pytest.mark.parametrize(
    ("case", "method", "options"),
    [
        ("linear", "average", {}),
        ("task_arithmetic_0.3", "task_arithmetic", {"lambda_": 0.3}),
        ("ties_0.2", "ties", {"density": 0.2, "trim": "per_tensor"}),
        ("ties_0.5_lambda_0.7", "ties", {"density": 0.5, "lambda_": 0.7, "trim": "per_tensor"}),
    ],
)
def test_equals_mergekit(peers: dict[str, np.ndarray], case: str, method: str, options: dict) -> None:
    base, *experts = recorded_states(peers)
    merged = merge(base, experts, method, **options)
    for name, value in merged.items():
        expected = torch.from_numpy(peers[f"mergekit/{case}/{name}"])
        assert float((value - expected).abs().max()) <= 1e-6


@pytest.mark.parametrize("density", [0.2, 0.5])
def test_global_ties_equals_fusion_bench(peers: dict[str, np.ndarray], density: float) -> None:
    base, *experts = recorded_states(peers)
    taus = [{n: e[n] - base[n] for n in base} for e in experts]
    size = sum(v.numel() for v in base.values())
    # their kthvalue(n - k) is inclusive: they keep k + 1 entries
    one_more = (int(density * size) + 1.5) / size
    merged = ties(taus, density=one_more)
    flat = torch.cat([merged[n].flatten() for n in base])
    expected = torch.from_numpy(peers[f"fusion_bench/global_{density}"])
    assert float((flat - expected).abs().max()) <= 1e-6
    plain = ties(taus, density=density)
    differing = (torch.cat([plain[n].flatten() for n in base]) - expected).abs() > 1e-6
    assert int(differing.sum()) <= len(experts)


# ---- bad inputs
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings_", "word"),
    [
        ({"method": "fisher"}, "method='fisher'"),
        ({"lambda_": float("nan")}, "lambda=nan"),
        ({"lambda_": float("inf")}, "lambda=inf"),
        ({"density": 0.0}, "density=0.0"),
        ({"density": 1.2}, "density=1.2"),
        ({"drop": 1.0}, "drop=1.0"),
        ({"trim": "row"}, "trim='row'"),
        ({"then": "dare"}, "then='dare'"),
        ({"dtype": torch.float16}, "dtype"),
    ],
)
def test_wrong_settings_are_named(settings_: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        Operator(**settings_)
    assert "\n" not in str(caught.value)


def test_wrong_vectors_are_named() -> None:
    with pytest.raises(ConfigError, match="empty"):
        average([])
    with pytest.raises(ConfigError, match="differ"):
        average([{"a": torch.zeros(2)}, {"b": torch.zeros(2)}])
    with pytest.raises(ConfigError, match="differ"):
        average([{"a": torch.zeros(2)}, {"a": torch.zeros(3)}])
    with pytest.raises(NumericalError, match="expert 1: the task vector of w"):
        average(vectors([0.0, 1.0], [float("nan"), 1.0]))
    with pytest.raises(ConfigError, match="names"):
        Merger(Operator(), InMemory(vectors([1.0], [2.0]), ["a", "a"]))
