"""Convolutions in another form are convolutions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from strobe.core.tolerances import tolerance
from strobe.models.vae.convolutions import grow, to_few_channels

ELEMENT = tolerance("element", "float32")
ELEMENT_BF16 = tolerance("element", "bfloat16")


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (3, 5), (6, 2)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_every_pixel_is_repeated_and_convolved(size: tuple[int, int], with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, *size, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, 5, 3, 3, generator=generator, dtype=torch.float64)
    bias = torch.randn(3, generator=generator, dtype=torch.float64) if with_bias else None
    repeated = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(
        grow(x, weight, bias), F.conv2d(repeated, weight, bias, padding=1), rtol=0, atol=tolerance("convolution", "float64")
    )
    given = grow(x.float(), weight.float(), None if bias is None else bias.float())
    assert given.dtype == torch.float32
    torch.testing.assert_close(given.double(), grow(x, weight, bias), rtol=0, atol=ELEMENT)


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
