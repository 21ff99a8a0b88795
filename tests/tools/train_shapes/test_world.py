"""Training data: nothing held out is ever drawn, prompts say the scene, starts are uniform and told by the noise."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from strobe.core.tolerances import tolerance
from strobe.models.shapes.clips import FADE, SIZES, draw_radius, draw_scenes
from strobe.models.shapes.grammar import CHOICES, HELD_OUT, VOCABULARY, parse
from strobe.models.shapes.oracle import centroids, detect
from strobe.models.shapes.render import RADII, SIZE, wrapped
from strobe.models.text.words import WordEncoder
from train_shapes.world import (
    START_SPREAD,
    PromptTable,
    draw_block,
    start_from_noise,
    switch_scenes,
)

CPU = torch.device("cpu")
ALL_SCENES = torch.tensor(list(itertools.product(*(range(size) for size in SIZES))))


def held_out(scenes: Tensor) -> int:
    """Scenes whose colour and shape training must not combine."""
    return sum(tuple(pair) in HELD_OUT for pair in scenes[:, :2].tolist())


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


def test_switches_change_the_share_asked_for_and_show_nothing_held_out() -> None:
    scenes = draw_scenes(20_000, CPU)
    assert torch.equal(switch_scenes(scenes, 0.0), scenes)
    switched = scenes
    for share in (1.0, 0.5, 1.0, 1.0):
        before, switched = switched, switch_scenes(switched, share)
        assert held_out(switched) == 0
        changed = (switched != before).any(dim=1).double().mean().item()
        assert 0.85 * share < changed <= share + 0.02  # some new prompts are the old one


def test_half_of_the_switches_keep_most_attributes() -> None:
    scenes = draw_scenes(20_000, CPU)
    kept = (switch_scenes(scenes, 1.0) == scenes).sum(dim=1).double()
    expected = sum(0.5 / size + 0.5 * (0.67 + 0.33 / size) for size in SIZES)
    assert abs(kept.mean().item() - expected) < 0.1


def test_every_sentence_says_its_scene() -> None:
    text = WordEncoder(VOCABULARY)
    table = PromptTable(text, CPU, sentences=3)
    for row, scene in zip(table.draw(ALL_SCENES).tolist(), ALL_SCENES.tolist(), strict=True):
        sentence = " ".join(VOCABULARY[number - 1] for number in row if number)
        assert list(parse(sentence).attributes) == scene, sentence
    many = table.draw(ALL_SCENES[:1].expand(4, 50, 5))
    assert many.shape == (4, 50, text.length) and len(many.flatten(0, 1).unique(dim=0)) == 3


def kolmogorov_smirnov(values: Tensor) -> float:
    """Distance to the uniform distribution on [0, 1], times the root of the number of values; above 1.95 once in 1000 times."""
    ordered = values.double().sort().values
    steps = torch.arange(len(ordered) + 1, dtype=torch.float64) / len(ordered)
    return max((ordered - steps[:-1]).max().item(), (steps[1:] - ordered).max().item()) * len(ordered) ** 0.5


def test_starts_are_uniform_and_independent() -> None:
    centre, radius = start_from_noise(torch.randn(20_000, 3, 4, 2, 2))
    unit = torch.cat(((centre - SIZE / 2) / START_SPREAD, ((radius - RADII[0]) / (RADII[1] - RADII[0]) * 2 - 1)[:, None]), dim=1)
    assert unit.abs().max() <= 1
    for values in unit.unbind(1):
        assert kolmogorov_smirnov((values + 1) / 2) < 1.95
    for one, other in itertools.combinations(unit.unbind(1), 2):
        assert kolmogorov_smirnov(((one + other).remainder(2)) / 2) < 1.95  # a sum modulo 1 is uniform if they are independent
        assert abs(torch.corrcoef(torch.stack((one, other)))[0, 1].item()) < 5 / 20_000**0.5


def test_a_start_is_read_from_three_channel_means_of_any_size() -> None:
    noise = torch.randn(4, 3, 8, 16, 16)
    centre, radius = start_from_noise(noise)
    z = noise[:, :, :3].double().mean(dim=(1, 3, 4)) * (3 * 16 * 16) ** 0.5
    uniform = 2 * torch.distributions.Normal(0.0, 1.0).cdf(z) - 1
    torch.testing.assert_close(centre.double(), 64 + 24 * uniform[:, :2], rtol=0, atol=tolerance("world", "float32"))
    torch.testing.assert_close(radius.double(), 25 + 3 * uniform[:, 2], rtol=0, atol=tolerance("world", "float32"))
    shuffled = noise[:, :, [0, 1, 2, 7, 6, 5, 4, 3]].flip(3)
    for again, first in zip(start_from_noise(shuffled), (centre, radius), strict=True):
        torch.testing.assert_close(again, first)


def test_radii_are_in_range() -> None:
    radius = draw_radius(5000, CPU)
    assert RADII[0] <= radius.min() < 22.1 and 27.9 < radius.max() <= RADII[1]


@pytest.mark.parametrize("lengths", [(9, 12), (12, 12, 12)])
def test_a_stream_of_blocks_is_one_trajectory(lengths: tuple[int, ...]) -> None:
    scenes, start, radius = (
        ALL_SCENES[[3, 210, 777]],
        torch.tensor([[2.5, 64.0], [126.0, 3.0], [60.0, 127.5]]),
        draw_radius(3, CPU),
    )
    whole, end = draw_block(scenes, None, start, radius, sum(lengths))
    centre, parts = start, []
    for length in lengths:
        part, centre = draw_block(scenes, None, centre, radius, length)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=tolerance("world", "float32"))
    torch.testing.assert_close(centre, end)
    assert wrapped(centroids(whole)[:, -1] - end).abs().max() < 0.4
    steps = wrapped(centroids(whole).diff(dim=1))
    assert torch.equal(detect(whole).labels[:, 0], scenes) and steps.abs().amax(dim=(1, 2)).min() > 0.8
    assert wrapped(centroids(whole)[:, 0] - start).abs().amax() > 0.5  # the first frame has moved already


def test_the_old_look_fades_where_the_new_one_moves() -> None:
    old, new, start, radius = ALL_SCENES[[5]], ALL_SCENES[[900]], torch.tensor([[60.0, 60.0]]), torch.tensor([25.0])
    faded, centre = draw_block(new, old, start, radius, 9)
    plain, same_centre = draw_block(new, None, start, radius, 9)
    assert torch.equal(centre, same_centre)
    assert torch.equal(faded[:, len(FADE) :], plain[:, len(FADE) :])
    look = torch.cat((old[:, :2], new[:, 2:4], old[:, 4:]), dim=1)  # the old colours on the new path
    before, _ = draw_block(look, None, start, radius, 9)
    for frame, weight in enumerate((0.75, 0.5, 0.25)):
        torch.testing.assert_close(faded[:, frame], weight * before[:, frame] + (1 - weight) * plain[:, frame])


def test_attribute_sizes_are_those_of_the_language() -> None:
    assert tuple(len(values) for values in CHOICES.values()) == SIZES == (8, 5, 4, 2, 4)
