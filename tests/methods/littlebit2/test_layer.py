"""Layer and packed bits: forward against the dense weight, gradients, round trips of bits, number formats, kernels."""

import copy
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from methods.common.errors import ConfigError, DataError
from methods.littlebit2 import BinaryFactors, LittleBitConfig, LittleBitLinear, factorize, stored_bytes
from methods.littlebit2.kernels import has_int8_products, packed_product
from methods.littlebit2.peers import OneBitLinear, one_bit
from methods.littlebit2.signs import binarize, pack_signs, sgn, unpack_signs


def numbers(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def layer(outputs: int, inputs: int, rank: int, residual: bool = False, bias: bool = True) -> LittleBitLinear:
    dense = nn.Linear(inputs, outputs, bias=bias)
    return LittleBitLinear.from_factors(
        factorize(dense.weight, rank, LittleBitConfig(n_iter=3, residual=residual)),
        dense.bias.detach() if bias else None,
    )


def test_sign_of_zero_is_plus_one() -> None:
    values = torch.tensor([-2.0, -0.0, 0.0, 3.0])
    assert sgn(values).tolist() == [-1, 1, 1, 1]
    for gradient in ("smooth_sign", "clipped"):
        assert binarize(values, gradient).tolist() == [-1, 1, 1, 1]  # type: ignore[arg-type]
    assert unpack_signs(pack_signs(values), 4).tolist() == [-1, 1, 1, 1]


def test_gradients_that_stand_in_for_the_sign() -> None:
    values = torch.tensor([-1.5, -0.5, -0.01, 0.0, 0.003, 0.9], requires_grad=True)
    given_ = torch.tensor([1.0, 2, 3, 4, 5, 6])
    binarize(values, "smooth_sign").backward(given_)
    assert values.grad is not None
    torch.testing.assert_close(values.grad, given_ * 100 * (1 - torch.tanh(100 * values.detach()) ** 2))
    values.grad = None
    binarize(values, "clipped").backward(given_)
    assert values.grad is not None
    assert values.grad.tolist() == [0, 2, 3, 4, 5, 6]


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 70), st.integers(1, 9), st.integers(0, 99))
def test_bits_survive_packing(columns: int, rows: int, seed: int) -> None:
    signs = sgn(torch.randn(rows, columns, generator=numbers(seed)))
    for given_ in (signs, -torch.ones_like(signs), torch.ones_like(signs)):
        packed = pack_signs(given_)
        assert packed.dtype == torch.uint8
        assert packed.shape == (rows, -(-columns // 8))
        assert torch.equal(unpack_signs(packed, columns), given_)
        assert torch.equal(unpack_signs(packed, columns, torch.int8), given_.to(torch.int8))


def test_each_bit_has_its_place() -> None:
    """A shift in the wrong direction, or reversed bits, would pass a round trip; the bytes themselves would not."""
    for place in range(16):
        signs = -torch.ones(16)
        signs[place] = 1
        expected = [0, 0]
        expected[place // 8] = 1 << place % 8
        assert pack_signs(signs).tolist() == expected
    with pytest.raises(DataError, match="3 bytes a row cannot hold 16 signs"):
        unpack_signs(torch.zeros(2, 3, dtype=torch.uint8), 16)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 64), st.integers(1, 64), st.integers(0, 50), st.booleans())
def test_forward_is_the_dense_product(outputs: int, inputs: int, seed: int, residual: bool) -> None:
    torch.manual_seed(seed)
    module = layer(outputs, inputs, 1 + seed % min(outputs, inputs), residual)
    x = torch.randn(3, 2, inputs)
    expected = x @ module.reconstruct().T + module.bias
    assert (module(x) - expected).norm() <= 1e-5 * expected.norm() + 1e-6
    packed = copy.deepcopy(module).pack()
    half = x @ packed.reconstruct().T + packed.bias
    assert (packed(x) - half).norm() <= 1e-5 * half.norm() + 1e-6
    assert (half - expected).norm() <= 5e-3 * expected.norm() + 1e-6  # scales in half precision
    assert torch.equal(packed.factors().sign_u, module.factors().sign_u)
    assert torch.equal(packed.factors().sign_v, module.factors().sign_v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 5, 33])
