"""The oracle reads every scene it could meet, survives noise and blur, and says so when there is nothing to read."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from strobe.core.errors import ShapeError
from strobe.core.tolerances import tolerance
from strobe.models.shapes.grammar import BACKGROUNDS, CHOICES, COLOURS, SHAPES
from strobe.models.shapes.oracle import accuracy, detect, flicker, floor_step, locate
from strobe.models.shapes.picture import EDGE, LIGHT, PERIOD, SIZE, STAR_INNER, TILE_EDGE, TILES
from train_shapes.render import PAIR_RADIUS, SHADE, SHADOW, SHADOW_OFFSET, advance, render, stands

SIZES = tuple(len(values) for values in CHOICES.values())
ALONE = torch.tensor([[*scene, -1, -1] for scene in itertools.product(*(range(size) for size in SIZES))])
COLOURED = list(itertools.product(range(SIZES[0]), range(SIZES[1])))
PAIRS = torch.tensor(
    [
        [*first, number % 4, number % 2, number // 3 % 4, *second]
        for number, (first, second) in enumerate(itertools.product(COLOURED, COLOURED))
    ]
)
"""Every two shapes side by side, over some floor, moving somewhere."""


def clips(scenes: Tensor, num_frames: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Frames, true cameras and true places of scenes `[N, 7]`, anywhere on the picture and over the floor, of all sizes."""
    generator = torch.Generator().manual_seed(seed)
    many = scenes[:, None].expand(-1, num_frames, -1)
    camera = advance(torch.rand(len(scenes), 2, generator=generator) * PERIOD, many)
    place = 2 * torch.rand(len(scenes), 2, generator=generator) - 1
    return render(many, camera, place, 22 + 6 * torch.rand(len(scenes), generator=generator)), camera, place


def some_scenes(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    both = torch.cat([some[torch.randperm(len(some), generator=generator)] for some in (ALONE, PAIRS)])
    return both[torch.randperm(len(both), generator=generator)[:count]]


@pytest.mark.parametrize("part", range(4))
def test_reads_all_scenes_of_one_shape_and_many_of_two(part: int) -> None:
    scenes = torch.cat((ALONE[part::4], PAIRS[part::16]))
    frames, camera, place = clips(scenes, 2, seed=part)
    detection = detect(frames)
    assert torch.equal(detection.labels, scenes[:, None].expand(-1, 2, -1))
    assert accuracy(detection, scenes)["every"] == 1.0
    assert floor_step(detection.camera, camera).abs().max() < 0.5
    assert (detection.place - place[:, None]).abs().max() < 0.12
    assert detection.valid.all() and detection.shape_iou.min() > 0.95


def noisy(frames: Tensor) -> Tensor:
    return frames + 0.03 * torch.randn(frames.shape, generator=torch.Generator().manual_seed(1))


def blurred(frames: Tensor) -> Tensor:
    padded = functional.pad(frames.flatten(0, 1), (2, 2, 2, 2), mode="replicate")
    return functional.avg_pool2d(padded, 5, 1).unflatten(0, frames.shape[:2])


@pytest.mark.parametrize(
    "spoil",
    [
        noisy,
        blurred,
        lambda frames: noisy(blurred(frames)).clamp(0, 1),
        lambda frames: (frames * 255).round().to(torch.uint8).float() / 255,
    ],
)
def test_reads_spoilt_clips(spoil) -> None:  # type: ignore[no-untyped-def]
    scenes = some_scenes(16, seed=2)
    frames, camera, place = clips(scenes, 8, seed=3)
    detection = detect(spoil(frames))
    assert accuracy(detection, scenes)["every"] == 1.0
    assert floor_step(detection.camera, camera).abs().max() < 0.5
    assert (detection.place - place[:, None]).abs().max() < 0.15
    pair, found, seen = locate(spoil(frames).flatten(0, 1))
    assert torch.equal(pair.unflatten(0, (16, 8)), (scenes[:, 5] >= 0)[:, None].expand(-1, 8))
    assert torch.equal(found, detection.place.flatten(0, 1)) and torch.equal(seen, detection.camera.flatten(0, 1))


def test_accuracy_counts_frames_and_attributes() -> None:
    scenes = torch.tensor([[0, 0, 0, 0, 0, -1, -1], [1, 1, 1, 1, 1, 2, 2]])
    detection = detect(clips(scenes, 4)[0])
    wanted = scenes[:, None].repeat(1, 4, 1)
    wanted[0, :1, 0] = 5  # one frame of eight asked for another colour
    wanted[1, :2, 4] = 3  # two frames of eight another background
    wanted[0, 3, 5:] = 1  # one a second shape
    result = accuracy(detection, wanted)
    found = [8 * result[name] for name in ("colour", "shape", "background", "second", "every")]
    assert found == [7, 8, 6, 7, 4]
    with pytest.raises(ShapeError, match="do not fit"):
        accuracy(detection, wanted[:, :3])


def test_nothing_to_read_is_wrong_not_guessed() -> None:
    frames = torch.full((1, 3, 3, 128, 128), 100 / 255)
    detection = detect(frames)
    assert not detection.valid.any() and detection.place.isnan().all() and detection.camera.isnan().all()
    assert detection.labels[0].tolist() == [[-1, -1, -1, -1, 2, -1, -1]] * 3
    assert accuracy(detection, torch.tensor([[0, 0, 0, 0, 2, -1, -1]]))["every"] == 0.0
    assert flicker(detection).isnan().all()


def test_an_object_at_rest_and_a_single_frame_have_no_direction() -> None:
    frames, _, _ = clips(some_scenes(3), 1)
    for still in (frames, frames.expand(-1, 5, -1, -1, -1)):
        detection = detect(still)
        assert (detection.labels[..., 2:4] == -1).all()
        assert detection.valid.all()


def test_motion_survives_a_bad_frame() -> None:
    scenes = some_scenes(6, seed=8)
    frames, _, _ = clips(scenes, 9)
    frames[:, 4] = 0.5
    detection = detect(frames)
    assert not detection.valid[:, 4].any()
    assert torch.equal(detection.labels[:, 0, 2:4], scenes[:, 2:4])


def test_flicker_is_the_second_difference_of_the_colour() -> None:
    scenes = torch.tensor([[0, 0, 0, 0, 0, -1, -1]])
    frames, _, _ = clips(scenes, 6)
    assert flicker(detect(frames)).item() < 1e-3
    gain = torch.tensor([1.0, 0.9] * 3)[:, None, None, None]
    # Red (230, 40, 40) alternates with 0.9 of itself: |second difference| is 0.2 * mean(230, 40, 40) / 255.
    expected = 0.2 * (230 + 40 + 40) / 3 / 255
    assert flicker(detect(frames * gain)).item() == pytest.approx(expected, rel=0.03)


def test_frames_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"given torch.uint8 \[1, 2, 3, 128, 128\]"):
        detect(torch.zeros(1, 2, 3, 128, 128, dtype=torch.uint8))
    with pytest.raises(ShapeError, match=r"\[1, 2, 3, 64, 128\]"):
        locate(torch.zeros(2, 3, 64, 128))


