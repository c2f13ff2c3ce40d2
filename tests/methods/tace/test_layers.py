"""Products and layers against e3nn with the same weights, and the couplings of many tensors."""

from itertools import product
from typing import Any

import pytest
import torch
from e3nn import nn as e3nn_nn
from e3nn import o3
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import subspace_angles
from torch import Tensor

from methods.common.errors import ConfigError, DataError
from methods.tace import (
    Gate,
    Irreps,
    Linear,
    NormActivation,
    TensorProduct,
    ggcc,
    path_factor,
    path_matrix,
    to_cartesian,
    to_spherical,
)

FIRST, SECOND = Irreps("3x0e+2x1o+2x2e+1x3o"), Irreps("2x0e+3x1o+2x2e+1x1e")
SIZES = {
    "uvw": lambda u, v: 3,
    "uvu": lambda u, v: u,
    "uvv": lambda u, v: v,
    "uuu": lambda u, v: u,
    "uuw": lambda u, v: 4,
    "uvuv": lambda u, v: u * v,
}


def every_path(mode: str, weighted: bool = True) -> tuple[Irreps, list[tuple[Any, ...]]]:
    """An output for each coupling to rank 3 at most, and two couplings into the last one."""
    out, found = [], []
    for (i, (u, one)), (j, (v, two)) in product(enumerate(FIRST), enumerate(SECOND)):
        if u != v and mode in ("uuu", "uuw"):
            continue
        for ir in one * two:
            if ir.l <= 3:
                found.append((i, j, len(out), mode, weighted, 0.5 + len(out) % 3))
                out.append((SIZES[mode](u, v), ir))
    repeat = found[-1]
    return Irreps(out), [*found, (*repeat[:5], 2.0)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("backend", ["auto", "contraction", "dense", "spherical"])
@pytest.mark.parametrize("mode", list(SIZES))
@pytest.mark.parametrize("shared", [True, False])
def test_the_product_is_that_of_e3nn(mode: str, backend: Any, shared: bool) -> None:
    out, instructions = every_path(mode)
    peer = o3.TensorProduct(
        FIRST, SECOND, out, instructions, internal_weights=False, shared_weights=shared, compile_right=False
    )
    weight = normal(peer.weight_numel) if shared else normal(5, peer.weight_numel)
    first, second = normal(5, FIRST.dim, seed=1), normal(5, SECOND.dim, seed=2)
    wanted = to_cartesian(peer(first, second, weight), out)
    ours = TensorProduct(
        FIRST, SECOND, out, instructions, internal_weights=False, shared_weights=shared, backend=backend
    )
    assert ours.weight_numel == peer.weight_numel
    found = ours(to_cartesian(first, FIRST), to_cartesian(second, SECOND), weight)
    assert float((found - wanted).abs().max()) < 1e-12
    single = ours(
        to_cartesian(first, FIRST).float(), to_cartesian(second, SECOND).float(), weight.float()
    ).double()
    assert float((single - wanted).norm() / wanted.norm()) < 2e-6


@pytest.mark.parametrize("irrep_normalization", ["component", "norm", "none"])
@pytest.mark.parametrize("path_normalization", ["element", "path", "none"])
@pytest.mark.parametrize("backend", ["contraction", "dense"])
def test_every_normalisation_without_weights(
    irrep_normalization: str, path_normalization: str, backend: Any
) -> None:
    out, instructions = every_path("uvu", weighted=False)
    options = {"irrep_normalization": irrep_normalization, "path_normalization": path_normalization}
    peer = o3.TensorProduct(FIRST, SECOND, out, instructions, compile_right=False, **options)
    first, second = normal(2, 3, FIRST.dim), normal(2, 3, SECOND.dim, seed=2)
    ours = TensorProduct(FIRST, SECOND, out, instructions, backend=backend, **options)
    found = ours(to_cartesian(first, FIRST), to_cartesian(second, SECOND))
    assert torch.allclose(to_spherical(found, out), peer(first, second), atol=1e-12)


@pytest.mark.parametrize("backend", ["contraction", "dense", "spherical"])
def test_the_path_symbol_scales_each_path(backend: Any) -> None:
    first, second = normal(4, 9), normal(4, 9, seed=1)
    for rank in range(5):
        made = [
            TensorProduct("2e", "2e", f"{rank}e", [(0, 0, 0, "uuu", False)], backend=backend, symbol=symbol)
            for symbol in ("canonical", "path")
        ]
        inputs = [project_two(value) for value in (first, second)]
        plain, published = (tp(*inputs) for tp in made)
        assert torch.allclose(published, plain * path_factor(2, 2, rank), atol=1e-12)


def project_two(value: Tensor) -> Tensor:
    basis = path_matrix(2)
    return value @ basis @ basis.T


def test_a_later_projection_is_the_same() -> None:
    out, instructions = every_path("uvu")
    first, second = to_cartesian(normal(5, FIRST.dim), FIRST), to_cartesian(normal(5, SECOND.dim), SECOND)
    weight = normal(TensorProduct(FIRST, SECOND, out, instructions).weight_numel)
    now, later = (
        TensorProduct(FIRST, SECOND, out, instructions, internal_weights=False, project=projected)
        for projected in (True, False)
    )
    raw = later(first, second, weight)
    assert not torch.allclose(raw, now(first, second, weight))
    assert torch.allclose(to_spherical(raw, out), to_spherical(now(first, second, weight), out), atol=1e-12)


def test_the_spherical_twin_has_the_same_class_and_weights() -> None:
    out, instructions = every_path("uvw")
    twins = {
        basis: TensorProduct(FIRST, SECOND, out, instructions, basis=basis)
        for basis in ("cartesian", "spherical")
    }
    twins["spherical"].load_state_dict(twins["cartesian"].state_dict())
    first, second = normal(5, FIRST.dim), normal(5, SECOND.dim, seed=1)
    one = twins["spherical"](first, second)
    other = twins["cartesian"](to_cartesian(first, FIRST), to_cartesian(second, SECOND))
    assert torch.allclose(to_spherical(other, out), one, atol=1e-12)


@given(st.sampled_from(["uvw", "uvu", "uuu"]), st.integers(0, 2**31 - 1), st.sampled_from([1, -1]))
@settings(max_examples=20, deadline=None)
def test_the_product_turns_with_its_inputs(mode: str, seed: int, sign: int) -> None:
    torch.manual_seed(seed)
    out, instructions = every_path(mode)
    ours = TensorProduct(FIRST, SECOND, out, instructions).double()
    turn = sign * o3.rand_matrix()
    first, second = normal(3, FIRST.dim, seed=seed), normal(3, SECOND.dim, seed=seed // 2)
    turned = [
        to_cartesian(value @ irreps.D_from_matrix(turn).T, irreps)
        for value, irreps in ((first, FIRST), (second, SECOND))
    ]
    before = to_spherical(ours(to_cartesian(first, FIRST), to_cartesian(second, SECOND)), out)
    after = to_spherical(ours(*turned), out)
    assert torch.allclose(after, before @ out.D_from_matrix(turn).T, atol=1e-10)


@pytest.mark.parametrize(
    ("instruction", "words"),
    [
        ((0, 0, 0, "uvw"), "give \\(i_in1, i_in2, i_out, mode, has_weight\\)"),
        ((0, 7, 0, "uvw", True), "i_in2 7 is no irrep"),
        ((1, 1, 1, "uvw", True), "rank or parity forbids"),
        ((0, 0, 0, "abc", True), "mode 'abc'"),
        ((0, 0, 0, "uvu", True), "multiplicities 3, 2, 5 do not fit mode uvu"),
        ((0, 0, 0, "uvw", False), "set has_weight=True"),
    ],
)
def test_instructions_that_do_not_fit(instruction: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=f"instruction 0.*{words}"):
        TensorProduct(FIRST, SECOND, "5x0e+2x1o", [instruction])


def test_other_settings_that_do_not_fit() -> None:
    instruction = [(0, 0, 0, "uvw", True)]
    with pytest.raises(ConfigError, match="backend 'gpu'"):
        TensorProduct(FIRST, SECOND, "5x0e", instruction, backend="gpu")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="internal_weights=True: held weights are shared"):
        TensorProduct(FIRST, SECOND, "5x0e", instruction, shared_weights=False)
    ours = TensorProduct(FIRST, SECOND, "5x0e", instruction, internal_weights=False)
    first, second = torch.zeros(2, FIRST.cdim), torch.zeros(2, SECOND.cdim)
    with pytest.raises(DataError, match="holds none; give 30 numbers"):
        ours(first, second)
    with pytest.raises(DataError, match=r"weight \(2, 30\): must be \(30,\)"):
        ours(first, second, torch.zeros(2, 30))
    with pytest.raises(DataError, match=r"second .*leading axes must be \(2,\)"):
        ours(first, second[:1], torch.zeros(30))
    with pytest.raises(DataError, match=f"first .* must be {FIRST.cdim}"):
        ours(torch.zeros(2, FIRST.dim), second, torch.zeros(30))


@pytest.mark.parametrize("basis", ["cartesian", "spherical"])
def test_linear_is_that_of_e3nn(basis: Any) -> None:
    out = "4x0e+2x0e+3x1o+2x2o+1x2e"
    peer = o3.Linear(FIRST, out).double()
    ours = Linear(FIRST, out, basis).double()
    assert ours.weight_numel == peer.weight_numel
    ours.weight.data.copy_(peer.weight.data)
    features = normal(2, 3, FIRST.dim)
    wanted = peer(features)
    if basis == "cartesian":
        wanted, features = to_cartesian(wanted, out), to_cartesian(features, FIRST)
    assert torch.allclose(ours(features), wanted, atol=1e-12)


@pytest.mark.parametrize("basis", ["cartesian", "spherical"])
def test_gate_is_that_of_e3nn(basis: Any) -> None:
    peer = e3nn_nn.Gate("4x0e", [torch.nn.functional.silu], "5x0e", [torch.sigmoid], "3x1o+2x2e")
    ours = Gate("4x0e", torch.nn.functional.silu, "3x1o+2x2e", torch.sigmoid, basis)
    assert ours.irreps_in.dim == peer.irreps_in.dim
    features = normal(6, peer.irreps_in.dim)
    wanted = peer(features)
    if basis == "cartesian":
        wanted, features = to_cartesian(wanted, ours.irreps_out), to_cartesian(features, ours.irreps_in)
    assert torch.allclose(ours(features), wanted, atol=1e-12)


@pytest.mark.parametrize("basis", ["cartesian", "spherical"])
def test_norm_activation_is_that_of_e3nn(basis: Any) -> None:
    peer = e3nn_nn.NormActivation(FIRST, torch.tanh, bias=True)
    ours = NormActivation(FIRST, torch.tanh, bias=True, basis=basis)
    assert ours.biases is not None
    for layer in (peer, ours):
        layer.biases.data.copy_(normal(FIRST.num_irreps))
    features = normal(6, FIRST.dim)
    wanted = peer(features)
    if basis == "cartesian":
        wanted, features = to_cartesian(wanted, FIRST), to_cartesian(features, FIRST)
    assert torch.allclose(ours(features), wanted, atol=1e-10)


def test_norm_activation_that_scales_by_the_function_alone() -> None:
    features = normal(6, 3)
    expected = features * features.norm(dim=1, keepdim=True).tanh()
    assert torch.allclose(NormActivation("1o", torch.tanh, normalize=False)(features), expected)


def test_gradients_at_nothing_are_finite() -> None:
    features = torch.zeros(2, FIRST.cdim, dtype=torch.float64, requires_grad=True)
    NormActivation(FIRST, torch.tanh)(features).sum().backward()
    assert features.grad is not None
    assert bool(features.grad.isfinite().all())


def test_layers_refuse_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="irreps_scalars 2x0o: give even scalars"):
        Gate("2x0o", torch.tanh, "1o", torch.sigmoid)
    with pytest.raises(ConfigError, match="irreps_gated 1x0e: give tensors of rank 1"):
        Gate("2x0e", torch.tanh, "0e", torch.sigmoid)
    with pytest.raises(ConfigError, match="epsilon 0"):
        NormActivation("1o", torch.tanh, epsilon=0)


