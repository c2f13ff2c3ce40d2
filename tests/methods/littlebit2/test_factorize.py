"""The mathematics of the factorisation: invariants, an exhaustive oracle, planted weights, peers, bad inputs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.littlebit2 import (
    BinaryFactors,
    LittleBitConfig,
    break_even,
    dual_svid,
    equal_bits_rank,
    factorize,
    haar_error,
    joint_itq,
    nominal_bits,
    rank_for,
    refit_scales,
    smallest_bpp,
    truncated_svd,
)
from methods.littlebit2.admm import admm, project
from methods.littlebit2.factorize import layer_generator
from methods.littlebit2.peers import half_quadratic, one_bit, relative_error
from methods.littlebit2.rotation import haar, polar_factor
from methods.littlebit2.signs import sgn
from methods.littlebit2.spectrum import alignment, coherence, decay

INITS = ("joint_itq", "random_rotation", "svd", "admm")
sizes = st.integers(1, 40)


def numbers(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spectrum_weight(
    outputs: int, inputs: int, gamma: float, seed: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    count = min(outputs, inputs)
    left, right = haar(outputs, numbers(seed), dtype), haar(inputs, numbers(seed + 1), dtype)
    s = torch.arange(1, count + 1, dtype=dtype) ** -gamma
    return (left[:, :count] * s) @ right[:count]


def planted(size: int, rank: int, seed: int) -> Tensor:
    g = numbers(seed)
    a, b = sgn(torch.randn(size, rank, generator=g)), sgn(torch.randn(rank, size, generator=g))
    h, middle, v = (torch.rand(n, generator=g) + 0.5 for n in (size, rank, size))
    return (h[:, None] * a * middle) @ (b * v)


# -- invariants -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, st.integers(1, 12), st.integers(0, 99), st.sampled_from([torch.float32, torch.float64]))
def test_rotation_is_orthogonal_and_leaves_the_product(
    outputs: int, inputs: int, rank: int, seed: int, dtype: torch.dtype
) -> None:
    g = numbers(seed)
    u, v = torch.randn(outputs, rank, generator=g).to(dtype), torch.randn(rank, inputs, generator=g).to(dtype)
    for polar in ("svd", "newton"):
        found = joint_itq(torch.cat([u, v.T]), n_iter=12, generator=numbers(seed), polar=polar)
        assert (found.r.T @ found.r - torch.eye(rank, dtype=dtype)).norm() <= 1e-5
        product = u @ v
        assert ((u @ found.r) @ (found.r.T @ v) - product).norm() <= 1e-5 * max(1.0, float(product.norm()))
        steps = np.diff(found.trace)
        assert (steps <= 1e-6 * found.trace[0] + 1e-6).all()  # each turn lowers ||B - X R||^2
        x = torch.cat([u, v.T]) @ found.r
        assert math.isclose(found.trace[-1], float((sgn(x) - x).square().sum()), rel_tol=1e-4, abs_tol=1e-4)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, st.integers(0, 99), st.sampled_from(INITS), st.booleans())
def test_factors_of_any_shape(outputs: int, inputs: int, seed: int, init: str, residual: bool) -> None:
    weight = torch.randn(outputs, inputs, generator=numbers(seed))
    rank = 1 + seed % min(outputs, inputs)
    config = LittleBitConfig(init=init, n_iter=5, residual=residual, seed=seed)  # type: ignore[arg-type]
    found = factorize(weight, rank, config)
    assert set(found.sign_u.unique().tolist()) | set(found.sign_v.unique().tolist()) <= {-1, 1}
    assert found.sign_u.shape == (1 + residual, outputs, rank)
    assert found.bits() == nominal_bits(outputs, inputs, rank, 1 + residual)
    if init != "admm":  # its last least-squares round may turn a scale negative; the product is what counts
        assert (found.h >= 0).all()
        assert (found.l >= 0).all()
        assert (found.g >= 0).all()
    assert math.isclose(
        found.stats["error"], relative_error(weight, found.dense()), rel_tol=1e-4, abs_tol=1e-5
    )
    again = factorize(weight, rank, config)
    assert torch.equal(found.dense(), again.dense())


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("shape", [(1, 9), (9, 1), (7, 5), (1, 1)])
def test_zero_and_rank_one_weights(init: str, shape: tuple[int, int]) -> None:
    nothing = factorize(torch.zeros(shape), 1, LittleBitConfig(init=init))  # type: ignore[arg-type]
    assert not nothing.dense().any()
    assert nothing.stats["error"] == 0
    g = numbers(3)
    weight = torch.randn(shape[0], 1, generator=g) @ torch.randn(1, shape[1], generator=g)
    one = factorize(weight, 1, LittleBitConfig(init=init))  # type: ignore[arg-type]
    assert relative_error(weight, one.dense()) <= 1e-6


def test_dual_svid_is_the_leading_singular_pair_of_the_magnitudes() -> None:
    g = numbers(1)
    for outputs, rank, inputs in ((17, 5, 9), (4, 12, 30), (8, 8, 1)):
        u = torch.randn(outputs, rank, generator=g, dtype=torch.float64)
        v = torch.randn(rank, inputs, generator=g, dtype=torch.float64)
        for matrix, first, second in zip(
            (u, v), *zip(*[dual_svid(u, v)[:2], dual_svid(u, v)[2:]], strict=True), strict=True
        ):
            p, s, qt = np.linalg.svd(matrix.abs().numpy())
            np.testing.assert_allclose(first, np.abs(p[:, 0]) * np.sqrt(s[0]), atol=1e-6)
            np.testing.assert_allclose(second, np.abs(qt[0]) * np.sqrt(s[0]), atol=1e-6)


# -- oracles --------------------------------------------------------------------------------------------------------


def test_joint_itq_against_every_rotation_of_the_plane() -> None:
    """r = 2: all angles, rotations and reflections, are the global optimum; restarts find it, one start comes near."""
    angles = torch.linspace(0, 2 * math.pi, 20_001, dtype=torch.float64)[:-1]
    cos, sin = angles.cos(), angles.sin()
    reached = near = 0
    for case in range(200):
        x = torch.randn(4 + case % 7, 2, generator=numbers(case), dtype=torch.float64)
        best = 0.0
        for sign in (1.0, -1.0):
            first = x[:, :1] * cos + x[:, 1:] * sin
            second = sign * (-x[:, :1] * sin + x[:, 1:] * cos)
            best = max(best, float((first.abs() + second.abs()).sum(0).max()))
        optimum = float(x.square().sum()) + x.numel() - 2 * best
        many = joint_itq(x, n_iter=12, generator=numbers(case), restarts=20).trace[-1]
        one = joint_itq(x, n_iter=12, generator=numbers(case)).trace[-1]
        assert many >= optimum - 1e-4
        reached += many <= optimum + 1e-4
        near += one <= 1.05 * optimum + 1e-9
    assert reached >= 196
    assert near >= 100


def numpy_signs(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, 1.0, -1.0)


def numpy_svid(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    u, s, vt = np.linalg.svd(np.abs(x))
    return np.abs(u[:, 0]) * np.sqrt(s[0]), np.abs(vt[0]) * np.sqrt(s[0])


@pytest.mark.parametrize("case", range(12))
def test_the_whole_factorisation_against_numpy(case: int) -> None:
    """Joint-ITQ, Dual-SVID and the product, written again from the paper's equations; zero rows and columns too."""
    random = np.random.default_rng(case)
    outputs, inputs = (int(n) for n in random.integers(2, 40, 2))
    rank = int(random.integers(1, min(outputs, inputs) + 1))
    weight = random.standard_normal((outputs, inputs)) * [1e-3, 1.0, 50.0][case % 3]
    if case % 2:
        weight[random.integers(outputs)] = 0
        weight[:, random.integers(inputs)] = 0
    found = factorize(torch.from_numpy(weight), rank, LittleBitConfig(seed=case, n_iter=6), name="x")

    # Singular vectors have no sign of their own, so both start from the same ones.
    u, s, vt = (t.numpy() for t in truncated_svd(torch.from_numpy(weight), rank)[:3])
    u, v = u[:, :rank] * np.sqrt(s[:rank]), np.sqrt(s[:rank])[:, None] * vt[:rank]
    start = torch.randn(rank, rank, dtype=torch.float64, generator=layer_generator(case, "x")).numpy()
    q, triangle = np.linalg.qr(start)
    rotation = q * numpy_signs(np.diag(triangle))
    x, trace = np.vstack([u, v.T]), []
    for _ in range(6):
        signs = numpy_signs(x @ rotation)
        trace.append(((signs - x @ rotation) ** 2).sum())
        p, _, qt = np.linalg.svd(signs.T @ x)
        rotation = qt.T @ p.T
    trace.append(((numpy_signs(x @ rotation) - x @ rotation) ** 2).sum())
    u, v = u @ rotation, rotation.T @ v
    (u1, u2), (v1, v2) = numpy_svid(u), numpy_svid(v)
    product = (u1[:, None] * numpy_signs(u) * (u2 * v1)) @ (numpy_signs(v) * v2)

    np.testing.assert_allclose(found.trace[0], trace, rtol=1e-9)
    np.testing.assert_allclose(found.dense().numpy(), product, atol=1e-9 * np.abs(weight).max())
    bits = found.packed()["weight"].numpy()[: outputs * -(-rank // 8)].reshape(outputs, -1)
    unpacked = np.unpackbits(bits, axis=1, bitorder="little")
    assert (2.0 * unpacked[:, :rank] - 1 == numpy_signs(u)).all()
    assert not unpacked[:, rank:].any()


def test_polar_solvers_agree_and_find_a_planted_rotation() -> None:
    for size in (1, 2, 9, 40):
        r = haar(size, numbers(size))
        for solver in ("svd", "newton"):
            # Procrustes: the nearest rotation to a rotation times a positive matrix is that rotation.
            positive = torch.randn(size, size, generator=numbers(7))
            positive = positive @ positive.T + torch.eye(size)
            assert (polar_factor(r @ positive, solver) - r).abs().max() <= 1e-4
        matrix = torch.randn(size, size, generator=numbers(5))
        assert (polar_factor(matrix, "svd") - polar_factor(matrix, "newton")).abs().max() <= 1e-3
    singular = torch.ones(4, 4)
    q = polar_factor(singular, "newton")
    assert (q.T @ q - torch.eye(4)).abs().max() <= 1e-5


def test_planted_factors_are_found() -> None:
    exact = planted(32, 1, 0)
    assert factorize(exact, 1, LittleBitConfig()).stats["error"] <= 1e-6
    for seed in range(3):
        weight = planted(256, 4, seed)
        rotated = factorize(weight, 4, LittleBitConfig(restarts=20, seed=seed))
        assert rotated.stats["error"] <= 0.05
        signs = rotated.sign_u[0].float(), rotated.sign_v[0].float()
        scales = refit_scales(weight, *signs, (rotated.h[0], rotated.l[0], rotated.g[0]), 10)
        refitted = BinaryFactors(rotated.sign_u, rotated.sign_v, *(s.unsqueeze(0) for s in scales))
        assert relative_error(weight, refitted.dense()) <= 1e-4
        assert (
            factorize(weight, 4, LittleBitConfig(init="admm", restarts=4, seed=seed)).stats["error"] <= 1e-3
        )


def test_random_rotation_obeys_its_closed_form() -> None:
    for gamma, rank in ((0.2, 48), (0.3, 96), (0.4, 128)):
        weight = spectrum_weight(256, 320, gamma, seed=rank)
        found = factorize(weight, rank, LittleBitConfig(init="random_rotation"))
        assert abs(found.stats["error"] / found.stats["haar_error"] - 1) <= 0.02
        svd = truncated_svd(weight, 256)
        assert math.isclose(haar_error(svd.s, rank, svd.energy), found.stats["haar_error"], rel_tol=1e-5)


def test_order_of_the_starts_and_coherence_on_a_spiky_basis() -> None:
    g = numbers(0)
    spiky = torch.randn(160, 160, generator=g)
    spiky = torch.linalg.qr(spiky.sign() * spiky.abs() ** 3).Q
    weight = (spiky * torch.arange(1, 161.0) ** -0.4) @ spiky.flip(0).T
    found = {init: factorize(weight, 40, LittleBitConfig(init=init)) for init in INITS}  # type: ignore[arg-type]
    errors = [found[init].stats["error"] for init in ("admm", "joint_itq", "random_rotation", "svd")]
    assert errors == sorted(errors)
    assert len(set(errors)) == 4
    assert found["joint_itq"].stats["coherence_after"] < found["joint_itq"].stats["coherence_before"] / 2
    assert (
        found["svd"].stats["alignment_after"] < 0.7 < found["random_rotation"].stats["alignment_after"] < 0.82
    )
    assert found["joint_itq"].stats["alignment_after"] > 0.83


def test_residual_branch_corrects_what_the_first_leaves() -> None:
    weight = spectrum_weight(64, 96, 0.3, seed=1)
    one = factorize(weight, 24, LittleBitConfig())
    two = factorize(weight, 24, LittleBitConfig(residual=True))
    assert torch.equal(one.sign_u[0], two.sign_u[0])
    assert two.stats["error"] < one.stats["error"]


def test_outer_scales_are_worth_their_bits() -> None:
    weight = spectrum_weight(64, 96, 0.3, seed=1) * torch.logspace(-1, 1, 96)
    with_scales = factorize(weight, 24, LittleBitConfig())
    without = factorize(weight, 24, LittleBitConfig(scales="latent_only"))
    assert torch.equal(with_scales.sign_u, without.sign_u)
    assert (without.h == 1).all()
    assert (without.g == 1).all()
    assert with_scales.stats["error"] < without.stats["error"]


def test_refit_never_raises_the_error() -> None:
    for seed in range(5):
        weight = torch.randn(20, 30, generator=numbers(seed))
        before = factorize(weight, 6, LittleBitConfig(seed=seed)).stats["error"]
        assert factorize(weight, 6, LittleBitConfig(seed=seed, refit=4)).stats["error"] <= before + 1e-6


def test_options_of_the_rotation() -> None:
    weight = spectrum_weight(48, 80, 0.4, seed=2)
    rows = factorize(weight, 16, LittleBitConfig(itq_target="row_normalised"))
    assert rows.stats["error"] < factorize(weight, 16, LittleBitConfig(init="svd")).stats["error"]
    plain = factorize(weight, 16, LittleBitConfig(n_iter=0))
    assert torch.equal(plain.dense(), factorize(weight, 16, LittleBitConfig(init="random_rotation")).dense())
    near = truncated_svd(weight, 16, solver="randomized", generator=numbers(0))
    far = truncated_svd(weight, 16, solver="exact")
    torch.testing.assert_close(near.s, far.s[:16], rtol=2e-2, atol=1e-3)


# -- ADMM and peers -------------------------------------------------------------------------------------------------


def test_admm_projection_and_progress() -> None:
    matrix = torch.randn(12, 9, generator=numbers(4))
    projected = project(matrix, rounds=30)
    p, s, qt = np.linalg.svd(matrix.abs().numpy())
    expected = np.sign(matrix.numpy()) * np.outer(np.abs(p[:, 0]), np.abs(qt[0])) * s[0]
    np.testing.assert_allclose(projected, expected, atol=1e-4)
    weight = spectrum_weight(40, 40, 0.3, seed=3)
    svd = truncated_svd(weight, 12)
    root = svd.s[:12].sqrt()
    found = admm(weight, svd.u[:, :12] * root, root[:, None] * svd.vt[:12], sweeps=30)
    assert min(found.trace) < 0.9 * found.trace[0]
    assert math.isclose(relative_error(weight, found.a @ found.b), min(found.trace), rel_tol=1e-4)


def test_one_bit_and_half_quadratic_quantisation() -> None:
    weight = torch.randn(64, 128, generator=numbers(6))
    one = one_bit(weight)
    assert one.bits == 64 * 128 + 16 * (64 + 128)
    assert abs(relative_error(weight, one.weight) - (1 - 2 / math.pi)) < 0.03  # a Gaussian keeps 2 / pi
    # What hqq 0.2.8.post1 leaves of the same weight (group 64, axis 1, float scales).
    for bits, theirs in ((2, 0.192799), (4, 0.007333)):
        plain = half_quadratic(weight, bits, 64, optimise=False)
        better = half_quadratic(weight, bits, 64)
        assert relative_error(weight, better.weight) == pytest.approx(theirs, rel=0.015)
        assert better.bits == 64 * 128 * bits + 32 * 128
        assert relative_error(weight, better.weight) <= relative_error(weight, plain.weight) + 1e-3
        assert all(len(row.unique()) <= 2**bits for row in better.weight.reshape(-1, 64))


# -- bits -----------------------------------------------------------------------------------------------------------


def test_bits_by_the_formula_on_a_thousand_shapes() -> None:
    pick = np.random.default_rng(0)
    for _ in range(1000):
        o, i = (int(n) for n in pick.integers(8, 4096, 2))
        bpp, residual = float(pick.uniform(0.1, 1.0)), bool(pick.integers(2))
        rank, clamped = rank_for(o, i, bpp, residual=residual)
        b = 2 if residual else 1
        expected = b * (rank * o + rank * i + 16 * rank + 16 * o + 16 * i)
        assert nominal_bits(o, i, rank, b) == expected
        assert rank % 8 == 0 or clamped
        assert 1 <= rank <= min(o, i)
        if not clamped:
            assert expected <= bpp * o * i + 1e-6
            assert expected > (bpp * o * i) - 8 * b * (o + i + 16) - 1e-6
        low = equal_bits_rank(o, i, expected)
        assert 16 * low * (o + i) >= expected - 1


def test_targets_that_small_layers_cannot_reach() -> None:
    rank, clamped = rank_for(192, 576, 0.1)
    assert (rank, clamped) == (8, True)
    assert math.isclose(smallest_bpp(576, 576, False), (8 * 1168 + 16 * 1152) / 576**2)
    with pytest.raises(ConfigError, match=r"bpp 0\.1: k \(192x576\) needs at least 0\.168"):
        factorize(torch.ones(192, 576), config=LittleBitConfig(bpp=0.1, strict=True), name="k")
    kv = LittleBitConfig(kv_factor=2.0)
    weight = torch.randn(64, 128, generator=numbers(0))
    plain = factorize(weight, config=kv, name="q_proj").rank
    assert factorize(weight, config=kv, name="blocks.0.k_proj").rank == min(2 * plain, 64)


def test_break_even_of_the_closed_form() -> None:
    values = [break_even(576, rank_for(576, 576, b).rank, int(b * 18)) for b in (0.3, 0.55, 1.0)]
    np.testing.assert_allclose(values, [0.51, 0.49, 0.47], atol=0.03)


def test_facts_about_a_spectrum() -> None:
    s = torch.arange(1, 300.0, dtype=torch.float64) ** -0.37
    assert math.isclose(decay(s), 0.37, abs_tol=1e-6)
    assert math.isnan(decay(torch.zeros(9)))
    spike, flat = torch.zeros(50, 1), torch.ones(50, 1)
    spike[7] = 3
    assert coherence(torch.cat([spike, flat], 1)).tolist() == [50, 1]
    assert math.isclose(alignment(flat), 1)
    assert abs(alignment(torch.randn(400, 400, generator=numbers(0))) - math.sqrt(2 / math.pi)) < 5e-3


# -- bad inputs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"bpp": 0}, "bpp 0: give a number above 0"),
        ({"bpp": float("nan")}, "bpp nan: give a number above 0"),
        ({"bpp": float("inf")}, "bpp inf: give"),
        ({"bpp": "0.5"}, "bpp '0.5': give"),
        ({"bpp": True}, "bpp True: give"),
        ({"init": "itq"}, "init 'itq': choose one of joint_itq, random_rotation, svd, admm"),
        ({"n_iter": -1}, "n_iter -1: give a whole number of at least 0"),
        ({"n_iter": 2.5}, "n_iter 2.5: give a whole number"),
        ({"restarts": 0}, "restarts 0: give a whole number of at least 1"),
        ({"refit": 1.5}, "refit 1.5: give"),
        ({"min_rank": "8"}, "min_rank '8': give"),
        ({"multiple": 0}, "multiple 0: give"),
        ({"kv_factor": 0}, "kv_factor 0: give a number above 0"),
        ({"kv_factor": float("inf")}, "kv_factor inf: give"),
        ({"svd": "fast"}, "svd 'fast': choose one of auto, exact, randomized"),
        ({"scales": None}, "scales None: choose one of dual_svid, latent_only"),
        ({"residual": "yes"}, "residual 'yes': give True or False"),
        ({"strict": 1}, "strict 1: give True or False"),
        ({"seed": None}, "seed None: give a whole number"),
        # The letters of a string are parts of almost every name.
        ({"include": "q_proj"}, "include 'q_proj': give a tuple of parts of layer names"),
        ({"exclude": (1,)}, r"exclude \(1,\): give a tuple"),
        ({"exclude": ("",)}, r"exclude \('',\): give a tuple"),
    ],
)
def test_wrong_settings(settings_: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LittleBitConfig(**settings_)  # type: ignore[arg-type]


def test_wrong_arguments_of_the_parts() -> None:
    x = torch.randn(6, 2, generator=numbers(0))
    for wrong, line in (
        ({"target": "rows"}, "target 'rows': choose one of unit, row_normalised"),
        ({"polar": "qr"}, "polar 'qr': choose"),
        ({"n_iter": -1}, "n_iter -1: give"),
        ({"restarts": 0}, "restarts 0: give"),
        ({"start": torch.eye(3)}, r"start of shape \(3, 3\): give \[2, 2\]"),
    ):
        with pytest.raises(ConfigError, match=line):
            joint_itq(x, generator=numbers(0), **wrong)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"factors of shape \(6,\) are no matrix"):
        joint_itq(x[:, 0], generator=numbers(0))
    with pytest.raises(NumericalError, match="the factors hold NaN or infinity"):
        joint_itq(x * math.nan, generator=numbers(0))
    with pytest.raises(ConfigError, match="solver 'fast': choose"):
        truncated_svd(x, 1, solver="fast")  # type: ignore[arg-type]
    for field in ("outputs", "inputs", "min_rank", "multiple"):
        with pytest.raises(ConfigError, match=f"{field} 0: give a whole number of at least 1"):
            rank_for(**{"outputs": 9, "inputs": 9, "bpp": 1.0, field: 0})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="bpp inf: give"):
        rank_for(9, 9, math.inf)


