"""Growing is repeating and convolving."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from strobe.models.vae.growth import grow


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (3, 5), (6, 2)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_every_pixel_is_repeated_and_convolved(size: tuple[int, int], with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, *size, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, 5, 3, 3, generator=generator, dtype=torch.float64)
    bias = torch.randn(3, generator=generator, dtype=torch.float64) if with_bias else None
    repeated = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(grow(x, weight, bias), F.conv2d(repeated, weight, bias, padding=1), rtol=0, atol=1e-13)
    given = grow(x.float(), weight.float(), None if bias is None else bias.float())
    assert given.dtype == torch.float32
    torch.testing.assert_close(given.double(), grow(x, weight, bias), rtol=0, atol=1e-5)
