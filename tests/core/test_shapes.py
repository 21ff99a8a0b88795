"""Conversions between frames, latents and tokens against counting by hand."""

from __future__ import annotations

import pytest

from strobe.core.errors import ShapeError
from strobe.core.shapes import LatentShape, TokenGrid, VaeStride


def test_tokens() -> None:
    grid = LatentShape(frames=3, channels=16, height=60, width=104).token_grid((2, 2))
    assert grid == TokenGrid(frames=3, height=30, width=52)
    assert (grid.tokens_per_frame, grid.num_tokens) == (30 * 52, 3 * 30 * 52)
    assert LatentShape(frames=1, channels=8, height=6, width=9).token_grid((2, 3)).num_tokens == 9


@pytest.mark.parametrize(("height", "width"), [(61, 104), (60, 103)])
def test_a_patch_that_does_not_fit_is_named(height: int, width: int) -> None:
    with pytest.raises(ShapeError, match=rf"latent size {height}x{width} is not a multiple of the patch 2x2; choose a frame"):
        LatentShape(frames=3, channels=16, height=height, width=width).token_grid((2, 2))


@pytest.mark.parametrize("time", [1, 4])
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("count", range(5))
def test_frames_of_latents(time: int, first: int, count: int) -> None:
    per_latent = [1 if latent == 0 else time for latent in range(first + count)]
    assert VaeStride(time=time).frames(first, count) == sum(per_latent[first:])


@pytest.mark.parametrize("time", [1, 4])
@pytest.mark.parametrize("frames", range(1, 40))
def test_latents_for_are_the_fewest(time: int, frames: int) -> None:
    stride = VaeStride(time=time)
    latents = stride.latents_for(frames)
    assert stride.frames(0, latents) >= frames
    assert latents == 1 or stride.frames(0, latents - 1) < frames


def test_latent_size() -> None:
    assert VaeStride().latent_size(480, 832) == (60, 104)
    assert VaeStride(space=16).latent_size(16, 32) == (1, 2)
    for height, width in ((480, 830), (100, 832), (0, 8), (8, -8)):
        with pytest.raises(ShapeError, match=f"frame size {height}x{width} is not a positive multiple of 8 pixels"):
            VaeStride().latent_size(height, width)
