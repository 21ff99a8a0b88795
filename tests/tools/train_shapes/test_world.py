"""Training data: nothing held out is ever drawn, prompts say the scene, starts are uniform and told by the noise."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from strobe.core.tolerances import tolerance
from strobe.models.shapes.grammar import VOCABULARY, parse
from strobe.models.shapes.oracle import detect, floor_step, locate
from strobe.models.text.words import WordEncoder
from train_shapes.clips import FADE, HELD_OUT, SIZES, draw_radius, draw_scenes
from train_shapes.world import PromptTable, draw_block, start_from_noise, switch_scenes

CPU = torch.device("cpu")
ALONE = torch.tensor([[*scene, -1, -1] for scene in itertools.product(*(range(size) for size in SIZES))])
TOGETHER = torch.cat((ALONE[:, :5], ALONE.flip(0)[:, :2]), dim=1)


def held_out(scenes: Tensor) -> int:
    """Scenes with a colour and a shape that training must not combine."""
    return sum(tuple(pair) in HELD_OUT for first in (0, 5) for pair in scenes[:, first : first + 2].tolist())


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(7)


def test_scenes_are_uniform_over_what_is_seen() -> None:
    scenes = draw_scenes(36_000, CPU)
    assert held_out(scenes) == 0
    pairs = torch.bincount(scenes[:, 0] * SIZES[1] + scenes[:, 1], minlength=40)
    seen = pairs[pairs > 0]
    assert len(seen) == 36 and (seen - 1000).abs().max() < 160  # five standard deviations of 1000
    for column, size in enumerate(SIZES[2:], start=2):
        counts = torch.bincount(scenes[:, column], minlength=size)
        assert len(counts) == size and (counts - 36_000 / size).abs().max() < 5 * (36_000 / size) ** 0.5
    two = scenes[scenes[:, 5] >= 0]
    assert abs(len(two) - 18_000) < 500 and (scenes[:, 5:].amin(1) >= 0).sum() == len(two)
    pairs = torch.bincount(two[:, 5] * SIZES[1] + two[:, 6], minlength=40)
    assert (pairs > 0).sum() == 36 and (pairs[pairs > 0] - 500).abs().max() < 130


def test_switches_change_the_share_asked_for_and_show_nothing_held_out() -> None:
    scenes = draw_scenes(20_000, CPU)
    assert torch.equal(switch_scenes(scenes, 0.0), scenes)
    switched = scenes
    for share in (1.0, 0.5, 1.0, 1.0):
        before, switched = switched, switch_scenes(switched, share)
        assert held_out(switched) == 0
        changed = (switched != before).any(dim=1).double().mean().item()
        assert 0.85 * share < changed <= share + 0.02  # some new prompts are the old one


def test_every_sentence_says_its_scene() -> None:
    text = WordEncoder(VOCABULARY)
    table = PromptTable(text, CPU, sentences=3)
    scenes = torch.cat((ALONE, TOGETHER))
    for row, scene in zip(table.draw(scenes).tolist(), scenes.tolist(), strict=True):
        sentence = " ".join(VOCABULARY[number - 1] for number in row if number)
        assert list(parse(sentence).attributes) == scene, sentence
        assert " a orange" not in f" {sentence}" and " an red" not in f" {sentence}", sentence
    many = table.draw(ALONE[:1].expand(4, 50, 7))
    assert many.shape == (4, 50, text.length) and len(many.flatten(0, 1).unique(dim=0)) == 3


def test_a_start_is_read_from_three_channel_means_of_any_size() -> None:
    noise = torch.randn(4, 3, 8, 16, 16)
    starts = place, _, radius = start_from_noise(noise)
    z = noise[:, :, :3].double().mean(dim=(1, 3, 4)) * (3 * 16 * 16) ** 0.5
    uniform = 2 * torch.distributions.Normal(0.0, 1.0).cdf(z) - 1
    torch.testing.assert_close(place.double(), uniform[:, :2], rtol=0, atol=tolerance("world", "float32"))
    torch.testing.assert_close(radius.double(), 25 + 3 * uniform[:, 2], rtol=0, atol=tolerance("world", "float32"))
    shuffled = noise[:, :, [0, 1, 2, 7, 6, 5, 4, 3]].flip(3)
    for again, first in zip(start_from_noise(shuffled), starts, strict=True):
        torch.testing.assert_close(again, first)


@pytest.mark.parametrize("lengths", [(9, 12), (12, 12, 12)])
def test_a_stream_of_blocks_is_one_trajectory(lengths: tuple[int, ...]) -> None:
    scenes = torch.cat((ALONE[[3, 210]], TOGETHER[[777]]))
    start, radius = torch.tensor([[2.5, 30.0], [26.0, 3.0], [10.0, 27.5]]), draw_radius(3, CPU)
    place = torch.tensor([[0.2, -0.9], [1.0, -1.0], [-0.5, 0.5]])
    whole, end = draw_block(scenes, None, start, place, radius, sum(lengths))
    camera, parts = start, []
    for length in lengths:
        part, camera = draw_block(scenes, None, camera, place, radius, length)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=tolerance("moved picture", "float32"))
    torch.testing.assert_close(camera, end)
    pair, found, seen = locate(whole[:, -1])
    assert pair.tolist() == [False, False, True] and (found - place).abs().max() < 0.12
    assert floor_step(seen, end).abs().max() < 0.5
    assert torch.equal(detect(whole).labels[:, 0], scenes)
    assert floor_step(locate(whole[:, 0])[2], start).abs().amax(1).min() > 0.5  # the first frame has moved already


def test_the_old_look_fades_where_the_new_one_moves() -> None:
    old, new, start, radius = ALONE[[5]], TOGETHER[[900]], torch.tensor([[6.0, 6.0]]), torch.tensor([25.0])
    place = torch.zeros(1, 2)
    faded, camera = draw_block(new, old, start, place, radius, 9)
    plain, same_camera = draw_block(new, None, start, place, radius, 9)
    assert torch.equal(camera, same_camera)
    assert torch.equal(faded[:, len(FADE) :], plain[:, len(FADE) :])
    look = torch.cat((old[:, :2], new[:, 2:4], old[:, 4:]), dim=1)  # the old colours on the new path
    before, _ = draw_block(look, None, start, place, radius, 9)
    for frame, weight in enumerate((0.75, 0.5, 0.25)):
        torch.testing.assert_close(faded[:, frame], weight * before[:, frame] + (1 - weight) * plain[:, frame])
