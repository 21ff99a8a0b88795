"""The procedural world: one or two moving coloured shapes before a landscape, and the small English that describes it."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
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
BACKGROUNDS = ("black", "navy", "gray", "forest")

CHOICES: dict[str, tuple[str, ...]] = {
    "colour": tuple(COLOURS),
    "shape": SHAPES,
    "direction": tuple(DIRECTIONS),
    "speed": tuple(SPEEDS),
    "background": BACKGROUNDS,
}
"""The attributes of a scene, each with its values in the order of their numbers."""

COLUMNS = (*CHOICES, "colour", "shape", "direction", "speed")
"""The attribute of each column of a scene's tensors: the first object, the background, the second object; -1: no such object."""

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
TIMES = {"night": "black", "dusk": "navy", "fog": "gray", "morning": "forest"}
"""The same backgrounds by another name: `at night`, `at dusk`, `in fog`, `in the morning`."""

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


_FIRST_WORDS = _meanings()
MEANINGS = _FIRST_WORDS | {word: ("background", BACKGROUNDS.index(value)) for word, value in TIMES.items()}
VOCABULARY: tuple[str, ...] = (*_FIRST_WORDS, *VERBS, *FILLERS, *TIMES)
"""Every word of the language. The position of a word is its number in the text encoder: append, never reorder."""

MOST_WORDS = 24
"""Words of the longest prompt."""

# {adverb} may be empty.
_TEMPLATES = (
    "{name} {verb} {direction} {adverb}",
    "{name} {adverb} {verb} {direction}",
    "{name} is {adverb} {verb} {direction}",
)
_PLACES = ("on a {0} background", "over a {0} background", "on a {0} backdrop", "on {0}")
_MOMENTS = {"night": "at night", "dusk": "at dusk", "fog": "in fog", "morning": "in the morning"}


NOTHING = (-1, -1, -1, -1)


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Thing:
    """One moving shape. Each field is the position of its value in `CHOICES[field]`.

    Raises:
        ConfigError: a number has no value.
    """

    colour: int
    shape: int
    direction: int
    speed: int

    def __post_init__(self) -> None:
        for attribute, number in zip(CHOICES, self.numbers, strict=False):
            _check_number(attribute, number)

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """The four numbers in the order of `CHOICES`."""
        return self.colour, self.shape, self.direction, self.speed


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """One or two moving shapes of different colours, in the order of their colours, before a background.

    Raises:
        ConfigError: a number has no value, or the objects are not one or two of different colours, in order.
    """

    things: tuple[Thing, ...]
    background: int

    def __post_init__(self) -> None:
        _check_number("background", self.background)
        colours = [thing.colour for thing in self.things]
        if len(colours) not in (1, 2) or colours != sorted(set(colours)):
            raise ConfigError(f"scene has objects of colours {colours}; allowed: one, or two of ascending numbers")

    @property
    def attributes(self) -> tuple[int, ...]:
        """The nine numbers in the order of `COLUMNS`, -1 where there is no second object: a row of the tensors in `render`."""
        first, *second = (thing.numbers for thing in self.things)
        return (*first, self.background, *(second[0] if second else NOTHING))

    @classmethod
    def of(cls, attributes: Sequence[int]) -> Scene:
        """Return the scene of a row of nine numbers."""
        rows = [row for row in (tuple(attributes[:4]), tuple(attributes[5:])) if row[0] >= 0]
        things = sorted(Thing(**dict(zip(CHOICES, row, strict=False))) for row in rows)
        return cls(things=tuple(things), background=attributes[4])

    def prompt(self, rng: random.Random) -> str:
        """Describe the scene in a random sentence that `parse` reads back; defaults are left out half of the time."""
        sentence = self._sentence(rng)
        while len(sentence.split()) > MOST_WORDS:
            sentence = self._sentence(rng)
        return sentence

    def _sentence(self, rng: random.Random) -> str:
        things = rng.sample(self.things, len(self.things))
        parts = [describe(thing, rng) for thing in things]
        if len(things) == 2 and things[0].numbers[2:] == things[1].numbers[2:] and rng.random() < 0.5:
            parts[0] = name(things[0])  # the second says where both go
        sides = [" and ".join(parts), describe_background(self.background, rng)]
        if rng.random() < 0.25:
            sides.reverse()
        return " ".join(" ".join(sides).split())


def _check_number(attribute: str, number: int) -> None:
    if not 0 <= number < len(CHOICES[attribute]):
        raise ConfigError(f"scene {attribute} {number} does not exist; allowed: 0 .. {len(CHOICES[attribute]) - 1}")


def name(thing: Thing) -> str:
    """Return colour and shape, such as `a red circle`."""
    return f"{_article(CHOICES['colour'][thing.colour])} {CHOICES['colour'][thing.colour]} {SHAPES[thing.shape]}"


