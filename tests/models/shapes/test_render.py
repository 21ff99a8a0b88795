"""Pictures against exact distances to polygons, the torus against `roll`, trajectories against hand values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from strobe.core.errors import ShapeError
from strobe.core.tolerances import tolerance
from strobe.models.shapes.grammar import BACKGROUNDS, COLOURS, SHAPES
from strobe.models.shapes.render import SIZE, STAR_INNER, advance, render

ELEMENT = tolerance("element", "float32")


def polygon(shape: str, radius: float) -> list[tuple[float, float]]:
    """Corners of a shape with corners, `(x, y)` with y down, from a plain description."""
    if shape == "square":
        side = 0.86 * radius
        return [(-side, -side), (side, -side), (side, side), (-side, side)]
    if shape == "cross":
        arm, half = 1.1 * radius, 0.38 * radius
        corner = [(half, -arm), (half, -half), (arm, -half)]  # the upper right quarter, then turned three times
        return [point for turn in range(4) for point in (_quarter_turns(x, y, turn) for x, y in corner)]
    corners = {"triangle": 3, "star": 10}[shape]
    lengths = [1.25 * radius * (STAR_INNER if shape == "star" and i % 2 else 1.0) for i in range(corners)]
    angles = [-math.pi / 2 + 2 * math.pi * i / corners for i in range(corners)]  # the first corner points up
    return [(length * math.cos(angle), length * math.sin(angle)) for length, angle in zip(lengths, angles, strict=True)]


def _quarter_turns(x: float, y: float, turns: int) -> tuple[float, float]:
    for _ in range(turns):
        x, y = -y, x
    return x, y


def distances(shape: str, radius: float, centre: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Of every pixel: signed distance to the outline (inside, by the even-odd rule, is negative), and to the nearest corner."""
    x, y = np.meshgrid(np.arange(SIZE) - centre[0], np.arange(SIZE) - centre[1])
    if shape == "circle":
        return np.hypot(x, y) - radius, np.full_like(x, np.inf)
    inside, nearest, corner = np.zeros_like(x, dtype=bool), np.full_like(x, np.inf), np.full_like(x, np.inf)
    corners = polygon(shape, radius)
    for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
        if y0 != y1:
            inside ^= ((y0 > y) != (y1 > y)) & (x < (x1 - x0) * (y - y0) / (y1 - y0) + x0)
        along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / ((x1 - x0) ** 2 + (y1 - y0) ** 2)
        along = along.clip(0, 1)
        nearest = np.minimum(nearest, np.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0)))
        corner = np.minimum(corner, np.hypot(x - x0, y - y0))
    return np.where(inside, -nearest, nearest), corner


def smooth(distance: np.ndarray) -> np.ndarray:
    """Coverage by the documented formula: from 1 to 0 over the four pixels around the outline."""
    s = (0.5 - distance / 4).clip(0, 1)
    return s * s * (3 - 2 * s)


def one(colour: int, shape: int, background: int, centre: tuple[float, float], radius: float) -> torch.Tensor:
    attributes = torch.tensor([[[colour, shape, 0, 0, background]]])
    return render(attributes, torch.tensor([[centre]]), torch.tensor([radius]))[0, 0]


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=SHAPES)
@pytest.mark.parametrize("radius", [22.0, 23.7, 28.0])
def test_pictures_match_exact_outlines(shape: int, radius: float) -> None:
    centre = (61.3, 66.8)
    distance, corner = distances(SHAPES[shape], radius, centre)
    colour, background = np.array(COLOURS["orange"]) / 255, np.array(BACKGROUNDS["navy"]) / 255
    expected = background[:, None, None] + smooth(distance) * (colour - background)[:, None, None]
    picture = one(4, shape, 1, centre, radius).double().numpy()
    away = corner > 5.0  # near a corner it is the distance to the lines that meet there: the picture is sharper
    np.testing.assert_allclose(picture[:, away], expected[:, away], rtol=0, atol=ELEMENT)
    np.testing.assert_allclose(picture[:, ~away], expected[:, ~away], rtol=0, atol=tolerance("corner of a picture", "float32"))
    cover = ((picture - background[:, None, None]) / (colour - background)[:, None, None]).mean(0)
    assert np.array_equal(cover[abs(distance) > 0.01] > 0.5, distance[abs(distance) > 0.01] < 0)  # the outline is at one half


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=SHAPES)
def test_edges_fade_over_four_pixels(shape: int) -> None:
    picture = one(7, shape, 0, (64.0, 64.0), 26.0)
    steps = picture.diff(dim=2).abs().amax().item(), picture.diff(dim=1).abs().amax().item()
    # The steepest slope of s * s * (3 - 2 s) over 4 pixels is 3 / 8 per pixel of distance, of white's 245 / 255.
    assert 0.2 < max(steps) < 3 / 8 * 245 / 255 + 1e-3


