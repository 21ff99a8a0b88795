"""The prompt language: every sentence reads back, and every mistake is named."""

from __future__ import annotations

import itertools
import math
import random
import re
from dataclasses import replace

import pytest

from source import ROOT
from strobe.core.errors import ConfigError
from strobe.models.shapes.grammar import BACKGROUNDS, CHOICES, COLOURS, EVERYWHERE, VOCABULARY, Scene, parse
from train_shapes.clips import HELD_OUT, describe, sample_scene


def test_every_scene_reads_back_from_its_sentences() -> None:
    rng = random.Random(1)
    for numbers in itertools.product(*(range(len(values)) for values in CHOICES.values())):
        scene = Scene(**dict(zip(CHOICES, numbers, strict=True)))
        for second in (None, None, (numbers[0], 4), (7 - numbers[0], numbers[1])):
            told = replace(scene, second=second)
            sentence = describe(told, rng)
            assert parse(sentence) == told, sentence
            assert set(sentence.split()) <= set(VOCABULARY)
            assert len(sentence.split()) <= 20


def test_sentences_use_the_whole_vocabulary_of_attributes() -> None:
    rng = random.Random(2)
    used = {word for _ in range(3000) for word in describe(sample_scene(rng, held_out=rng.random() < 0.5), rng).split()}
    assert set(VOCABULARY) - used <= {"the", "in", "with"}


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("a red circle moving left", ("red", "circle", "left", "slow", "black")),
        ("A RED Circle, moving left!", ("red", "circle", "left", "slow", "black")),
        ("quickly upwards: the white cross on grey", ("white", "cross", "up", "fast", "gray")),
        ("a cyan star going to the right at fast speed over a forest backdrop", ("cyan", "star", "right", "fast", "forest")),
        ("a red circle and a blue square moving up", ("red", "circle", "up", "slow", "black", "blue", "square")),
        ("red circle moving left slowly and blue square leftwards", ("red", "circle", "left", "slow", "black", "blue", "square")),
        ("a white star moving down over a tiled navy floor", ("white", "star", "down", "slow", "navy")),
        ("on navy, red and red: star with star, down fast", ("red", "star", "down", "fast", "navy", "red", "star")),
    ],
)
def test_parse(prompt: str, words: tuple[str, ...]) -> None:
    assert parse(prompt).words == words


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("a red cirle moving left", r"unknown word 'cirle' \(did you mean 'circle'\?\)"),
        ("a circle moving left", "gives no colour; add one of: red, green"),
        (
            "a purple zebra moveing up",
            r"^unknown words 'zebra', 'moveing' \(did you mean 'moving'\?\) in the prompt 'a purple zebra moveing up'; "
            r'for example "a purple circle moving up"; docs/shapes\.md lists every word of the model$',
        ),
        ("a red circle", "gives no direction; add one of: left"),
        ("a red blue circle moving left", r"gives two colours, 'red' and 'blue', where one is allowed; for example"),
        ("a red circle going left and right", "gives two directions, 'left' and 'right'"),
        ("a slow red circle going left fast", "gives two speeds, 'slow' and 'fast'"),
        ("moving up", r'add one of: circle, .*; for example "a red circle moving up"'),
        ("a red circle moving left and a blue square moving right", "gives two directions, .* a blue square moving left"),
        ("a red red circle and blue square moving up", "names 2 shapes .* and 3 colours"),
        ("red circle, blue square, green star going up", r"names 3 shapes \(circle, square, star\); the model draws one or two"),
        ("a red circle and a square going up", r"names 2 shapes \(circle, square\) and 1 colours; give each shape one; .* blue"),
    ],
)
def test_parse_names_the_mistake(prompt: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(prompt)


def test_vocabulary_is_small_unique_and_keeps_its_order() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) <= 80
    assert VOCABULARY[:3] == ("red", "green", "blue")
    assert VOCABULARY[-1] == "backdrop"
    assert all(word == word.lower() and word.isalpha() for word in VOCABULARY)


def test_the_page_that_an_unknown_word_names_has_every_word() -> None:
    page = (ROOT / "docs" / "shapes.md").read_text(encoding="utf-8")
    listed = page.partition("| word for | one of |")[2]
    assert {*VOCABULARY, *EVERYWHERE} <= set(re.findall(r"\w+", listed))


def test_held_out_pairs_leave_every_colour_and_shape_in_training() -> None:
    assert len(HELD_OUT) == 4
    assert len({colour for colour, _ in HELD_OUT}) == len({shape for _, shape in HELD_OUT}) == 4
    rng = random.Random(3)
    seen = [sample_scene(rng) for _ in range(2000)]
    unseen = [sample_scene(rng, held_out=True) for _ in range(200)]
    for pairs_of in (lambda scene: (scene.colour, scene.shape), lambda scene: scene.second):
        assert not {pairs_of(scene) for scene in seen} & HELD_OUT
        assert len({pairs_of(scene) for scene in seen} - {None}) == 36
        assert {pairs_of(scene) for scene in unseen} - {None} == HELD_OUT


def test_colours_are_far_from_each_other_and_from_backgrounds() -> None:
    for background in BACKGROUNDS.values():
        assert max(background) <= 104
        assert min(math.dist(background, colour) for colour in COLOURS.values()) / 255 > 0.45
    for table, least in ((COLOURS, 0.3), (BACKGROUNDS, 0.14)):
        assert min(math.dist(a, b) for a, b in itertools.combinations(table.values(), 2)) / 255 > least