def test_wrong_weights_and_ranks() -> None:
    for bad in (float("nan"), float("inf")):
        with pytest.raises(DataError, match="holds NaN or infinity"):
            factorize(torch.tensor([[1.0, bad]]), 1)
    with pytest.raises(DataError, match="is no matrix"):
        factorize(torch.ones(3), 1)
    for rank in (0, 5):
        with pytest.raises(ConfigError, match=f"rank {rank}: a weight of 4x6 allows 1 to 4"):
            factorize(torch.ones(4, 6), rank)
    with pytest.raises(ConfigError, match=r"rank 2\.5: give a whole number"):
        factorize(torch.ones(4, 6), 2.5)  # type: ignore[arg-type]
    for wrong, kind in ((torch.ones(4, 6).long(), "torch.int64"), (np.ones((4, 6)), "ndarray")):
        with pytest.raises(DataError, match=f"a weight of {kind} holds no floating-point numbers"):
            factorize(wrong, 1)  # type: ignore[arg-type]
    weight = torch.randn(40, 24, generator=numbers(0))
    for spectrum in (truncated_svd(weight, 4, solver="randomized"), truncated_svd(weight.T, 8)):
        with pytest.raises(
            DataError, match=r"svd: is of .* the weight is 40x24 and the rank 8; leave it out"
        ):
            factorize(weight, 8, svd=spectrum)
    with pytest.raises(ConfigError, match="'bbp' is no setting of LittleBitConfig"):
        factorize(weight, bbp=0.4)
    with pytest.raises(ConfigError, match="not both"):
        factorize(torch.ones(4, 6), 1, LittleBitConfig(), bpp=1.0)
    with pytest.raises(ConfigError, match="'bits' is no setting"):
        LittleBitConfig.from_dict({"bits": 3})
    config = LittleBitConfig(include=("mlp",), bpp=0.3)
    assert LittleBitConfig.from_dict(config.to_dict()) == config
