"""Rows in eight bits against float64 numpy: nearest number of the format, half a step of error, corners."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from strobe.core.tolerances import tolerance
from strobe.eightbit.rows import DTYPES, EightBit, expand_rows, quantize_rows, store_rows
from strobe.eightbit.types import Quantized

FORMATS: list[EightBit] = ["fp8", "int8"]
LIMITS = {"fp8": 448.0, "int8": 127.0}


def numbers_of(to: EightBit) -> np.ndarray:
    """Every number that eight bits can be, from the definition of the format."""
    if to == "int8":
        return np.arange(-127, 128, dtype=np.float64)
    whole = [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8) if (e, m) != (15, 7)]
    positive = np.array([m / 8 * 2.0**-6 for m in range(8)] + whole)
    return np.unique(np.concatenate([-positive, positive]))


def rows(width: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Rows from 1e-20 to 1e3 in size, one of zeros, one with a single number."""
    generator = torch.Generator().manual_seed(seed + width)
    x = torch.randn(2, 7, width, generator=generator) * torch.logspace(-20, 3, 7)[:, None]
    x[0, 3], x[1, 4, 1:] = 0, 0
    return x.to(dtype)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 63, 100, 2000])
def test_every_number_is_the_nearest_of_its_format(width: int, dtype: torch.dtype, to: EightBit) -> None:
    x = rows(width, dtype)
    if dtype == torch.float16:
        x = x.clamp(-60000, 60000)
    values, scale = quantize_rows(x, to)
    assert values.dtype == DTYPES[to] and values.shape == x.shape
    assert scale.dtype == torch.float32 and scale.shape == (*x.shape[:-1], 1)
    exact, steps = x.double().numpy(), numbers_of(to)
    expected = np.maximum(np.abs(exact).max(-1, keepdims=True) / LIMITS[to], 1e-12)
    np.testing.assert_allclose(scale.numpy(), expected, rtol=tolerance("scale of a row", "float32"))
    given_values, wanted = values.double().numpy(), exact / scale.double().numpy()
    assert np.isin(given_values, steps).all()
    nearest = np.abs(wanted[..., None] - steps).min(-1) if width <= 100 else None
    if nearest is not None:
        np.testing.assert_allclose(np.abs(given_values - wanted), nearest, rtol=0, atol=LIMITS[to] * 4e-7)
    error = np.abs((values.double() * scale.double()).numpy() - exact)
    size = np.abs(exact)
    bound = scale.double().numpy() / 2 if to == "int8" else np.maximum(size / 16, scale.double().numpy() / 1024)
    assert (error <= bound * (1 + 1e-5)).all()


@pytest.mark.parametrize("to", FORMATS)
def test_ties_go_to_the_even_number(to: EightBit) -> None:
    limit = LIMITS[to]
    x = torch.tensor([[limit, 2.5, 3.5, -0.5, 17.0, 19.0]])
    expected = {"fp8": [448, 2.5, 3.5, -0.5, 16, 20], "int8": [127, 2, 4, 0, 17, 19]}
    assert quantize_rows(x, to).values.float().tolist() == [expected[to]]


@pytest.mark.parametrize("to", FORMATS)
def test_zeros_stay_and_what_is_no_number_spoils_its_own_row_alone(to: EightBit) -> None:
    x = torch.randn(4, 8)
    x[1], x[2, 3], x[3, 0] = 0, torch.nan, torch.inf
    back = quantize_rows(x, to).dequantized(torch.float32)
    assert back[0].isfinite().all() and (back[1] == 0).all() and back[2:].isnan().all()


@given(scale=st.floats(1e-6, 1e6), seed=st.integers(0, 1000))
def test_a_row_that_is_scaled_keeps_its_values(scale: float, seed: int) -> None:
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(seed))
    power = 2.0 ** round(np.log2(scale))
    for to in FORMATS:
        one, other = quantize_rows(x, to), quantize_rows(x * power, to)
        assert torch.equal(one.values.float(), other.values.float()) and torch.equal(one.scale * power, other.scale)


@pytest.mark.parametrize("to", FORMATS)
def test_stored_rows_come_back_and_the_others_stay(to: EightBit) -> None:
    batch, heads, width = 2, 3, 20
    packed = torch.randn(batch, 5, 3 * heads * width)  # values as a matrix product leaves them: not contiguous
    k, v = (part.unflatten(-1, (heads, width)) for part in packed.chunk(3, -1)[1:])
    kept = Quantized(torch.zeros(2, batch, 9, heads, width, dtype=DTYPES[to]), torch.full((2, batch, 9, heads, 1), torch.nan))
    where = torch.tensor([-1, 7, 0, -1, 3])
    store_rows((k, v), where, kept)
    for index, source in enumerate((k, v)):
        for row in range(9):
            token = where.tolist().index(row) if row in where else None
            if token is None:
                assert kept.scale[index, :, row].isnan().all()
            else:
                expected = quantize_rows(source[:, token], to)
                assert torch.equal(kept.values[index, :, row].float(), expected.values.float())
                assert torch.equal(kept.scale[index, :, row], expected.scale)
    full = torch.full((2, batch, 9, heads, width), torch.nan)
    kept.scale.nan_to_num_(5.0)
    expand_rows(kept, full[:, :, :8])
    assert torch.equal(full[:, :, :8], (kept.values.float() * kept.scale)[:, :, :8]) and full[:, :, 8].isnan().all()
