"""Path matrices, symbols and harmonics against their defining properties and e3nn."""

import math
from itertools import permutations

import pytest
import torch
from e3nn import o3
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.common.errors import ConfigError, DataError
from methods.tace import (
    CartesianHarmonics,
    Irreps,
    cartesian_3j,
    contraction_of,
    ictd,
    path_factor,
    path_matrix,
    project,
    to_cartesian,
    to_spherical,
)
from methods.tace.symbols import contract

TRIPLES = [(a, b, c) for a in range(5) for b in range(5) for c in range(abs(a - b), min(a + b, 4) + 1)]


@pytest.mark.parametrize(("rank", "count"), [(0, 1), (1, 1), (2, 3), (3, 7), (4, 19), (5, 51)])
def test_the_parts_of_a_tensor_are_orthogonal_and_complete(rank: int, count: int) -> None:
    parts = ictd(rank)
    assert len(parts) == count
    assert sum(part.matrix.shape[1] for part in parts) == 3**rank
    together = torch.cat([part.matrix for part in parts], dim=1)
    identity = torch.eye(3**rank, dtype=torch.float64)
    assert float((together.T @ together - identity).abs().max()) < 1e-12
    assert float((together @ together.T - identity).abs().max()) < 1e-12


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_only_the_climbing_path_is_symmetric_and_traceless(rank: int) -> None:
    for path, matrix in ictd(rank):
        tensor = matrix.reshape(*[3] * rank, -1)
        symmetric = all(
            torch.allclose(tensor, tensor.permute(*order, rank), atol=1e-12)
            for order in permutations(range(rank))
        )
        traceless = bool((torch.einsum("aa...->...", tensor).abs() < 1e-12).all())
        assert (symmetric and traceless) == (path == tuple(range(rank + 1)))


def test_a_part_turns_with_the_tensor() -> None:
    turn = o3.rand_matrix(dtype=torch.float64)
    both = torch.kron(torch.kron(turn, turn), turn)
    for path, matrix in ictd(3):
        wigner = o3.Irrep(path[-1], 1).D_from_matrix(turn)
        assert torch.allclose(both @ matrix, matrix @ wigner, atol=1e-12), path


@pytest.mark.parametrize("path", [(1, 0), (0, 0), (0, 2), (0, 1, -1), (), (0, 1, 1, 3)])
def test_what_is_no_path_is_refused(path: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"path .*start at 0"):
        path_matrix(path)


def test_matrices_that_would_fill_the_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 12"):
        path_matrix(13)
    with pytest.raises(ConfigError, match="rank 9"):
        ictd(9)
    with pytest.raises(ConfigError, match="rank -1"):
        ictd(-1)


@pytest.mark.parametrize(("l1", "l2", "l3"), TRIPLES)
def test_the_canonical_symbol_is_the_wigner_symbol_in_another_basis(l1: int, l2: int, l3: int) -> None:
    bases = [path_matrix(rank) for rank in (l1, l2, l3)]
    symbol = cartesian_3j(l1, l2, l3)
    wigner = o3.wigner_3j(l1, l2, l3, dtype=torch.float64)
    assert torch.allclose(torch.einsum("abc,ai,bj,ck->ijk", symbol, *bases), wigner, atol=1e-12)
    assert float(symbol.norm()) == pytest.approx(1, abs=1e-12)
    sign = (-1) ** (l1 + l2 + l3)
    assert torch.allclose(cartesian_3j(l2, l1, l3).transpose(0, 1), sign * symbol, atol=1e-12)


# s^2 = (S + 1)! prod (S - 2 l_i)! / (3^k prod (2 l_i)!), from the theory of contracted harmonic tensors.
@pytest.mark.parametrize(("l1", "l2", "l3"), TRIPLES)
def test_contraction_gives_the_dense_product(l1: int, l2: int, l3: int) -> None:
    torch.manual_seed(0)
    plan = contraction_of(l1, l2, l3)
    total, f = l1 + l2 + l3, math.factorial
    square = f(total + 1) * f(total - 2 * l1) * f(total - 2 * l2) * f(total - 2 * l3)
    square /= 3**plan.pairs * f(2 * l1) * f(2 * l2) * f(2 * l3)
    expected = ((2 if plan.crossed else 1) * 3**plan.pairs * square) ** -0.5
    assert abs(plan.scale) == pytest.approx(expected, rel=1e-12)

    first = torch.randn(4, 2, 2 * l1 + 1, dtype=torch.float64) @ path_matrix(l1).T
    second = torch.randn(4, 3, 2 * l2 + 1, dtype=torch.float64) @ path_matrix(l2).T
    dense = torch.einsum("zui,zvj,ijk->zuvk", first, second, cartesian_3j(l1, l2, l3))
    plain = contract(first, second, l1, l2, plan.pairs, plan.crossed) * plan.scale
    found = plain @ path_matrix(l3) @ path_matrix(l3).T
    assert torch.allclose(found, dense, atol=1e-12)


