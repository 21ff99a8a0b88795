"""Outlines against exact distances to polygons, landscapes and objects against their words, ways against hand values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from strobe.core.errors import ShapeError
from strobe.core.tolerances import tolerance
from strobe.models.shapes.clips import draw_places, draw_scenes
from strobe.models.shapes.grammar import BACKGROUNDS, COLOURS, SHAPES
from strobe.models.shapes.oracle import likeness
from strobe.models.shapes.render import (
    HILL,
    HORIZON,
    MARGIN,
    RADII,
    SHADOW_ROW,
    SIZE,
    STAR_INNER,
    TILE,
    advance,
    coverage,
    palette,
    render,
)

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


CPU = torch.device("cpu")
NONE = (-1, -1, -1, -1)
STILL = (64.0, 64.0, 64.0, 64.0, 0.0, 0.0)


def sharp(distance: np.ndarray) -> np.ndarray:
    """Coverage by the documented formula: from 1 to 0 over the pixel and a half around the outline."""
    return (0.5 - distance / 1.5).clip(0, 1)


def cover(shape: int, centre: tuple[float, float], radius: float) -> np.ndarray:
    pixels = torch.arange(SIZE, dtype=torch.float32)[None]
    drawn = coverage(torch.tensor([shape]), pixels - centre[0], pixels - centre[1], torch.tensor([radius]))
    return drawn[0].double().numpy()


def picture(background: int, *things: tuple[int, int], places: tuple[float, ...] = STILL, radius: float = 17.0) -> Tensor:
    """One picture with up to two objects, given by colour and shape."""
    first, second = ((*things[at], 0, 0) if at < len(things) else NONE for at in (0, 1))
    return render(torch.tensor([[[*first, background, *second]]]), torch.tensor([[places]]), torch.tensor([radius]))[0, 0]


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=SHAPES)
@pytest.mark.parametrize("radius", [15.0, 16.7, 18.0])
def test_outlines_are_exact(shape: int, radius: float) -> None:
    centre = (61.3, 66.8)
    distance, corner = distances(SHAPES[shape], radius, centre)
    drawn, expected = cover(shape, centre, radius), sharp(distance)
    away = corner > 2.0  # near a corner it is the distance to the lines that meet there: the picture is sharper
    np.testing.assert_allclose(drawn[away], expected[away], rtol=0, atol=ELEMENT)
    np.testing.assert_allclose(drawn[~away], expected[~away], rtol=0, atol=tolerance("corner of a picture", "float32"))
    assert np.array_equal(drawn[abs(distance) > 0.01] > 0.5, distance[abs(distance) > 0.01] < 0)  # the outline is at one half


def test_an_edge_keeps_the_area() -> None:
    exact = [math.pi * 17.0**2]
    for shape in SHAPES[1:]:
        corners = polygon(shape, 17.0)
        exact.append(sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True)) / 2)
    drawn = [cover(shape, (64.0, 64.0), 17.0).sum() for shape in range(len(SHAPES))]
    np.testing.assert_allclose(drawn, exact, rtol=tolerance("area of a picture", "float32"))
    assert max(drawn) < 2 * min(drawn)


def test_no_landscape_has_the_hue_of_an_object() -> None:
    """So an oracle of hues finds objects and nothing else, wherever the ground and the hills are."""
    for background in range(len(BACKGROUNDS)):
        empty = torch.stack([picture(background, places=(*STILL[:4], TILE * part, HILL * part)) for part in (0.0, 0.3, 0.7)])
        for colour in palette(CPU):
            assert likeness(empty, colour.expand(3, 3)).max() == 0


def test_hues_of_objects_differ_in_every_light() -> None:
    for at in range(len(COLOURS)):
        drawn = picture(0, (at, 0))[None]
        seen = [likeness(drawn, colour[None]).sum().item() for colour in palette(CPU)]
        assert seen[at] > 0.9 * math.pi * 17.0**2 and all(other < 60 for number, other in enumerate(seen) if number != at)


def test_the_sky_is_a_gradient_and_the_ground_scrolls_faster_than_the_hills() -> None:
    for background in range(len(BACKGROUNDS)):
        still = picture(background)
        moved = picture(background, places=(*STILL[:4], 16.0, 16.0))
        assert torch.equal(still[:, :60], moved[:, :60]) and not torch.equal(still, moved)
        down = still[:, :60, 4].mean(0).diff()
        assert (down >= -1e-6).all() and down.max() < 0.02 and down.sum() > 0.02
        near = slice(SIZE - 1, SIZE)
        torch.testing.assert_close(moved[:, near, :-16], still[:, near, 16:], rtol=0, atol=tolerance("moved picture", "float32"))
        ridge, moved_ridge = ((each[:, HORIZON - 1, 0, None, None] - each).abs().amax(0)[:HORIZON] < 1e-6 for each in (still, moved))
        assert torch.equal(moved_ridge[:, :-16], ridge[:, 16:]) and not torch.equal(moved_ridge, ridge)


def test_an_object_is_lit_from_above_and_throws_a_shadow() -> None:
    empty, drawn = picture(2), picture(2, (7, 0), places=(40.0, 50.0, *STILL[2:]))
    bright = drawn.mean(0)
    assert bright[42, 34] > bright[50, 40] > bright[58, 46] > 0.6
    dark = (empty - drawn)[:, int(SHADOW_ROW)].mean(0)
    assert dark[40] > 0.05 and int(dark.argmax()) == pytest.approx(40, abs=12) and dark[100].abs() < 1e-3
    low = (empty - picture(2, (7, 0), places=(40.0, 90.0, *STILL[2:])))[:, int(SHADOW_ROW)].mean(0)
    assert low.max() > dark.max()  # nearer to the ground it is darker


def test_of_two_objects_the_lower_colour_is_in_front_in_either_place() -> None:
    alone = picture(0, (0, 0))
    both = picture(0, (0, 0), (2, 1), places=(64.0, 64.0, 70.0, 64.0, 0.0, 0.0))
    turned = picture(0, (2, 1), (0, 0), places=(70.0, 64.0, 64.0, 64.0, 0.0, 0.0))
    assert torch.equal(both, turned)
    inside = torch.from_numpy(cover(0, (64.0, 64.0), 17.0) == 1)
    assert torch.equal(both[:, inside], alone[:, inside]) and both[2, 64, 83] > 0.6


def test_an_object_outside_is_gone_before_it_returns() -> None:
    empty = picture(1)
    for place in ((-MARGIN, 30.0), (30.0, SIZE + MARGIN - 0.5)):
        drawn = picture(1, (3, 0), places=(*place, *STILL[2:]))
        assert torch.equal(drawn[:, :HORIZON], empty[:, :HORIZON])


def test_fade_blends_two_pictures_at_one_place() -> None:
    now, before = torch.tensor([[[0, 0, 0, 0, 0, *NONE]] * 3]), torch.tensor([[[2, 3, 1, 1, 3, 4, 1, 1, 1]] * 3])
    places, radius = draw_places(3, CPU)[None], torch.tensor([16.0])
    fade = torch.tensor([[1.0, 0.25, 0.0]])
    blended = render(now, places, radius, fade=fade, previous=before)
    weight = fade[..., None, None, None]
    expected = (1 - weight) * render(now, places, radius) + weight * render(before, places, radius)
    torch.testing.assert_close(blended, expected)


def test_chunks_and_batches_do_not_change_the_picture() -> None:
    torch.manual_seed(0)
    attributes, places = draw_scenes(15, CPU).unflatten(0, (3, 5)), draw_places(15, CPU).unflatten(0, (3, 5))
    radius, fade, previous = torch.tensor([15.0, 16.5, 18.0]), torch.rand(3, 5), attributes.flip(0)
    whole = render(attributes, places, radius, fade=fade, previous=previous)
    assert whole.shape == (3, 5, 3, 128, 128) and whole.dtype == torch.float32
    assert whole.min() >= 0 and whole.max() <= 1
    torch.testing.assert_close(whole, render(attributes, places, radius, fade=fade, previous=previous, chunk=4))
    alone = render(attributes[1:2], places[1:2], radius[1:2], fade=fade[1:2], previous=previous[1:2])
    torch.testing.assert_close(alone, whole[1:2])


def test_advance_follows_direction_and_speed_frame_by_frame() -> None:
    left_slow, down_fast = [0, 0, 0, 0, 0, *NONE], [0, 0, 3, 1, 0, 1, 1, 1, 1]
    ways = advance(torch.tensor([[-17.5, 142.0, 10.0, 20.0, 62.0, 63.5]]), torch.tensor([[left_slow, left_slow, down_fast, down_fast]]))
    torch.testing.assert_close(ways[0, :, :2], torch.tensor([[145.5, 142.0], [144.5, 142.0], [144.5, 145.0], [144.5, -16.0]]))
    torch.testing.assert_close(ways[0, :, 2:4], torch.tensor([[10.0, 20.0], [10.0, 20.0], [13.0, 20.0], [16.0, 20.0]]))
    torch.testing.assert_close(ways[0, :, 4:], torch.tensor([[63.0, 63.75], [0.0, 0.0], [1.0, 0.25], [2.0, 0.5]]))


def test_a_way_continues_from_its_last_place() -> None:
    torch.manual_seed(1)
    attributes, start = draw_scenes(4, CPU)[:, None].expand(-1, 40, -1), draw_places(4, CPU)
    whole = advance(start, attributes)
    first = advance(start, attributes[:, :17])
    rest = advance(first[:, -1], attributes[:, 17:])
    torch.testing.assert_close(torch.cat((first, rest), 1), whole, rtol=0, atol=tolerance("world", "float32"))


def test_sizes_are_checked() -> None:
    attributes, places, radius = torch.zeros(2, 3, 9, dtype=torch.long), torch.zeros(2, 3, 6), torch.full((2,), RADII[0])
    with pytest.raises(ShapeError, match=r"places is \[2, 2, 6\], expected \[2, 3, 6\]"):
        render(attributes, places[:, :2], radius)
    with pytest.raises(ShapeError, match=r"radius is \[1\], expected \[2\]"):
        render(attributes, places, radius[:1])
    with pytest.raises(ShapeError, match=r"attributes is \[2, 3, 5\], expected \[2, 3, 9\]"):
        render(attributes[..., :5], places, radius)
    with pytest.raises(ShapeError, match="together or neither"):
        render(attributes, places, radius, fade=torch.zeros(2, 3))
