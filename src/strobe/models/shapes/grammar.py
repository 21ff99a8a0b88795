"""The procedural world: one moving coloured shape, and the small English that describes it."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from strobe.core.errors import ConfigError, unknown_choice

Rgb = tuple[int, int, int]

COLOURS: dict[str, Rgb] = {
    "red": (230, 40, 40),
    "green": (40, 200, 60),
    "blue": (50, 90, 240),
    "yellow": (245, 225, 50),
    "orange": (255, 140, 20),
    "purple": (165, 60, 215),
    "cyan": (40, 215, 225),
    "white": (245, 245, 245),
}
SHAPES = ("circle", "square", "triangle", "star", "cross")
DIRECTIONS: dict[str, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}  # (x, y), y down
SPEEDS: dict[str, int] = {"slow": 1, "fast": 3}  # pixels per frame
BACKGROUNDS: dict[str, Rgb] = {"black": (0, 0, 0), "navy": (12, 20, 96), "gray": (96, 96, 96), "forest": (16, 80, 36)}

CHOICES: dict[str, tuple[str, ...]] = {
    "colour": tuple(COLOURS),
    "shape": SHAPES,
    "direction": tuple(DIRECTIONS),
    "speed": tuple(SPEEDS),
    "background": tuple(BACKGROUNDS),
}
"""The attributes of a scene in the order of its tensors, each with its values in the order of their numbers."""

HELD_OUT = frozenset(
    (CHOICES["colour"].index(colour), SHAPES.index(shape))
    for colour, shape in (("green", "triangle"), ("orange", "cross"), ("purple", "square"), ("cyan", "star"))
)
"""`(colour, shape)` numbers that training never shows: 4 of 40, no colour and no shape twice."""

DEFAULTS = {"speed": "slow", "background": "black"}
"""What a prompt means when it does not say."""

SYNONYMS: dict[str, tuple[str, ...]] = {
    "left": ("left", "leftwards"),
    "right": ("right", "rightwards"),
    "up": ("up", "upwards"),
    "down": ("down", "downwards"),
    "slow": ("slow", "slowly"),
    "fast": ("fast", "quickly"),
    "gray": ("gray", "grey"),
}
VERBS = ("moving", "gliding", "drifting", "sliding", "going")
FILLERS = ("a", "an", "the", "on", "over", "to", "is", "in", "with", "and", "at", "speed", "background", "backdrop")


def _meanings() -> dict[str, tuple[str, int]]:
    """Map every word that carries an attribute to `(attribute, number)`."""
    return {
        word: (attribute, number)
        for attribute, values in CHOICES.items()
        for number, value in enumerate(values)
        for word in SYNONYMS.get(value, (value,))
    }


MEANINGS = _meanings()
VOCABULARY: tuple[str, ...] = (*MEANINGS, *VERBS, *FILLERS)
"""Every word of the language. The position of a word is its number in the text encoder: append, never reorder."""

# {adverb} and {place} may be empty; no sentence has more than 15 words.
_TEMPLATES = (
    "{article} {colour} {shape} {verb} {direction} {adverb} {place}",
    "{article} {colour} {shape} {adverb} {verb} {direction} {place}",
    "{article} {colour} {shape} {verb} {direction} {place} {adverb}",
    "{place} {article} {colour} {shape} {verb} {direction} {adverb}",
    "{article} {colour} {shape} is {adverb} {verb} {direction} {place}",
)
_PLACES = ("on a {0} background", "over a {0} background", "on a {0} backdrop", "on {0}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """One moving shape. Each field is the position of its value in `CHOICES[field]`.

    Raises:
        ConfigError: a number has no value.
    """

    colour: int
    shape: int
    direction: int
    speed: int
    background: int

    def __post_init__(self) -> None:
        for (attribute, values), number in zip(CHOICES.items(), self.attributes, strict=True):
            if not 0 <= number < len(values):
                raise ConfigError(f"scene {attribute} {number} does not exist; allowed: 0 .. {len(values) - 1}")

    @property
    def attributes(self) -> tuple[int, int, int, int, int]:
        """The five numbers in the order of `CHOICES`: a row of the tensors in `render` and `oracle`."""
        return self.colour, self.shape, self.direction, self.speed, self.background

    @property
    def words(self) -> tuple[str, ...]:
        """The five values by name, e.g. `("red", "circle", "left", "slow", "navy")`."""
        return tuple(values[number] for values, number in zip(CHOICES.values(), self.attributes, strict=True))

    def prompt(self, rng: random.Random) -> str:
        """Describe the scene in a random sentence that `parse` reads back; defaults are left out half of the time."""
        colour, shape, direction, speed, background = self.words
        headings = SYNONYMS[direction]
        if direction in ("left", "right"):
            headings += (f"to the {direction}",)
        said_speed = speed != DEFAULTS["speed"] or rng.random() < 0.5
        said_background = background != DEFAULTS["background"] or rng.random() < 0.5
        adverbs = {"slow": ("slowly", "at slow speed"), "fast": ("quickly", "fast", "at fast speed")}[speed]
        sentence = rng.choice(_TEMPLATES).format(
            article=_article(colour),
            colour=colour,
            shape=shape,
            verb=rng.choice(VERBS),
            direction=rng.choice(headings),
            adverb=rng.choice(adverbs) if said_speed else "",
            place=rng.choice(_PLACES).format(rng.choice(SYNONYMS.get(background, (background,)))) if said_background else "",
        )
        return " ".join(sentence.split())


def split_words(prompt: str) -> list[str]:
    """Split a prompt into lower-case words without punctuation.

    Raises:
        ConfigError: a word is not in `VOCABULARY`; the message names the nearest one.
    """
    words: list[str] = re.findall(r"[\w'-]+", prompt.lower())
    for word in words:
        if word not in VOCABULARY:
            raise unknown_choice("word", word, VOCABULARY)
    return words


def parse(prompt: str) -> Scene:
    """Read a prompt. Order, case and punctuation do not matter; speed defaults to slow, the background to black.

    Raises:
        ConfigError: an unknown word, an attribute given twice, or no colour, shape or direction; with a prompt that would do.
    """
    found: dict[str, int] = {}
    twice = ""
    for word in split_words(prompt):
        if word not in MEANINGS:
            continue
        attribute, number = MEANINGS[word]
        if attribute in found:
            first = CHOICES[attribute][found[attribute]]
            twice = twice or f"gives the {attribute} twice ({first!r}, then {word!r}); the model draws one shape"
        found.setdefault(attribute, number)
    missing = [attribute for attribute in CHOICES if attribute not in found and attribute not in DEFAULTS]
    if twice or missing:
        lacking = "; ".join(f"gives no {attribute}; add one of: {', '.join(CHOICES[attribute])}" for attribute in missing)
        raise ConfigError(f"the prompt {prompt!r} {twice or lacking}; {_example(found)}")
    for attribute, value in DEFAULTS.items():
        found.setdefault(attribute, CHOICES[attribute].index(value))
    return Scene(**found)


def _example(found: Mapping[str, int]) -> str:
    """Return an example prompt with the values found, and for every missing one its first choice."""
    colour, shape, direction = (CHOICES[name][found.get(name, 0)] for name in ("colour", "shape", "direction"))
    return f'for example "{_article(colour)} {colour} {shape} moving {direction}"'


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def sample_scene(rng: random.Random, *, held_out: bool = False) -> Scene:
    """Draw a scene, uniform over the seen (default) or over the held-out combinations."""
    pairs = [
        (colour, shape)
        for colour in range(len(COLOURS))
        for shape in range(len(SHAPES))
        if ((colour, shape) in HELD_OUT) == held_out
    ]
    colour, shape = rng.choice(pairs)
    return Scene(
        colour=colour,
        shape=shape,
        direction=rng.randrange(len(DIRECTIONS)),
        speed=rng.randrange(len(SPEEDS)),
        background=rng.randrange(len(BACKGROUNDS)),
    )
