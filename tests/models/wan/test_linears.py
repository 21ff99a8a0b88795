"""Eight-bit linear layers against float64 with weights and inputs rounded here."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from strobe.core.errors import ConfigError, ShapeError
from strobe.core.tolerances import tolerance
from strobe.eightbit.rows import quantize_rows
from strobe.models.wan.linears import EightBitLinear, Fp8Linear, Int8Linear

SIZES = [(16, 16), (48, 96), (192, 64)]


def linear(inner: int, outer: int, dtype: torch.dtype, bias: bool = True) -> nn.Linear:
    torch.manual_seed(inner + outer)
    layer = nn.Linear(inner, outer, bias=bias)
    with torch.no_grad():
        layer.weight.mul_(torch.logspace(-2, 2, outer)[:, None])  # channels of very different size
    return layer.to(dtype).requires_grad_(False)


def e4m3(x: Tensor) -> Tensor:
    """float64 to the nearest multiple of each row's scale that float8_e4m3fn has: 3 bits after the leading one, 2^-9 at least."""
    scale = (x.abs().amax(dim=-1, keepdim=True).float() * (1 / 448)).clamp(min=1e-12).double()
    steps = x.double() / scale
    spacing = torch.maximum(steps.abs().log2().floor().clamp(min=-6), torch.tensor(-6.0, dtype=torch.float64)) - 3
    return (steps / 2**spacing).round() * 2**spacing * scale


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inner", "outer"), SIZES)
@pytest.mark.parametrize("tokens", [2, 63, 100])
def test_simulated_fp8_is_the_product_of_rounded_matrices(tokens: int, inner: int, outer: int, bias: bool) -> None:
    layer = linear(inner, outer, torch.float32, bias)
    x = torch.randn(2, tokens, inner)
    x[0, 1] = 0  # a token of zeros stays one
    eight = Fp8Linear.from_linear(layer, simulate=True)
    expected = e4m3(x) @ e4m3(layer.weight).T + (0 if layer.bias is None else layer.bias.double())
    size = expected.abs().amax((0, 1))
    assert ((eight(x) - expected).abs() <= tolerance("eight-bit layer", "float32") * size).all()
    assert ((layer(x) - expected).abs() > 1e-3 * size).any()  # rounding shows
    assert eight.values.dtype == torch.float8_e4m3fn and eight.values.shape == (outer, inner)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 63, 100])
def test_fp8_on_matrix_units_is_what_it_simulates(tokens: int, dtype: torch.dtype, device: str) -> None:
    layer = linear(48, 96, dtype).to(device)
    x = torch.randn(2, tokens, 48, dtype=dtype, device=device)
    real, simulated = (Fp8Linear.from_linear(layer, simulate=each) for each in (False, True))
    for argument in (x, quantize_rows(x)):
        one, other = real(argument).double(), simulated(argument).double()
        assert one.shape == (2, tokens, 96)
        size = x.double().abs() @ layer.weight.double().abs().T
        assert ((one - other).abs() <= tolerance("eight-bit layer", "bfloat16") * (size + layer.bias.abs())).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inner", "outer"), [(1, 5), (63, 100), (100, 7)])
def test_int8_is_the_product_with_rounded_weights(inner: int, outer: int, dtype: torch.dtype) -> None:
    layer = linear(inner, outer, dtype)
    eight = Int8Linear.from_linear(layer)
    weight = layer.weight.double()
    scale = weight.abs().amax(1, keepdim=True) / 127
    rounded = (weight / scale).round() * scale
    assert ((eight.dequantized() - weight).abs() <= scale / 2 * (1 + 1e-5)).all()
    assert (eight.values.double() - (weight / scale)).abs().max() <= 0.5 + 1e-4
    x = torch.randn(3, 11, inner, dtype=dtype)
    expected = x.double() @ rounded.T + layer.bias.double()
    size = x.double().abs() @ rounded.abs().T + layer.bias.double().abs()
    out = eight(x)
    assert out.dtype == dtype and ((out - expected).abs() <= (1e-6 if dtype == torch.float32 else 1e-2) * size).all()


@pytest.mark.parametrize("kind", [Fp8Linear, Int8Linear])
def test_a_part_shares_and_follows(kind: type[EightBitLinear]) -> None:
    eight = kind.from_linear(linear(32, 96, torch.float32))
    part, x = eight.part(32, 96), torch.randn(2, 5, 32)
    assert torch.equal(part(x), eight(x)[..., 32:])
    other = linear(32, 96, torch.float32).weight * 3 + 1
    addresses = [tensor.data_ptr() for tensor in eight.buffers()]
    eight.requantize(other.double())
    fresh = kind(other, eight.bias)
    assert torch.equal(eight(x), fresh(x)) and torch.equal(part(x), fresh(x)[..., 32:])
    assert addresses == [tensor.data_ptr() for tensor in eight.buffers()]
    with pytest.raises(ShapeError, match=r"\(96, 32\)"):
        eight.requantize(other[:32])


def test_sizes_that_matrix_units_refuse() -> None:
    layer = nn.Linear(20, 48)
    with pytest.raises(ConfigError, match=r"\[48, 20\].*multiples of 16.*int8"):
        Fp8Linear.from_linear(layer)
    assert Fp8Linear.from_linear(layer, simulate=True)(torch.ones(1, 20)).shape == (1, 48)


def test_what_is_no_number_reaches_the_result() -> None:
    layer = linear(32, 48, torch.float32)
    x = torch.randn(3, 32)
    x[1, 4] = torch.nan
    for eight in (Fp8Linear.from_linear(layer, simulate=True), Fp8Linear.from_linear(layer), Int8Linear.from_linear(layer)):
        assert eight(x)[1].isnan().all() and eight(x)[[0, 2]].isfinite().all()


def test_a_compiler_traces_them_whole() -> None:
    layer = linear(32, 48, torch.bfloat16)
    x = torch.randn(2, 5, 32, dtype=torch.bfloat16)
    both = nn.ModuleList([Fp8Linear.from_linear(layer), Int8Linear.from_linear(layer)])

    def run(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(each(x) for each in both)

    compiled = torch.compile(run, backend="eager", fullgraph=True, dynamic=False)
    assert all(torch.equal(one, other) for one, other in zip(compiled(x), run(x), strict=True))
