"""The procedural world: one or two coloured shapes that glide over a floor, and the small English that describes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from strobe.core.errors import ConfigError, nearest

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
BACKGROUNDS: dict[str, Rgb] = {"black": (32, 32, 38), "navy": (16, 28, 100), "gray": (100, 100, 104), "forest": (14, 64, 30)}

CHOICES: dict[str, tuple[str, ...]] = {
    "colour": tuple(COLOURS),
    "shape": SHAPES,
    "direction": tuple(DIRECTIONS),
    "speed": tuple(SPEEDS),
    "background": tuple(BACKGROUNDS),
}
"""The attributes of a scene in the order of its tensors, each with its values in the order of their numbers."""

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
FILLERS = ("a", "an", "the", "on", "over", "to", "is", "are", "in", "with", "and", "at", "speed", "background", "backdrop")


MEANINGS = {
    word: (attribute, number)
    for attribute, values in CHOICES.items()
    for number, value in enumerate(values)
    for word in SYNONYMS.get(value, (value,))
}
VOCABULARY: tuple[str, ...] = (*MEANINGS, *VERBS, *FILLERS)
"""Every word of the language. The position of a word is its number in the text encoder: append, never reorder."""

EVERYWHERE = ("tiled", "tiles", "floor")
"""Words for what every picture shows. A prompt may have them, and the text encoder does not read them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """One moving shape, or two side by side. Each number is the position of its value in `CHOICES[field]`.

    Args:
        colour: of the shape, of the left one if there are two.
        shape: its outline.
        direction: where everything moves.
        speed: how fast.
        background: colour of the floor.
        second: colour and shape of the right one; None: there is one shape.
    """

    colour: int
    shape: int
    direction: int
    speed: int
    background: int
    second: tuple[int, int] | None = None

    @property
    def attributes(self) -> tuple[int, ...]:
        """The numbers in the order of `CHOICES`, then the second shape's two, -1 where there is none: a row of `render`'s
        tensors."""
        return self.colour, self.shape, self.direction, self.speed, self.background, *(self.second or (-1, -1))

    @property
    def words(self) -> tuple[str, ...]:
        """The values by name, e.g. `("red", "circle", "left", "slow", "navy")`; with two shapes, two more."""
        return tuple(CHOICES[attribute][number] for attribute, number in self._said())

    def _said(self) -> Iterator[tuple[str, int]]:
        yield from zip(CHOICES, self.attributes, strict=False)
        yield from zip(CHOICES, self.second or (), strict=False)


def read_words(prompt: str) -> list[str]:
    """Split a prompt into lower-case words of `VOCABULARY`, without punctuation and without those of `EVERYWHERE`.

    Raises:
        ConfigError: words are not in `VOCABULARY`; the message has the nearest to each and a prompt that would do.
    """
    words = [word for word in re.findall(r"[\w'-]+", prompt.lower()) if word not in EVERYWHERE]
    unknown = [word for word in dict.fromkeys(words) if word not in VOCABULARY]
    if unknown:
        known = _by_attribute(word for word in words if word in VOCABULARY)
        raise ConfigError(
            f"unknown word{'s' * (len(unknown) > 1)} {', '.join(repr(word) + nearest(word, VOCABULARY) for word in unknown)} in "
            f"the prompt {prompt!r}; {_example(known)}; docs/shapes.md lists every word of the model"
        )
    return words


def _by_attribute(words: Iterable[str]) -> dict[str, list[str]]:
    """Sort the words that carry an attribute; what there is one of in the scene counts once, however often it is said."""
    found: dict[str, list[str]] = {attribute: [] for attribute in CHOICES}
    for word in words:
        if word in MEANINGS:
            found[MEANINGS[word][0]].append(word)
    for attribute in _single(found):
        found[attribute] = list({MEANINGS[word]: word for word in found[attribute]}.values())
    return found


def _single(found: Mapping[str, list[str]]) -> list[str]:
    """Name the attributes that a scene has one of: each shape has a colour of its own."""
    alone = ["colour"] if len(found["shape"]) == 1 else []
    return [*alone, *(attribute for attribute in CHOICES if attribute not in ("colour", "shape"))]


def parse(prompt: str) -> Scene:
    """Read a prompt of one shape or two. Order, case and punctuation do not matter, but that a shape's colour is the one before
    it among the colours; speed defaults to slow, the background to black.

    Raises:
        ConfigError: an unknown word, two values of one attribute, more than two shapes, a colour too many or too few, or no
            colour, shape or direction; with a prompt that would do.
    """
    found = _by_attribute(read_words(prompt))
    wrong = next(_mistakes(found), "")
    if wrong:
        raise ConfigError(f"the prompt {prompt!r} {wrong}; {_example(found)}")
    numbers = {attribute: [MEANINGS[word][1] for word in words] for attribute, words in found.items()}
    for attribute, value in DEFAULTS.items():
        numbers[attribute] = numbers[attribute] or [CHOICES[attribute].index(value)]
    seconds = [numbers[attribute][1:] for attribute in ("colour", "shape")]
    second = (seconds[0][0], seconds[1][0]) if seconds[0] else None
    return Scene(**{attribute: values[0] for attribute, values in numbers.items()}, second=second)


def _mistakes(found: Mapping[str, list[str]]) -> Iterator[str]:
    colours, shapes = found["colour"], found["shape"]
    for attribute in _single(found):
        if len(found[attribute]) > 1:
            first, second = found[attribute][:2]
            yield f"gives two {attribute}s, {first!r} and {second!r}, where one is allowed"
    if len(shapes) > 2:
        yield f"names {len(shapes)} shapes ({', '.join(shapes)}); the model draws one or two"
    missing = [attribute for attribute, words in found.items() if not words and attribute not in DEFAULTS]
    if missing:
        yield "; ".join(f"gives no {attribute}; add one of: {', '.join(CHOICES[attribute])}" for attribute in missing)
    if len(colours) != len(shapes):
        yield f"names {len(shapes)} shapes ({', '.join(shapes)}) and {len(colours)} colours; give each shape one"


def _example(found: Mapping[str, list[str]]) -> str:
    """Return an example prompt with the words found, and for every missing one its first choice."""
    colour, shape, direction = ((found[name] or CHOICES[name])[0] for name in ("colour", "shape", "direction"))
    shapes = f"{article(colour)} {colour} {shape}"
    if len(found["shape"]) > 1:
        other, form = (found["colour"][1:] or CHOICES["colour"][2:])[0], found["shape"][1]
        shapes += f" and {article(other)} {other} {form}"
    return f'for example "{shapes} moving {direction}"'


def article(word: str) -> str:
    """Return the article of a word."""
    return "an" if word[0] in "aeiou" else "a"