def test_a_soft_edge_keeps_the_area() -> None:
    drawn = [one(7, shape, 0, (64.0, 64.0), 25.0)[0].sum().item() * 255 / 245 for shape in range(len(SHAPES))]
    exact = [math.pi * 25.0**2]
    for shape in SHAPES[1:]:
        corners = polygon(shape, 25.0)
        exact.append(sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True)) / 2)
    np.testing.assert_allclose(drawn, exact, rtol=tolerance("area of a picture", "float32"))
    assert max(drawn) < 2 * min(drawn)


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=SHAPES)
@pytest.mark.parametrize("centre", [(0.0, 64.0), (127.6, 0.2), (3.5, 120.25), (-5.0, 300.0)])
def test_the_world_is_a_torus(shape: int, centre: tuple[float, float]) -> None:
    shift_x, shift_y = 64 - round(centre[0]), 64 - round(centre[1])
    middle = one(0, shape, 2, (centre[0] + shift_x, centre[1] + shift_y), 26.0)
    moved = one(0, shape, 2, centre, 26.0)
    torch.testing.assert_close(moved.roll((shift_y, shift_x), (1, 2)), middle, atol=tolerance("moved picture", "float32"), rtol=0)


def test_fade_blends_two_pictures_at_one_place() -> None:
    now, before = torch.tensor([[[0, 0, 0, 0, 0]] * 3]), torch.tensor([[[2, 3, 1, 1, 3]] * 3])
    centres, radius = torch.rand(1, 3, 2) * 128, torch.tensor([25.0])
    fade = torch.tensor([[1.0, 0.25, 0.0]])
    blended = render(now, centres, radius, fade=fade, previous=before)
    weight = fade[..., None, None, None]
    expected = (1 - weight) * render(now, centres, radius) + weight * render(before, centres, radius)
    torch.testing.assert_close(blended, expected)


def test_chunks_and_batches_do_not_change_the_picture() -> None:
    generator = torch.Generator().manual_seed(0)
    attributes = torch.stack([torch.randint(0, top, (3, 5), generator=generator) for top in (8, 5, 4, 2, 4)], -1)
    centres, radius = torch.rand(3, 5, 2, generator=generator) * 128, torch.tensor([22.0, 25.5, 28.0])
    fade, previous = torch.rand(3, 5, generator=generator), attributes.flip(0)
    whole = render(attributes, centres, radius, fade=fade, previous=previous)
    assert whole.shape == (3, 5, 3, 128, 128) and whole.dtype == torch.float32
    assert whole.min() >= 0 and whole.max() <= 1
    assert torch.equal(whole, render(attributes, centres, radius, fade=fade, previous=previous, chunk=4))
    alone = render(attributes[1:2], centres[1:2], radius[1:2], fade=fade[1:2], previous=previous[1:2])
    torch.testing.assert_close(alone, whole[1:2])


def test_advance_follows_direction_and_speed_frame_by_frame() -> None:
    left_slow, down_fast = [0, 0, 0, 0, 0], [0, 0, 3, 1, 0]
    attributes = torch.tensor([[left_slow, left_slow, down_fast, down_fast]])
    centres = advance(torch.tensor([[1.5, 124.0]]), attributes)
    torch.testing.assert_close(centres, torch.tensor([[[0.5, 124.0], [127.5, 124.0], [127.5, 127.0], [127.5, 2.0]]]))


def test_a_trajectory_continues_from_its_last_centre() -> None:
    attributes = torch.tensor([[[0, 0, 2, 1, 0]] * 90])
    whole = advance(torch.tensor([[10.0, 20.0]]), attributes)
    tail = advance(whole[:, 39], attributes[:, 40:])
    torch.testing.assert_close(tail, whole[:, 40:])


def test_sizes_are_checked() -> None:
    attributes, centres, radius = torch.zeros(2, 3, 5, dtype=torch.long), torch.zeros(2, 3, 2), torch.full((2,), 25.0)
    with pytest.raises(ShapeError, match=r"centres is \[2, 2, 2\], expected \[2, 3, 2\]"):
        render(attributes, centres[:, :2], radius)
    with pytest.raises(ShapeError, match=r"radius is \[1\], expected \[2\]"):
        render(attributes, centres, radius[:1])
    with pytest.raises(ShapeError, match="together or neither"):
        render(attributes, centres, radius, fade=torch.zeros(2, 3))
