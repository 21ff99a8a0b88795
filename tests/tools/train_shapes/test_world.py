"""Training data: nothing held out is ever drawn, prompts say the scene, starts are told by the noise, places are read back."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from strobe.core.tolerances import tolerance
from strobe.models.shapes.clips import FADE, SIZES, TWO, draw_places, draw_radius, draw_scenes
from strobe.models.shapes.grammar import CHOICES, HELD_OUT, VOCABULARY, Scene, parse
from strobe.models.shapes.oracle import detect
from strobe.models.shapes.render import HILL, RADII, SIZE, TILE, render, wrapped
from strobe.models.text.words import WordEncoder
from train_shapes.world import (
    PromptTable,
    draw_block,
    hand_over,
    read_places,
    start_from_noise,
    switch_scenes,
)

CPU = torch.device("cpu")
NONE = [-1, -1, -1, -1]
RED, BLUE = [0, 0, 0, 0], [2, 1, 2, 1]


def held_out(scenes: Tensor) -> int:
    """Objects whose colour and shape training must not combine."""
    return sum(tuple(pair) in HELD_OUT for pair in torch.cat((scenes[:, :2], scenes[:, 5:7])).tolist())


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
    two = scenes[:, 5] >= 0
    assert two.double().mean().item() == pytest.approx(TWO * 7 / 8, abs=0.02)  # one colour twice is one object
    assert (scenes[two, 0] != scenes[two, 5]).all() and (scenes[~two, 5:] == -1).all()


def test_switches_change_the_share_asked_for_and_show_nothing_held_out() -> None:
    scenes = draw_scenes(20_000, CPU)
    assert torch.equal(switch_scenes(scenes, 0.0), scenes)
    switched = scenes
    for share in (1.0, 0.5, 1.0, 1.0):
        before, switched = switched, switch_scenes(switched, share)
        assert held_out(switched) == 0
        changed = (switched != before).any(dim=1).double().mean().item()
        assert 0.85 * share < changed <= share + 0.02  # some new prompts are the old one
        assert all(Scene.of(row) for row in switched[:300].tolist())  # no half of an object, no colour twice


def test_half_of_the_switches_keep_most_attributes() -> None:
    scenes = draw_scenes(20_000, CPU)
    kept = (switch_scenes(scenes, 1.0) == scenes)[:, :5].double().mean(0)
    for share, size in zip(kept.tolist(), SIZES, strict=True):
        assert 1 / size + 0.15 < share < 0.75


def test_every_sentence_says_its_scene() -> None:
    text = WordEncoder(VOCABULARY)
    table = PromptTable(text, CPU, sentences=3)
    scenes = draw_scenes(3000, CPU)
    for row, scene in zip(table.draw(scenes).tolist(), scenes.tolist(), strict=True):
        sentence = " ".join(VOCABULARY[number - 1] for number in row if number)
        assert parse(sentence) == Scene.of(scene), sentence
        assert 0 not in row[: len(sentence.split())]  # words first, then padding
    many = table.draw(scenes[:1].expand(4, 50, 9))
    assert many.shape == (4, 50, text.length) and len(many.flatten(0, 1).unique(dim=0)) > 3


def kolmogorov_smirnov(values: Tensor) -> float:
    """Distance to the uniform distribution on [0, 1], times the root of the number of values; above 1.95 once in 1000 times."""
    ordered = values.double().sort().values
    steps = torch.arange(len(ordered) + 1, dtype=torch.float64) / len(ordered)
    return max((ordered - steps[:-1]).max().item(), (steps[1:] - ordered).max().item()) * len(ordered) ** 0.5


def test_starts_are_uniform_and_independent() -> None:
    lone = torch.tensor([[*RED, 0, *NONE]]).expand(20_000, -1)
    noise = torch.randn(20_000, 3, 8, 2, 2)
    places, radius = start_from_noise(noise, lone)
    side, _ = start_from_noise(noise, torch.tensor([[*RED, 0, *BLUE]]).expand(20_000, -1))
    unit = torch.stack(
        (
            (places[:, 0] - 64) / 30,
            (places[:, 1] - 56) / 28,
            (radius - RADII[0]) / (RADII[1] - RADII[0]) * 2 - 1,
            (side[:, 2] - 92) / 12,
            (side[:, 3] - 56) / 28,
            places[:, 4] / TILE * 2 - 1,
            places[:, 5] / HILL * 2 - 1,
        ),
        dim=1,
    )
    assert unit.abs().max() <= 1 + 1e-5
    for values in unit.unbind(1):
        assert kolmogorov_smirnov((values + 1) / 2) < 1.95
    for one, other in itertools.combinations(unit.unbind(1), 2):
        assert kolmogorov_smirnov(((one + other).remainder(2)) / 2) < 1.95  # a sum modulo 1 is uniform if they are independent
        assert abs(torch.corrcoef(torch.stack((one, other)))[0, 1].item()) < 5 / 20_000**0.5
    assert (side[:, 2] - side[:, 0]).min() >= 32  # two objects start side by side


def test_a_start_is_read_from_channel_means_of_any_size() -> None:
    noise = torch.randn(4, 3, 8, 16, 16)
    lone = torch.tensor([[*RED, 0, *NONE]]).expand(4, -1)
    places, radius = start_from_noise(noise, lone)
    z = noise.double().mean(dim=(1, 3, 4)) * (3 * 16 * 16) ** 0.5
    uniform = 2 * torch.distributions.Normal(0.0, 1.0).cdf(z) - 1
    torch.testing.assert_close(places[:, 0].double(), 64 + 30 * uniform[:, 0], rtol=0, atol=tolerance("world", "float32"))
    torch.testing.assert_close(radius.double(), 16.5 + 1.5 * uniform[:, 2], rtol=0, atol=tolerance("world", "float32"))
    for again, first in zip(start_from_noise(noise.flip(3), lone), (places, radius), strict=True):
        torch.testing.assert_close(again, first)


def test_radii_are_in_range() -> None:
    radius = draw_radius(5000, CPU)
    assert RADII[0] <= radius.min() < 15.1 and 17.9 < radius.max() <= RADII[1]


@pytest.mark.parametrize("lengths", [(9, 12), (12, 12, 12)])
def test_a_stream_of_blocks_is_one_way(lengths: tuple[int, ...]) -> None:
    scenes = torch.tensor([[*RED, 1, *NONE], [*RED, 2, *BLUE]])
    start, radius = torch.tensor([[64.0, 60.0, 0, 0, 3, 4], [80.0, 40.0, 40.0, 90.0, 60, 60]]), draw_radius(2, CPU)
    whole, end = draw_block(scenes, None, start, radius, sum(lengths))
    places, parts = start, []
    for length in lengths:
        part, places = draw_block(scenes, None, places, radius, length)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=tolerance("world", "float32"))
    torch.testing.assert_close(places, end)
    found = detect(whole[:, :9])
    assert torch.equal(found.labels[:, 0], scenes)
    assert (found.centre[:, 0, 0] - torch.tensor([[63.0, 60.0], [79.0, 40.0]])).abs().max() < 0.7  # the first frame has moved


def test_the_old_look_fades_where_the_new_one_moves() -> None:
    old, new = torch.tensor([[*RED, 0, *NONE]]), torch.tensor([[*BLUE, 3, 4, 3, 0, 0]])
    start, radius = torch.tensor([[60.0, 60.0, 90, 30, 0, 0]]), torch.tensor([16.0])
    faded, places = draw_block(new, old, start, radius, 9)
    plain, same_places = draw_block(new, None, start, radius, 9)
    assert torch.equal(places, same_places)
    assert torch.equal(faded[:, len(FADE) :], plain[:, len(FADE) :])
    look = torch.tensor([[*RED[:2], *BLUE[2:], 0, *NONE]])  # the old colours on the new way
    before, _ = draw_block(look, None, start, radius, 9)
    for frame, weight in enumerate(FADE):
        torch.testing.assert_close(faded[:, frame], weight * before[:, frame] + (1 - weight) * plain[:, frame])


def test_an_object_goes_on_as_that_of_its_colour() -> None:
    at = [10.0, 20.0, 70.0, 80.0, 5.0, 6.0]
    opposite = [74.0, 108.0]
    cases = (  # old scene, new scene, which old object each new one goes on from
        ([*RED, 0, *NONE], [*BLUE, 0, *NONE], [10.0, 20.0]),
        ([*RED, 0, *BLUE], [*BLUE, 0, *NONE], [70.0, 80.0]),
        ([*RED, 0, *BLUE], [*BLUE, 0, *RED], [70.0, 80.0, 10.0, 20.0]),
        ([*RED, 0, *BLUE], [*RED, 0, *BLUE], [10.0, 20.0, 70.0, 80.0]),
        ([*RED, 0, *NONE], [*RED, 0, *BLUE], [10.0, 20.0, *opposite]),
        ([*RED, 0, *NONE], [*BLUE, 0, *RED], [*opposite, 10.0, 20.0]),
    )
    for old, new, wanted in cases:
        previous, places = hand_over(torch.tensor([new]), torch.tensor([old]), torch.tensor([at]))
        assert places[0, : len(wanted)].tolist() == wanted and places[0, 4:].tolist() == [5.0, 6.0], (old, new)
        assert sorted(previous[0].tolist()) == sorted(old)


def test_places_are_read_from_a_picture_that_is_elsewhere() -> None:
    scenes, places, radius = draw_scenes(60, CPU), draw_places(60, CPU), draw_radius(60, CPU)
    off = 1.5 * torch.randn(60, 6)
    seen = render(scenes[:, None], (places + off)[:, None], radius)[:, 0]
    left = wrapped(read_places(seen, scenes, places, radius) - places - off)
    whole = ((places[:, :2] > 24) & (places[:, :2] < SIZE - 24)).all(1) & (scenes[:, 5] < 0)
    assert whole.sum() > 8 and left[whole, :2].abs().max() < 0.3
    scroll = torch.remainder(left[:, 4:] + 32, 64) - 32
    assert scroll.abs().median(0).values.max() < 0.5 and off[:, 4:].abs().median(0).values.min() > 0.8
    same = read_places(render(scenes[:, None], places[:, None], radius)[:, 0], scenes, places, radius)
    torch.testing.assert_close(same, places, rtol=0, atol=tolerance("world", "float32"))


def test_what_is_not_seen_stays_where_it_should_be() -> None:
    scenes, places, radius = torch.tensor([[*RED, 0, *NONE]]), torch.tensor([[64.0, 64.0, 0, 0, 3, 4]]), torch.tensor([16.0])
    for nothing in (torch.full((1, 3, SIZE, SIZE), 0.5), torch.zeros(1, 3, SIZE, SIZE)):
        torch.testing.assert_close(read_places(nothing, scenes, places, radius), places)


def test_attribute_sizes_are_those_of_the_language() -> None:
    assert tuple(len(values) for values in CHOICES.values()) == SIZES == (8, 5, 4, 2, 4)