def polygon(shape: str, radius: float) -> list[tuple[float, float]]:
    """Corners of a shape with corners, `(x, y)` with y down, from a plain description."""
    if shape == "square":
        side = 0.86 * radius
        return [(-side, -side), (side, -side), (side, side), (-side, side)]
    if shape == "cross":
        arm, half = 1.1 * radius, 0.38 * radius
        corner = [complex(half, -arm), complex(half, -half), complex(arm, -half)]  # the upper right quarter, turned three times
        return [(point.real, point.imag) for turn in range(4) for point in (each * 1j**turn for each in corner)]
    corners = {"triangle": 3, "star": 10}[shape]
    lengths = [1.25 * radius * (STAR_INNER if shape == "star" and i % 2 else 1.0) for i in range(corners)]
    angles = [-math.pi / 2 + 2 * math.pi * i / corners for i in range(corners)]  # the first corner points up
    return [(length * math.cos(angle), length * math.sin(angle)) for length, angle in zip(lengths, angles, strict=True)]


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
    """Coverage by the documented formula: from 1 to 0 over the pixels around the outline."""
    s = (0.5 - distance / EDGE).clip(0, 1)
    return s * s * (3 - 2 * s)


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=SHAPES)
@pytest.mark.parametrize("radius", [22.0, 23.7, 28.0])
def test_pictures_match_exact_outlines(shape: int, radius: float) -> None:
    place, camera = (-0.1125, 0.11666), (5.3, 27.1)
    centre = (64 + 24 * place[0], 64 + 24 * place[1])
    distance, corner = distances(SHAPES[shape], radius, centre)
    shadow, shadow_corner = distances(SHAPES[shape], radius, (centre[0] + SHADOW_OFFSET[0], centre[1] + SHADOW_OFFSET[1]))
    x, y = np.meshgrid(np.arange(SIZE) - centre[0], np.arange(SIZE) - centre[1])
    tone = 1 - SHADE * ((x + y) / (2 * radius)).clip(-1, 1)
    colour, background = (np.array(rgb)[:, None, None] / 255 for rgb in (COLOURS["orange"], BACKGROUNDS["navy"]))
    waves = [np.clip(np.sin((np.arange(SIZE) + start) * 2 * np.pi / 32) * TILE_EDGE, -1, 1) for start in camera]
    rows = 1 + LIGHT * (1 - (2 * np.arange(SIZE) + 1) / SIZE)
    floor = (1 + TILES * waves[1][:, None] * waves[0][None, :]) * rows[:, None]  # by the documented constants
    under = background * floor * (1 - (1 - SHADOW) * smooth(shadow))
    expected = (under + smooth(distance) * (colour * tone - under)).clip(0, 1)
    scenes = torch.tensor([[[4, shape, 0, 0, 1, -1, -1]]])
    rendered = render(scenes, torch.tensor([[camera]]), torch.tensor([place]), torch.tensor([radius]))
    picture = rendered[0, 0].double().numpy()
    away = np.minimum(corner, shadow_corner) > 5.0  # near a corner it is the distance to the lines that meet there
    np.testing.assert_allclose(picture[:, away], expected[:, away], rtol=0, atol=tolerance("moved picture", "float32"))
    np.testing.assert_allclose(picture[:, ~away], expected[:, ~away], rtol=0, atol=tolerance("corner of a picture", "float32"))


