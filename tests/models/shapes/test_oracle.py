"""The oracle reads every scene it could meet, survives noise and blur, and says so when there is nothing to read."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from strobe.core.errors import ShapeError
from strobe.models.shapes.clips import draw_places, draw_radius, draw_scenes
from strobe.models.shapes.grammar import CHOICES, Scene
from strobe.models.shapes.oracle import accuracy, detect, flicker
from strobe.models.shapes.render import advance, render

CPU = torch.device("cpu")
NONE = [-1, -1, -1, -1]
PAIRS = torch.tensor([[*pair, 0, 0, 0, *NONE] for pair in itertools.product(range(8), range(5))])


def in_order(scenes: Tensor) -> Tensor:
    """The scenes with their objects in the order of their colours, as the oracle names them."""
    return torch.tensor([Scene.of(row).attributes for row in scenes.tolist()])


def some_scenes(count: int, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return in_order(draw_scenes(count, CPU))


def clips(scenes: Tensor, num_frames: int, places: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Frames and true places of scenes `[N, 9]`, anywhere (borders and places behind each other included)."""
    attributes = scenes[:, None].expand(-1, num_frames, -1)
    ways = advance(draw_places(len(scenes), CPU) if places is None else places, attributes)
    return render(attributes, ways, draw_radius(len(scenes), CPU)), ways


def middle(count: int) -> Tensor:
    """Places side by side in the middle of the picture."""
    return torch.tensor([[36.0, 64.0, 92.0, 60.0, 5.0, 9.0]]).expand(count, -1)


@pytest.mark.parametrize("background", range(4))
def test_reads_every_object_before_every_background(background: int) -> None:
    torch.manual_seed(background)
    scenes = PAIRS.clone()
    scenes[:, 2], scenes[:, 3], scenes[:, 4] = torch.randint(4, (40,)), torch.randint(2, (40,)), background
    frames, ways = clips(scenes, 3, middle(40))
    detection = detect(frames)
    assert torch.equal(detection.labels, scenes[:, None].expand(-1, 3, -1))
    assert accuracy(detection, scenes).every == accuracy(detection, scenes).seen == 1.0
    assert (detection.centre[:, :, 0] - ways[..., :2]).abs().max() < 0.7  # light and shade move it
    assert detection.shape_iou[..., 0].min() > 0.85


def test_reads_one_and_two_objects_anywhere() -> None:
    """Where a border cuts them or one hides the other, all that is read is right; what is not seen is not guessed."""
    scenes = some_scenes(24, seed=2)
    frames, ways = clips(scenes, 8)
    result = accuracy(detect(frames), scenes)
    assert result.every == 1.0 and 0.4 < result.seen < 1
    outside = ((ways[..., :2] < -10) | (ways[..., :2] > 138)).any(-1)
    lone = (scenes[:, 5] < 0)[:, None]
    assert (detect(frames).seen[outside & lone] == 0).all()


def noisy(frames: Tensor) -> Tensor:
    return frames + 0.03 * torch.randn(frames.shape, generator=torch.Generator().manual_seed(1))


def blurred(frames: Tensor) -> Tensor:
    padded = functional.pad(frames.flatten(0, 1), (1, 1, 1, 1), mode="replicate")
    return functional.avg_pool2d(padded, 3, 1).unflatten(0, frames.shape[:2])


def bytes_only(frames: Tensor) -> Tensor:
    return (frames * 255).round().to(torch.uint8).float() / 255


@pytest.mark.parametrize("spoil", [lambda frames: noisy(blurred(frames)).clamp(0, 1), bytes_only])
def test_reads_spoilt_clips(spoil) -> None:  # type: ignore[no-untyped-def]
    scenes = some_scenes(16, seed=3)
    frames, _ = clips(scenes, 6, middle(16))
    result = accuracy(detect(spoil(frames)), scenes)
    assert result.every == 1.0 and result.seen > 0.95


