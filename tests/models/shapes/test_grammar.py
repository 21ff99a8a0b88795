"""The prompt language: every sentence reads back, and every mistake is named."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from strobe.core.errors import ConfigError
from strobe.models.shapes.grammar import (
    BACKGROUNDS,
    CHOICES,
    COLOURS,
    HELD_OUT,
    VOCABULARY,
    Scene,
    parse,
    sample_scene,
)

RED_CIRCLE_LEFT = Scene(colour=0, shape=0, direction=0, speed=0, background=0)


def test_every_scene_reads_back_from_its_sentences() -> None:
    rng = random.Random(1)
    for numbers in itertools.product(*(range(len(values)) for values in CHOICES.values())):
        scene = Scene(**dict(zip(CHOICES, numbers, strict=True)))
        for _ in range(4):
            sentence = scene.prompt(rng)
            assert parse(sentence) == scene, sentence
            assert set(sentence.split()) <= set(VOCABULARY)
            assert len(sentence.split()) <= 15


def test_sentences_use_the_whole_vocabulary_of_attributes() -> None:
    rng = random.Random(2)
    used = {word for _ in range(3000) for word in sample_scene(rng, held_out=rng.random() < 0.5).prompt(rng).split()}
    assert set(VOCABULARY) - used <= {"the", "in", "with", "and"}


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("a red circle moving left", ("red", "circle", "left", "slow", "black")),
        ("A RED Circle, moving left!", ("red", "circle", "left", "slow", "black")),
        ("quickly upwards: the white cross on grey", ("white", "cross", "up", "fast", "gray")),
        ("a cyan star going to the right at fast speed over a forest backdrop", ("cyan", "star", "right", "fast", "forest")),
    ],
)
def test_parse(prompt: str, words: tuple[str, ...]) -> None:
    assert parse(prompt).words == words


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("a red cirle moving left", r"unknown word 'cirle' \(did you mean 'circle'\?\)"),
        ("a circle moving left", "gives no colour; add one of: red, green"),
        ("a red one moving left", "unknown word 'one'"),
        ("red left", "gives no shape; add one of: circle"),
        ("a red circle", "gives no direction; add one of: left"),
        ("a red blue circle moving left", r"gives the colour twice \('red', then 'blue'\)"),
        ("a red circle going left and right", r"gives the direction twice \('left', then 'right'\)"),
        ("a slow red circle going left fast", r"gives the speed twice \('slow', then 'fast'\)"),
        ("", "gives no colour"),
        ("an orange star", r'add one of: left, right, up, down; for example "an orange star moving left"'),
        ("moving up", r'add one of: circle, .*; for example "a red circle moving up"'),
        (
            "a green circle and a blue square moving left",
            r"gives the colour twice \('green', then 'blue'\); the model draws one shape; for example .a green circle moving",
        ),
    ],
)
def test_parse_names_the_mistake(prompt: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(prompt)


def test_scene_numbers_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"scene shape 5 does not exist; allowed: 0 \.\. 4"):
        Scene(colour=0, shape=5, direction=0, speed=0, background=0)


def test_vocabulary_is_small_unique_and_keeps_its_order() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) <= 80
    assert VOCABULARY[:3] == ("red", "green", "blue")
    assert VOCABULARY[-1] == "backdrop"
    assert all(word == word.lower() and word.isalpha() for word in VOCABULARY)


def test_held_out_pairs_leave_every_colour_and_shape_in_training() -> None:
    assert len(HELD_OUT) == 4
    assert len({colour for colour, _ in HELD_OUT}) == len({shape for _, shape in HELD_OUT}) == 4
    rng = random.Random(3)
    seen = [sample_scene(rng) for _ in range(2000)]
    assert not {(scene.colour, scene.shape) for scene in seen} & HELD_OUT
    assert len({(scene.colour, scene.shape) for scene in seen}) == 36
    unseen = [sample_scene(rng, held_out=True) for _ in range(200)]
    assert {(scene.colour, scene.shape) for scene in unseen} == HELD_OUT


def test_equal_seeds_give_equal_sentences() -> None:
    first, second = random.Random(7), random.Random(7)
    assert [sample_scene(first).prompt(first) for _ in range(20)] == [sample_scene(second).prompt(second) for _ in range(20)]


def test_colours_are_far_from_each_other_and_from_backgrounds() -> None:
    for background in BACKGROUNDS.values():
        assert max(background) <= 96
        assert min(math.dist(background, colour) for colour in COLOURS.values()) / 255 > 0.45
    for table in (COLOURS, BACKGROUNDS):
        assert min(math.dist(a, b) for a, b in itertools.combinations(table.values(), 2)) / 255 > 0.3
