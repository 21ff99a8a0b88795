"""The prompt language: every sentence reads back, and every mistake is named."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from strobe.core.errors import ConfigError
from strobe.models.shapes.grammar import (
    CHOICES,
    COLOURS,
    HELD_OUT,
    MOST_WORDS,
    SYNONYMS,
    VOCABULARY,
    Scene,
    Thing,
    parse,
    sample_scene,
)

DIRECTION_WORDS = {word for direction in CHOICES["direction"] for word in SYNONYMS[direction]}

def test_every_object_before_every_background_reads_back_from_its_sentences() -> None:
    rng = random.Random(1)
    for numbers in itertools.product(*(range(len(values)) for values in CHOICES.values())):
        scene = Scene.of((*numbers, -1, -1, -1, -1))
        for _ in range(3):
            sentence = scene.prompt(rng)
            assert parse(sentence) == scene, sentence
            assert set(sentence.split()) <= set(VOCABULARY)
            assert len(sentence.split()) <= MOST_WORDS


def test_two_objects_read_back_whichever_is_said_first() -> None:
    rng = random.Random(4)
    together = 0
    for _ in range(3000):
        scene = sample_scene(rng, objects=2)
        sentence = scene.prompt(rng)
        assert parse(sentence) == scene == Scene.of(scene.attributes), sentence
        assert len(sentence.split()) <= MOST_WORDS
        together += sum(word in DIRECTION_WORDS for word in sentence.split()) == 1
    assert together > 100  # one direction said for both


def test_sentences_use_the_whole_vocabulary_of_attributes() -> None:
    rng = random.Random(2)
    used = {
        word
        for number in range(3000)
        for word in sample_scene(rng, held_out=rng.random() < 0.5, objects=1 + number % 2).prompt(rng).split()
    }
    assert set(VOCABULARY) - used <= {"with"}


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("a red circle moving left", ("red", "circle", "left", "slow", "black")),
        ("A RED Circle, moving left!", ("red", "circle", "left", "slow", "black")),
        ("quickly upwards: the white cross on grey", ("white", "cross", "up", "fast", "gray")),
        ("a cyan star going to the right at fast speed over a forest backdrop", ("cyan", "star", "right", "fast", "forest")),
        ("at dusk a red circle moving left", ("red", "circle", "left", "slow", "navy")),
        (
            "a blue square moving up and a red circle moving left fast, in fog",
            ("red", "circle", "left", "fast", "blue", "square", "up", "slow", "gray"),
        ),
        (
            "a red circle and a blue square moving left fast",
            ("red", "circle", "left", "fast", "blue", "square", "left", "fast", "black"),
        ),
        (
            "a red circle moving left slowly and a blue square",
            ("red", "circle", "left", "slow", "blue", "square", "left", "slow", "black"),
        ),
    ],
)
def test_parse(prompt: str, words: tuple[str, ...]) -> None:
    assert said(parse(prompt)) == words


def said(scene: Scene) -> tuple[str, ...]:
    """Every value of a scene by its name: those of each object, then the background."""
    numbers = [dict(zip(CHOICES, thing.numbers, strict=False)) for thing in scene.things] + [{"background": scene.background}]
    return tuple(CHOICES[attribute][number] for values in numbers for attribute, number in values.items())


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
            "a green circle and a green square moving left",
            r"gives both objects the colour 'green'; give them two; for example .a green circle moving left and a red square moving",
        ),
        ("a red circle and a blue star and a green cross moving up", "names 3 objects; the model draws one or two"),
        ("a red circle at dusk and a blue star at night moving up", r"gives the background twice \('navy', then 'night'\)"),
        ("a circle moving left and a blue star", "gives no colour; add one of: red"),
        ("a red circle and a blue star", r"gives no direction; .* for example .a red circle moving left and a blue star moving left"),
        ("a red circle moving left and blue moving up", "gives no shape; add one of: circle"),
    ],
)
def test_parse_names_the_mistake(prompt: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(prompt)


def test_scene_numbers_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"scene shape 5 does not exist; allowed: 0 \.\. 4"):
        Thing(colour=0, shape=5, direction=0, speed=0)
    with pytest.raises(ConfigError, match=r"scene background 4 does not exist; allowed: 0 \.\. 3"):
        Scene.of((0, 0, 0, 0, 4, -1, -1, -1, -1))
    with pytest.raises(ConfigError, match=r"scene has objects of colours \[2, 2\]; allowed: one, or two of ascending numbers"):
        Scene.of((2, 0, 0, 0, 0, 2, 1, 0, 0))


def test_vocabulary_is_small_unique_and_keeps_its_order() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) <= 80
    assert VOCABULARY[:3] == ("red", "green", "blue")
    assert VOCABULARY[-5:] == ("backdrop", "night", "dusk", "fog", "morning")
    assert all(word == word.lower() and word.isalpha() for word in VOCABULARY)


def test_held_out_pairs_leave_every_colour_and_shape_in_training() -> None:
    assert len(HELD_OUT) == 4
    assert len({colour for colour, _ in HELD_OUT}) == len({shape for _, shape in HELD_OUT}) == 4
    rng = random.Random(3)
    seen = [sample_scene(rng) for _ in range(2000)]
    assert not {(thing.colour, thing.shape) for scene in seen for thing in scene.things} & HELD_OUT
    assert len({(thing.colour, thing.shape) for scene in seen for thing in scene.things}) == 36
    unseen = [sample_scene(rng, held_out=True) for _ in range(200)]
    assert {(thing.colour, thing.shape) for scene in unseen for thing in scene.things} == HELD_OUT


def test_equal_seeds_give_equal_sentences() -> None:
    first, second = random.Random(7), random.Random(7)
    assert [sample_scene(first).prompt(first) for _ in range(20)] == [sample_scene(second).prompt(second) for _ in range(20)]


def test_colours_are_far_from_each_other() -> None:
    assert min(math.dist(a, b) for a, b in itertools.combinations(COLOURS.values(), 2)) / 255 > 0.3
