"""The algebra of the three spaces: invariances, exact forms, and that the estimates are what they are called."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.pruning_representations.second_order import (
    angular,
    cosine_of_probabilities,
    kl,
    kl_cumulant,
    second_order_cos,
    second_order_kl,
    third_order,
)

draws = settings(max_examples=200, deadline=None)
sizes, seeds = st.integers(5, 2000), st.integers(0, 2**31 - 1)


def logits(size: int, seed: int, spread: float = 2.0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    z, dz = torch.randn(2, size, generator=rng, dtype=torch.float64)
    return spread * z, dz


def one_minus_cosine(z: Tensor, z2: Tensor) -> Tensor:
    """1 - cos(p, p') without its cancellation: half the squared distance of the unit vectors."""
    p, q = z.softmax(-1), z2.softmax(-1)
    return (p / p.norm() - q / q.norm()).square().sum() / 2


@draws
@given(sizes, seeds)
def test_estimates_ignore_a_constant_and_scale_with_the_square(size: int, seed: int) -> None:
    z, dz = logits(size, seed)
    for estimate in (second_order_kl, second_order_cos):
        value = estimate(z, z + dz)
        torch.testing.assert_close(estimate(z, z + dz + 3.25), value, rtol=1e-12, atol=0)
        torch.testing.assert_close(estimate(z, z + 0.125 * dz), value * 0.125**2, rtol=1e-12, atol=0)


@draws
@given(sizes, seeds)
def test_the_estimates_error_is_of_first_order(size: int, seed: int) -> None:
    """|real / estimate - 1| is at most 1 % at s = 1e-3 and halves with s, where it is not itself near zero."""
    z, dz = logits(size, seed)
    for real, estimate in (
        (kl, second_order_kl),
        (one_minus_cosine, second_order_cos),
    ):
        errors = [float(real(z, z + s * dz) / estimate(z, z + s * dz) - 1) for s in (1e-3, 5e-4)]
        assert abs(errors[0]) <= 0.01
        if abs(errors[0]) > 2e-4:  # the third cumulant is not near zero by chance
            assert np.log2(errors[0] / errors[1]) == pytest.approx(1, abs=0.1)


@draws
@given(sizes, seeds, st.sampled_from([0.25, 0.5, 1.0, 2.0]))
def test_kl_is_its_other_exact_form_is_not_negative_and_follows_the_temperature(
    size: int, seed: int, T: float
) -> None:
    z, dz = logits(size, seed)
    value = kl(z, z + dz, T)
    torch.testing.assert_close(value, kl_cumulant(z, z + dz, T), rtol=0, atol=1e-10)
    assert float(value) >= -1e-12
    assert float(kl(z, z + 1e-9 * dz, T)) >= -1e-12
    for f in (kl, second_order_kl, second_order_cos, cosine_of_probabilities):
        torch.testing.assert_close(f(z, z + dz, T), f(z / T, (z + dz) / T, 1.0), rtol=1e-12, atol=1e-12)


def test_at_fixed_weights_the_estimate_grows_with_the_inverse_square_of_the_temperature() -> None:
    z, dz = logits(50, 3)
    # The same probabilities at each temperature: z is scaled with T, dz is not.
    values = [float(second_order_kl(T * z, T * z + dz, T)) * T**2 for T in (0.25, 0.5, 1.0, 2.0)]
    assert values == pytest.approx([values[0]] * 4, rel=1e-12)
    # With z fixed the law does not hold: p concentrates as T falls.
    assert float(second_order_kl(z, z + dz, 0.05)) * 0.05**2 < 0.1 * values[0]


@draws
@given(sizes, seeds)
def test_the_angle_from_its_two_parts_is_the_cosine(size: int, seed: int) -> None:
    h, dh = logits(size, seed)
    parts = angular(h, h + dh)
    torch.testing.assert_close(parts.exact, parts.cosine, rtol=0, atol=1e-12)
    small = angular(h, h + 1e-4 * dh)
    assert float(small.first / small.corrected) == pytest.approx(1, abs=1e-2)
    # Far along h, only the corrected estimate is near.
    far = angular(h, 3 * h + 0.3 * dh)
    assert (
        abs(float(far.corrected / (1 - far.cosine)) - 1) < 0.1 < abs(float(far.first / (1 - far.cosine)) - 1)
    )


def test_kl_has_no_bias_where_the_changed_probability_is_zero_in_float32() -> None:
    z = torch.tensor([0.0, 0.0])
    z2 = torch.tensor([0.0, -200.0])  # softmax gives exactly 0 there
    assert float(z2.softmax(-1)[1]) == 0
    assert float(kl(z, z2)) == pytest.approx(0.5 * 200 - np.log(2), rel=1e-5)
    assert float(kl(z.double(), z2.double())) == pytest.approx(0.5 * 200 - np.log(2), rel=1e-12)


def test_kl_against_numpy_and_the_order_of_its_arguments() -> None:
    z, dz = logits(40, 1)
    p, q = (np.exp(x) / np.exp(x).sum() for x in (z.numpy(), (z + dz).numpy()))
    assert float(kl(z, z + dz)) == pytest.approx(float((p * np.log(p / q)).sum()), rel=1e-10)
    assert float(kl(z + dz, z)) == pytest.approx(float((q * np.log(q / p)).sum()), rel=1e-10)
    assert float(cosine_of_probabilities(z, z + dz)) == pytest.approx(
        float(p @ q / np.linalg.norm(p) / np.linalg.norm(q)), rel=1e-10
    )


def test_third_order_closes_the_gap() -> None:
    z, dz = logits(30, 5)
    change = 0.05 * dz
    gap = kl(z, z + change) - second_order_kl(z, z + change)
    assert abs(float(gap - third_order(z, z + change))) < 0.1 * abs(float(gap))


def test_bfloat16_is_computed_in_float32_and_leading_dimensions_stay() -> None:
    z, dz = torch.randn(2, 3, 4, 50).unbind(0)
    assert kl(z.bfloat16(), (z + dz).bfloat16()).dtype == torch.float32
    assert second_order_cos(z, z + dz).shape == (3, 4)
    assert angular(z, z + dz).cosine.shape == (3, 4)


def test_bad_inputs() -> None:
    z = torch.zeros(3)
    for T in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=f"temperature {T}"):
            kl(z, z, T)
    for function in (second_order_kl, second_order_cos, angular):
        for a, b in ((3, 4), ((2, 3), (4, 3)), ((), ())):
            with pytest.raises(DataError, match="the two states have shapes"):
                function(torch.zeros(a), torch.zeros(b))
        for value in (torch.nan, torch.inf, -torch.inf):
            with pytest.raises(NumericalError, match="the second state holds NaN or infinity"):
                function(z, torch.full((3,), value))


def test_a_state_that_becomes_zero_has_cosine_zero_in_both_forms() -> None:
    found = angular(torch.ones(3), torch.zeros(3))
    assert (float(found.cosine), float(found.exact)) == (0, 0)