def test_two_shapes_stand_side_by_side_and_leave_a_column_between_them() -> None:
    pairs = torch.tensor([[0, shape, 0, 0, 1, 7, other] for shape in range(5) for other in range(5)])
    for place in ((-1.0, -1.0), (1.0, 1.0), (1.0, -1.0), (0.0, 0.0)):
        many = len(pairs)
        arguments = torch.zeros(many, 1, 2), torch.tensor([place]).expand(many, 2), torch.full((many,), 28.0)
        both = render(pairs[:, None], *arguments)[:, 0]
        lone = pairs.clone()
        lone[:, 5:] = -1
        centres, radii = stands(pairs, *arguments[1:])
        assert (radii == 28 * PAIR_RADIUS).all() and (centres[:, 0, 0] < 40).all() and (centres[:, 1, 0] > 88).all()
        white = (both - torch.tensor(COLOURS["white"])[:, None, None] / 255).abs().amax(1) < 0.15
        red = (both - torch.tensor(COLOURS["red"])[:, None, None] / 255).abs().amax(1) < 0.15
        assert (red.sum((1, 2)) > 300).all() and (white.sum((1, 2)) > 300).all()
        assert not red[:, :, 62:].any() and not white[:, :, :66].any()
        assert not torch.equal(both, render(lone[:, None], *arguments)[:, 0])


def test_fade_blends_two_pictures_at_one_place() -> None:
    now, before = torch.tensor([[[0, 0, 0, 0, 0, -1, -1]] * 3]), torch.tensor([[[2, 3, 1, 1, 3, 4, 4]] * 3])
    where = torch.rand(1, 3, 2) * 32, torch.rand(1, 2), torch.tensor([25.0])
    fade = torch.tensor([[1.0, 0.25, 0.0]])
    blended = render(now, *where, fade=fade, previous=before)
    weight = fade[..., None, None, None]
    torch.testing.assert_close(blended, (1 - weight) * render(now, *where) + weight * render(before, *where))


def test_chunks_and_batches_do_not_change_the_picture() -> None:
    generator = torch.Generator().manual_seed(0)
    scenes = torch.stack([torch.randint(0, top, (3, 5), generator=generator) for top in (8, 5, 4, 2, 4, 8, 5)], -1)
    scenes[1, :, 5:] = -1
    camera, place = torch.rand(3, 5, 2, generator=generator) * 32, 2 * torch.rand(3, 2, generator=generator) - 1
    radius = torch.tensor([22.0, 25.5, 28.0])
    fade, previous = torch.rand(3, 5, generator=generator), scenes.flip(0)
    whole = render(scenes, camera, place, radius, fade=fade, previous=previous)
    assert whole.shape == (3, 5, 3, 128, 128) and whole.dtype == torch.float32
    assert whole.min() >= 0 and whole.max() <= 1
    assert torch.equal(whole, render(scenes, camera, place, radius, fade=fade, previous=previous, chunk=4))
    alone = render(scenes[1:2], camera[1:2], place[1:2], radius[1:2], fade=fade[1:2], previous=previous[1:2])
    torch.testing.assert_close(alone, whole[1:2])


def test_advance_follows_direction_and_speed_frame_by_frame() -> None:
    left_slow, down_fast = [0, 0, 0, 0, 0, -1, -1], [0, 0, 3, 1, 0, -1, -1]
    scenes = torch.tensor([[left_slow, left_slow, down_fast, down_fast]])
    camera = advance(torch.tensor([[1.5, 28.0]]), scenes)
    torch.testing.assert_close(camera, torch.tensor([[[0.5, 28.0], [31.5, 28.0], [31.5, 31.0], [31.5, 2.0]]]))


def test_sizes_are_checked() -> None:
    scenes, camera, radius = torch.zeros(2, 3, 7, dtype=torch.long), torch.zeros(2, 3, 2), torch.full((2,), 25.0)
    place = torch.zeros(2, 2)
    with pytest.raises(ShapeError, match=r"scenes is \[2, 3, 5\], expected \[2, 3, 7\]"):
        render(scenes[..., :5], camera, place, radius)
    with pytest.raises(ShapeError, match=r"camera is \[2, 2, 2\], expected \[2, 3, 2\]"):
        render(scenes, camera[:, :2], place, radius)
    with pytest.raises(ShapeError, match=r"radius is \[1\], expected \[2\]"):
        render(scenes, camera, place, radius[:1])
    with pytest.raises(ShapeError, match="together or neither"):
        render(scenes, camera, place, radius, fade=torch.zeros(2, 3))