def test_all_kernels_give_the_product_to_the_precision_of_the_type(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    # Neither 70 inputs nor a rank of 21 fill their last byte.
    factors = factorize(torch.randn(40, 70), 21, LittleBitConfig(n_iter=2, residual=True))
    packed = LittleBitLinear.from_factors(factors).pack()
    x = torch.randn(rows, 70).to(dtype)
    x[: rows // 2] = 0
    exact = x.double() @ packed.factors().dense().double().T
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 4e-3}[dtype]
    from methods.littlebit2.factors import split_bits

    bits = split_bits(packed.weight, 40, 21, 70, 2)
    for kernel in ("table", "integer", "float"):
        with torch.no_grad():
            y = packed_product(
                x, *bits, *(s.to(dtype) for s in (packed.h, packed.l, packed.g)), kernel=kernel
            )  # type: ignore[arg-type]
        assert y.dtype == dtype
        assert (y.double() - exact).norm() <= tolerance * exact.norm() + 1e-9
        assert not y[: rows // 2].any()


def test_the_fast_kernel_is_chosen_without_gradients_only() -> None:
    torch.manual_seed(0)
    packed = LittleBitLinear.from_factors(
        factorize(torch.randn(128, 128), 104, LittleBitConfig(n_iter=0))
    ).pack()
    x = torch.randn(64, 128, requires_grad=True)
    y = packed(x)
    y.sum().backward()  # activations can be trained through
    assert x.grad is not None
    torch.testing.assert_close(x.grad, packed.reconstruct().sum(0).expand(64, -1), rtol=1e-3, atol=1e-3)
    one = torch.randn(1, 128, requires_grad=True)
    packed(one).sum().backward()  # by look-up
    assert one.grad is not None
    torch.testing.assert_close(one.grad[0], packed.reconstruct().sum(0), rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(packed(x), y.detach(), rtol=1e-4, atol=1e-4)
    assert isinstance(has_int8_products(), bool)


def test_packed_memory_is_the_bits() -> None:
    module = layer(1536, 576, 104, bias=False).pack()
    held = sum(t.numel() * t.element_size() for t in [*module.buffers(), *module.parameters()])
    assert held == module.factors().stored_bytes() == stored_bytes(1536, 576, 104)
    assert held <= 1.1 * module.factors().bits() / 8


def test_factors_on_disk(tmp_path: Path) -> None:
    factors = factorize(torch.randn(19, 29, generator=numbers(0)), 5, LittleBitConfig(residual=True))
    factors.save(tmp_path / "f.safetensors")
    again = BinaryFactors.load(tmp_path / "f.safetensors")
    assert torch.equal(again.sign_u, factors.sign_u)
    assert torch.equal(again.sign_v, factors.sign_v)
    assert (again.dense() - factors.dense()).norm() <= 2e-3 * factors.dense().norm()
    header = int.from_bytes((tmp_path / "f.safetensors").read_bytes()[:8], "little")
    assert (tmp_path / "f.safetensors").stat().st_size == 8 + header + factors.stored_bytes()
    (tmp_path / "f.safetensors").write_bytes(b"no tensors")
    with pytest.raises(DataError, match="holds no factors of this format"):
        BinaryFactors.load(tmp_path / "f.safetensors")


@pytest.mark.parametrize("scale", [1e-12, 1e-4, 1.0, 1e9])
def test_scales_fit_half_precision_or_are_refused(scale: float) -> None:
    """A scale that would vanish is no less of a fault than one that overflows: the layer would be zero."""
    factors = factorize(scale * torch.randn(16, 24, generator=numbers(1)), 8, LittleBitConfig())
    if scale in (1e-12, 1e9):
        with pytest.raises(DataError, match=r"the scale l (exceeds|is too small for) half precision"):
            factors.packed()
        return
    again = BinaryFactors.unpacked(factors.packed())
    assert (again.dense() - factors.dense()).norm() <= 2e-3 * factors.dense().norm()
    broken = BinaryFactors(**{**factors.__dict__, "h": factors.h * float("nan")})
    with pytest.raises(DataError, match="is not finite"):
        broken.packed()


def test_latents_stay_in_single_precision_and_can_be_rescaled() -> None:
    module = layer(20, 12, 8)
    half = copy.deepcopy(module).to(torch.bfloat16)
    assert half.latent_u.dtype == half.h.dtype == torch.float32
    assert half.bias is not None
    assert half.bias.dtype == torch.bfloat16
    assert half(torch.randn(2, 12).bfloat16()).dtype == torch.bfloat16
    before = module.reconstruct()
    module.rescale_latents()
    torch.testing.assert_close(module.reconstruct(), before)
    assert 0.5 < float(module.latent_u.detach().abs().mean()) < 1.5


def test_from_linear_takes_conv1d_and_refuses_other_modules() -> None:
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    conv = Conv1D(12, 20).requires_grad_(False)
    module = LittleBitLinear.from_linear(conv, LittleBitConfig(min_rank=12, multiple=1))
    assert (module.out_features, module.in_features) == (12, 20)
    assert math.isclose(
        float((module.reconstruct() - conv.weight.T).norm() / conv.weight.norm()), 0.5, abs_tol=0.3
    )
    with pytest.raises(ConfigError, match="LayerNorm is no dense linear layer"):
        LittleBitLinear.from_linear(nn.LayerNorm(4))
    assert "rank=12" in repr(module)
    assert "packed" in repr(module.pack())


def test_one_bit_layer_is_its_reconstruction() -> None:
    torch.manual_seed(0)
    dense = nn.Linear(12, 20)
    module = OneBitLinear(dense.weight, dense.bias)
    x = torch.randn(3, 12)
    torch.testing.assert_close(module(x), x @ one_bit(dense.weight.detach()).weight.T + dense.bias)


def test_inputs_without_rows_or_without_fractions() -> None:
    layer = LittleBitLinear.from_linear(torch.nn.Linear(24, 40))
    for state in (layer, layer.pack()):
        assert state(torch.ones(0, 24)).shape == (0, 40)
        assert state(torch.ones(2, 0, 24)).shape == (2, 0, 40)
        assert state(torch.ones(24)).shape == (40,)
        with pytest.raises(DataError, match=r"inputs of torch.int64: give floating-point numbers"):
            state(torch.ones(2, 24, dtype=torch.int64))  # scales cast to integers are all zero
    with pytest.raises(ConfigError, match="rescale before packing"):
        layer.rescale_latents()
    with pytest.raises(ConfigError, match="rank 0: give a whole number of at least 1"):
        LittleBitLinear(24, 40, 0)
    with pytest.raises(ConfigError, match="gradient 'ste': choose one of smooth_sign, clipped"):
        LittleBitLinear(24, 40, 8, gradient="ste")  # type: ignore[arg-type]