def test_accuracy_counts_frames_and_attributes() -> None:
    scenes = torch.tensor([[0, 0, 0, 0, 0, *NONE], [1, 1, 1, 1, 1, *NONE]])
    detection = detect(clips(scenes, 4, middle(2))[0])
    wanted = scenes[:, None].repeat(1, 4, 1)
    wanted[0, :1, 0] = 5  # one frame of eight asked for another colour
    wanted[1, :2, 4] = 3  # two frames of eight another background
    result = accuracy(detection, wanted)
    assert (result.colour, result.shape, result.background, result.every, result.seen) == (7 / 8, 1.0, 6 / 8, 5 / 8, 1.0)
    with pytest.raises(ShapeError, match="do not fit"):
        accuracy(detection, wanted[:, :3])
    with pytest.raises(ShapeError, match="do not fit"):
        accuracy(detection, wanted[..., :5])


def test_an_object_too_many_is_wrong_and_one_too_few_does_not_count() -> None:
    two = torch.tensor([[0, 0, 0, 0, 0, 2, 1, 2, 0]])
    one = torch.tensor([[0, 0, 0, 0, 0, *NONE]])
    assert accuracy(detect(clips(two, 4, middle(1))[0]), one).every == 0.0
    missing = accuracy(detect(clips(one, 4, middle(1))[0]), two)
    assert missing.every == missing.seen == 0.0


def test_shuffled_prompts_are_at_chance() -> None:
    scenes = some_scenes(60, seed=5)
    detection = detect(clips(scenes, 2, middle(60))[0])
    result = accuracy(detection, some_scenes(60, seed=6))
    assert result.every <= 0.05 and abs(result.background - 1 / 4) < 0.2


def test_nothing_to_read_is_wrong_not_guessed() -> None:
    frames = render(torch.tensor([[[*NONE, 2, *NONE]] * 3]), torch.zeros(1, 3, 6), torch.tensor([16.0]))
    detection = detect(frames)
    assert not detection.seen.any()
    assert detection.labels[0].tolist() == [[*NONE, 2, *NONE]] * 3
    assert accuracy(detection, torch.tensor([[0, 0, 0, 0, 2, *NONE]])).every == 0.0
    assert flicker(detection).isnan().all()


def test_an_object_at_rest_and_a_single_frame_have_no_direction() -> None:
    scenes = some_scenes(3)
    frames, _ = clips(scenes, 1, middle(3))
    for still in (frames, frames.expand(-1, 5, -1, -1, -1)):
        detection = detect(still)
        assert (detection.direction == -1).all() and (detection.speed == -1).all()
        assert torch.equal(detection.labels[:, 0, :2], scenes[:, :2])
    assert accuracy(detect(frames.expand(-1, 5, -1, -1, -1)), scenes).every == 0.0


def test_motion_survives_a_bad_frame() -> None:
    scenes = some_scenes(6, seed=8)
    frames, _ = clips(scenes, 9, middle(6))
    frames[:, 4] = 0.5
    detection = detect(frames)
    assert not detection.seen[:, 4].any()
    assert torch.equal(torch.stack((detection.direction, detection.speed), -1)[:, 0, 0], scenes[:, 2:4])


def test_flicker_is_the_second_difference_of_the_colour() -> None:
    frames, _ = clips(torch.tensor([[0, 0, 0, 0, 0, *NONE]]), 6, middle(1))
    steady = detect(frames)
    assert flicker(steady).item() < 1e-3
    gain = torch.tensor([1.0, 0.96] * 3)[:, None, None, None]
    # The object alternates with 0.96 of itself: |second difference| is 0.08 of its mean colour.
    expected = 0.08 * steady.colour_rgb[0, 0, 0].mean().item()
    assert flicker(detect(frames * gain)).item() == pytest.approx(expected, rel=0.1)  # the mean is over what has the hue


def test_frames_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"given torch.uint8 \[1, 2, 3, 128, 128\]"):
        detect(torch.zeros(1, 2, 3, 128, 128, dtype=torch.uint8))
    with pytest.raises(ShapeError, match=r"\[1, 2, 3, 64, 128\]"):
        detect(torch.zeros(1, 2, 3, 64, 128))


def test_attributes_are_those_of_the_language() -> None:
    assert list(CHOICES) == ["colour", "shape", "direction", "speed", "background"]
