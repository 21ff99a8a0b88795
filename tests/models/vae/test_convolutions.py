"""Convolutions in another form are convolutions."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from strobe.core.tolerances import tolerance
from strobe.models.vae.convolutions import convolve_relu, to_few_channels

ELEMENT = tolerance("element", "float32")
ELEMENT_BF16 = tolerance("element", "bfloat16")
EXACT = tolerance("convolution", "float64")


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (4, 1), (3, 5)])
def test_few_channels(times: int, channels: int, size: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, times + 3, *size, 5, generator=generator, dtype=torch.float64)
    weight = torch.randn(channels, 5, times, 3, 3, generator=generator, dtype=torch.float64)
    bias = torch.randn(channels, generator=generator, dtype=torch.float64)
    expected = F.conv3d(x.movedim(-1, 1), weight, bias, padding=(0, 1, 1)).movedim(1, -1)
    torch.testing.assert_close(to_few_channels(x, weight, bias), expected, rtol=0, atol=tolerance("convolution", "float64"))
    given = to_few_channels(x.bfloat16(), weight.bfloat16(), bias.bfloat16())
    assert given.dtype == torch.bfloat16 and given.shape == expected.shape
    torch.testing.assert_close(given.double(), expected, rtol=ELEMENT_BF16, atol=tolerance("convolution", "bfloat16"))


def drawn(times: int | None, channels: int, out: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Pictures or clips with contiguous channels, a weight, a bias and a skip."""
    generator = torch.Generator().manual_seed(2)
    frames, kernel = ((), ()) if times is None else ((times + 2,), (times,))
    after = () if times is None else (3,)
    layout = torch.channels_last if times is None else torch.channels_last_3d
    sizes = (2, channels, *frames, 5, 7), (out, channels, *kernel, 3, 3), (out,), (2, out, *after, 5, 7)
    x, weight, bias, skip = (torch.randn(size, generator=generator, dtype=torch.float64).to(dtype) for size in sizes)
    x, weight, skip = (each.contiguous(memory_format=layout) for each in (x, weight, skip))
    return x, weight, bias, skip


def expected_relu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, skip: torch.Tensor | None) -> torch.Tensor:
    """The formula, tap by tap in float64."""
    x, weight, bias = (each.double().cpu() for each in (x, weight, bias))
    if x.dim() == 4:
        return expected_relu(x.unsqueeze(2), weight.unsqueeze(2), bias, None if skip is None else skip.unsqueeze(2)).squeeze(2)
    around, times = F.pad(x, (1, 1, 1, 1)), weight.shape[2]
    frames, height, width = x.shape[2] + 1 - times, *x.shape[3:]
    out = bias.view(1, -1, 1, 1, 1) if skip is None else bias.view(1, -1, 1, 1, 1) + skip.double().cpu()
    for time, row, column in itertools.product(range(times), range(3), range(3)):
        part = around[:, :, time : time + frames, row : row + height, column : column + width]
        out = out + torch.einsum("bcfyx,oc->bofyx", part, weight[:, :, time, row, column])
    return out.clamp(min=0)


@pytest.mark.parametrize("times", [None, 1, 2])
@pytest.mark.parametrize("skipped", [False, True])
def test_convolve_relu(times: int | None, skipped: bool) -> None:
    x, weight, bias, skip = drawn(times, 5, 3, torch.float64)
    wanted = expected_relu(x, weight, bias, skip if skipped else None)
    assert 0.2 < (wanted == 0).double().mean() < 0.8
    given = convolve_relu(x, weight, bias, skip if skipped else None)
    torch.testing.assert_close(given, wanted, rtol=0, atol=tolerance("convolution", "float64"))


@pytest.mark.gpu
@pytest.mark.parametrize("times", [None, 2])
@pytest.mark.parametrize("skipped", [False, True])
@pytest.mark.parametrize(("channels", "out"), [(16, 8), (5, 3), (8, 24)])
def test_cudnn_convolves_and_cuts_in_one(times: int | None, skipped: bool, channels: int, out: int) -> None:
    x, weight, bias, skip = (each.cuda() for each in drawn(times, channels, out, torch.bfloat16))
    wanted = expected_relu(x, weight, bias, skip if skipped else None)
    with torch.inference_mode():
        given = convolve_relu(x, weight, bias, skip if skipped else None)
    assert given.dtype == torch.bfloat16
    torch.testing.assert_close(given.double().cpu(), wanted, rtol=ELEMENT_BF16, atol=tolerance("convolution", "bfloat16"))