def equivariant_maps(irreps: Irreps, rank: int, nu: int, parity: int) -> Tensor:
    """All linear maps from `nu` tensors to one that turn with them: those that no rotation or inversion changes."""
    target = o3.Irrep(rank, parity)
    space = Irreps([(1, target)])
    size = space.dim * irreps.dim**nu
    torch.manual_seed(0)
    rest = []
    for turn in (o3.rand_matrix(), o3.rand_matrix(), -torch.eye(3)):
        change = space.D_from_matrix(turn)
        for _ in range(nu):
            change = torch.kron(change, irreps.D_from_matrix(turn))
        rest.append(change - torch.eye(size))
    _, values, vectors = torch.linalg.svd(torch.cat(rest), full_matrices=False)
    return vectors[values < 1e-9].T


@pytest.mark.parametrize(("nu", "rank"), [(1, 1), (2, 0), (2, 1), (2, 2), (3, 0)])
def test_chains_span_every_equivariant_map(nu: int, rank: int) -> None:
    irreps = Irreps("0e+1o+2e")
    found = ggcc(irreps, rank, nu, basis="spherical")
    columns = found.reshape(-1, found.shape[-1])
    wanted = equivariant_maps(irreps, rank, nu, (-1) ** rank)
    assert columns.shape[1] == wanted.shape[1]
    assert float(subspace_angles(columns.numpy(), wanted.numpy()).max()) < 1e-7