# The published symbol's sizes: Xu et al.'s released code, as the path's construction gives them.
@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ((2, 1, 1), 1 / 6),
        ((2, 1, 2), 1 / 2),
        ((2, 2, 1), 1 / 2),
        ((2, 2, 2), 15**-0.5),
        ((2, 2, 3), 3**-0.5),
        ((3, 1, 2), 1 / 15),
        ((3, 2, 1), 1 / 15),
        ((3, 3, 1), 1 / 3),
        ((1, 3, 2), 1.0),
        ((2, 3, 5), 1.0),
        ((3, 3, 0), 1.0),
    ],
)
def test_the_path_symbol_shrinks_some_couplings(ranks: tuple[int, int, int], expected: float) -> None:
    assert path_factor(*ranks) == pytest.approx(expected, abs=1e-10)
    symbol = cartesian_3j(*ranks, symbol="path")
    assert float(symbol.norm()) == pytest.approx((2 * ranks[2] + 1) ** 0.5, abs=1e-10)
    seen = torch.einsum("abc,ai,bj,ck->ijk", symbol, *(path_matrix(rank) for rank in ranks))
    wigner = o3.wigner_3j(*ranks, dtype=torch.float64) * expected * (2 * ranks[2] + 1) ** 0.5
    assert torch.allclose(seen, wigner, atol=1e-10)


@pytest.mark.parametrize("ranks", [(1, 1, 3), (2, 0, 1), (0, 0, 1)])
def test_ranks_that_do_not_couple_are_refused(ranks: tuple[int, int, int]) -> None:
    for call in (cartesian_3j, contraction_of):
        with pytest.raises(ConfigError, match=rf"l3 {ranks[2]}: l1 {ranks[0]} and l2 {ranks[1]} couple to"):
            call(*ranks)
    with pytest.raises(ConfigError, match="symbol 'e3nn'"):
        cartesian_3j(1, 1, 1, symbol="e3nn")  # type: ignore[arg-type]


@pytest.mark.parametrize("normalization", ["component", "norm", "integral"])
def test_harmonics_are_those_of_e3nn(normalization: str) -> None:
    vectors = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    irreps = Irreps.spherical_harmonics(5)
    found = CartesianHarmonics(5, normalization)(vectors)  # type: ignore[arg-type]
    wanted = o3.spherical_harmonics(list(range(6)), vectors, normalize=True, normalization=normalization)
    assert torch.allclose(to_spherical(found, irreps), wanted, atol=1e-12)
    assert torch.allclose(project(found, irreps), found, atol=1e-12)


def test_the_published_normalisation_of_harmonics() -> None:
    unit = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    second = CartesianHarmonics(2, "repo")(unit)[0, 4:].reshape(3, 3)
    assert torch.allclose(
        second, 1.5 * torch.diag(torch.tensor([-1 / 3, -1 / 3, 2 / 3], dtype=torch.float64))
    )


def test_harmonics_refuse_what_has_no_direction() -> None:
    with pytest.raises(DataError, match="length 0"):
        CartesianHarmonics(2)(torch.zeros(1, 3))
    with pytest.raises(DataError, match="last axis must be 3"):
        CartesianHarmonics(2)(torch.zeros(1, 2))
    with pytest.raises(ConfigError, match="normalization 'l2'"):
        CartesianHarmonics(2, "l2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="lmax -1"):
        CartesianHarmonics(-1)


MANY = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.sampled_from([1, -1])), max_size=4)


@given(MANY, st.integers(0, 2**31 - 1))
@settings(max_examples=30, deadline=None)
def test_a_change_of_basis_loses_nothing(parts: list[tuple[int, int, int]], seed: int) -> None:
    irreps = Irreps([(mul, (rank, parity)) for mul, rank, parity in parts])
    spherical = torch.randn(3, irreps.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    cartesian = to_cartesian(spherical, irreps)
    assert cartesian.shape == (3, irreps.cdim)
    assert torch.allclose(to_spherical(cartesian, irreps), spherical, atol=1e-12)
    assert torch.allclose(cartesian.norm(dim=1), spherical.norm(dim=1), atol=1e-12)
    noise = torch.randn(3, irreps.cdim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(
        project(noise, irreps), to_cartesian(to_spherical(noise, irreps), irreps), atol=1e-12
    )


def test_sizes_and_types_that_do_not_fit() -> None:
    with pytest.raises(
        DataError, match=r"must be 13, the sum of multiplicity times 3\^l over 1x0e\+1x1o\+1x2e"
    ):
        to_spherical(torch.zeros(2, 9), "0e+1o+2e")
    with pytest.raises(DataError, match=r"must be 9, the sum of multiplicity times 2 l \+ 1"):
        to_cartesian(torch.zeros(2, 13), "0e+1o+2e")
    with pytest.raises(TypeError, match="floating-point"):
        to_spherical(torch.zeros(2, 13, dtype=torch.int64), "0e+1o+2e")
    with pytest.raises(ConfigError, match="irreps_in '3z1': write irreps such as"):
        to_cartesian(torch.zeros(2, 3), "3z1")
