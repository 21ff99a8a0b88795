"""The oracle reads every scene it could meet, survives noise and blur, and says so when there is nothing to read."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from strobe.core.errors import ShapeError
from strobe.models.shapes.grammar import CHOICES
from strobe.models.shapes.oracle import accuracy, detect, flicker, floor_step, locate
from strobe.models.shapes.render import PERIOD, advance, render

SIZES = tuple(len(values) for values in CHOICES.values())
ALONE = torch.tensor([[*scene, -1, -1] for scene in itertools.product(*(range(size) for size in SIZES))])
SHAPES = list(itertools.product(range(SIZES[0]), range(SIZES[1])))
PAIRS = torch.tensor(
    [
        [*first, number % 4, number % 2, number // 3 % 4, *second]
        for number, (first, second) in enumerate(itertools.product(SHAPES, SHAPES))
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
    both = torch.cat(
        (ALONE[torch.randperm(len(ALONE), generator=generator)], PAIRS[torch.randperm(len(PAIRS), generator=generator)])
    )
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


def bytes_only(frames: Tensor) -> Tensor:
    return (frames * 255).round().to(torch.uint8).float() / 255


@pytest.mark.parametrize("spoil", [noisy, blurred, lambda frames: noisy(blurred(frames)).clamp(0, 1), bytes_only])
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
    assert tuple(result[name] for name in ("colour", "shape", "background", "second", "every")) == (
        7 / 8,
        1.0,
        6 / 8,
        7 / 8,
        4 / 8,
    )
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