@pytest.mark.parametrize(("nu", "rank"), [(1, 2), (2, 1), (3, 2)])
def test_cartesian_coefficients_are_the_spherical_ones_in_another_basis(nu: int, rank: int) -> None:
    irreps = Irreps("0e+1o+2e")
    cartesian, spherical = ggcc(irreps, rank, nu), ggcc(irreps, rank, nu, basis="spherical")
    assert cartesian.shape == (3**rank, irreps.cdim**nu, spherical.shape[-1])
    change = torch.block_diag(*(path_matrix(ir.l) for _, ir in irreps))
    inputs = change
    for _ in range(nu - 1):
        inputs = torch.kron(inputs, change)
    back = torch.einsum("am,bi,abn->min", path_matrix(rank), inputs, cartesian)
    assert torch.allclose(back, spherical, atol=1e-12)


def test_chains_through_few_ranks_and_both_normalisations() -> None:
    every, few = ggcc("0e+1o+2e", 1, 3), ggcc("0e+1o+2e", 1, 3, through=(0, 1))
    assert few.shape[-1] < every.shape[-1]
    component, norm = (ggcc("1o", 0, 2, normalization=name) for name in ("component", "norm"))
    assert torch.allclose(norm, component * 3)  # sqrt(3 * 3) against sqrt(1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("2x1o", 0, 2), "give each irrep once"),
        (("0e", 1, 2), "no chain of 2 irreps of 1x0e ends at 1o"),
        (("0e", -1, 2), "L -1"),
        (("0e", 0, 0), "nu 0"),
    ],
)
def test_chains_that_are_none(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ggcc(*arguments)