def describe(thing: Thing, rng: random.Random) -> str:
    """Describe one object in random words; slow speed is left out half of the time."""
    direction, speed = CHOICES["direction"][thing.direction], CHOICES["speed"][thing.speed]
    headings = SYNONYMS[direction]
    if direction in ("left", "right"):
        headings += (f"to the {direction}",)
    said = speed != DEFAULTS["speed"] or rng.random() < 0.5
    adverbs = {"slow": ("slowly", "at slow speed"), "fast": ("quickly", "fast", "at fast speed")}[speed]
    return rng.choice(_TEMPLATES).format(
        name=name(thing),
        verb=rng.choice(VERBS),
        direction=rng.choice(headings),
        adverb=rng.choice(adverbs) if said else "",
    )


def describe_background(number: int, rng: random.Random) -> str:
    """Describe the background in random words; the default is left out half of the time."""
    value = BACKGROUNDS[number]
    if value == DEFAULTS["background"] and rng.random() < 0.5:
        return ""
    word = rng.choice((*SYNONYMS.get(value, (value,)), *(each for each, other in TIMES.items() if other == value)))
    return _MOMENTS[word] if word in _MOMENTS else rng.choice(_PLACES).format(word)


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
    """Read a prompt: one object, or two with `and` between them. Within an object, order does not matter; case and punctuation
    never do. Of two objects, one without a direction goes with the other. The speed defaults to slow, the background to black.

    Raises:
        ConfigError: an unknown word, an attribute given twice, no colour, shape or direction, more than two objects, or two of
            one colour; with a prompt that would do.
    """
    parts = _objects(split_words(prompt))
    found: list[dict[str, int]] = [{} for _ in parts]
    background: dict[str, int] = {}
    wrong = f"names {len(parts)} objects; the model draws one or two" if len(parts) > 2 else ""
    for part, values in zip(parts, found, strict=True):
        for word in part:
            if word not in MEANINGS:
                continue
            attribute, number = MEANINGS[word]
            into = background if attribute == "background" else values
            if attribute in into:
                first = CHOICES[attribute][into[attribute]]
                wrong = wrong or f"gives the {attribute} twice ({first!r}, then {word!r}) for one object"
            into.setdefault(attribute, number)
    for values, other in zip(found, reversed(found), strict=True):
        if "direction" not in values and "direction" in other:  # it goes with the other
            values.update({attribute: other[attribute] for attribute in ("direction", "speed") if attribute in other} | values)
    colours = [values.get("colour") for values in found]
    if not wrong and len(colours) == 2 and colours[0] is not None and colours[0] == colours[1]:
        wrong = f"gives both objects the colour {CHOICES['colour'][colours[0]]!r}; give them two"
    missing = [attribute for values in found for attribute in ("colour", "shape", "direction") if attribute not in values]
    if wrong or missing:
        lacking = "; ".join(f"gives no {each}; add one of: {', '.join(CHOICES[each])}" for each in dict.fromkeys(missing))
        raise ConfigError(f"the prompt {prompt!r} {wrong or lacking}; {_example(found[:2])}")
    default = {attribute: CHOICES[attribute].index(value) for attribute, value in DEFAULTS.items()}
    things = sorted(Thing(**{"speed": default["speed"], **values}) for values in found)
    return Scene(things=tuple(things), background=background.get("background", default["background"]))


def _objects(words: Sequence[str]) -> list[list[str]]:
    """Cut a prompt's words into one list for each object: at an `and` where a colour or a shape stands on both sides."""
    parts: list[list[str]] = [[]]
    for number, word in enumerate(words):
        if word == "and" and _names_object(parts[-1]) and _names_object(words[number + 1 :]):
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _names_object(words: Sequence[str]) -> bool:
    return any(MEANINGS.get(word, ("", 0))[0] in ("colour", "shape") for word in words)


def _example(found: Sequence[Mapping[str, int]]) -> str:
    """Return an example prompt with the values found, and for every missing one the first choice that is free."""
    objects, taken = [], set()
    for values in found:
        colours = [values["colour"]] if "colour" in values else []
        number = next(each for each in (*colours, *range(len(COLOURS))) if each not in taken)
        taken.add(number)
        colour, shape, direction = (CHOICES["colour"][number], *(CHOICES[k][values.get(k, 0)] for k in ("shape", "direction")))
        objects.append(f"{_article(colour)} {colour} {shape} moving {direction}")
    return f'for example "{" and ".join(objects)}"'


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def sample_scene(rng: random.Random, *, held_out: bool = False, objects: int = 1) -> Scene:
    """Draw a scene with so many objects, uniform over the seen (default) or over the held-out combinations."""
    pairs = [
        (colour, shape)
        for colour in range(len(COLOURS))
        for shape in range(len(SHAPES))
        if ((colour, shape) in HELD_OUT) == held_out
    ]
    chosen = [rng.choice(pairs)]
    while len(chosen) < objects:
        pair = rng.choice(pairs)
        if pair[0] not in {colour for colour, _ in chosen}:
            chosen.append(pair)
    things = [
        Thing(colour=colour, shape=shape, direction=rng.randrange(len(DIRECTIONS)), speed=rng.randrange(len(SPEEDS)))
        for colour, shape in chosen
    ]
    return Scene(things=tuple(sorted(things)), background=rng.randrange(len(BACKGROUNDS)))
