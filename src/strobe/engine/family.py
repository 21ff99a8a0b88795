"""Families of models: ours, and those that other packages register."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Final

from strobe.core.errors import ConfigError

if TYPE_CHECKING:
    from strobe.engine.load import Model, Parts
    from strobe.engine.weights import Weights

GROUP: Final = "strobe.families"
"""Entry points of this group name a `Family` each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A kind of model.

    A package adds one with an entry point of the group `strobe.families`. Its models are `strobe.engine.load.Model`s: a
    transformer with the methods of `strobe.models.wan.dit.CausalWan`, a text encoder as `strobe.engine.texts.TextEncoder`
    describes, an autoencoder, and defaults for what a configuration leaves open: frame size, frame block, schedule, window,
    sink and positions.

    Args:
        name: shown in errors.
        models: names of its models, as `--model` takes them.
        holds: whether a folder holds one of its checkpoints, by what lies in it; reads no tensor.
        load: a name of `models`, or a folder that `holds` is true of, and what was asked for, to a model.
        parts: sizes of one of `models` at a frame size (None: its own); nothing is read or allocated.
    """

    name: str
    models: tuple[str, ...]
    holds: Callable[[Path], bool]
    load: Callable[[str, Weights], Model]
    parts: Callable[[str, tuple[int, int] | None], Parts]


def registered() -> tuple[Family, ...]:
    """Families that other installed packages register.

    Raises:
        ConfigError: an entry point cannot be imported or names no `Family`, or two families have a model of the same name; says
            which package.
    """
    found: list[Family] = []
    taken: dict[str, str] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        where = f"family {entry.name!r} ({entry.value}{f' of {entry.dist.name}' if entry.dist else ''})"
        try:
            family = entry.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{where} cannot be imported: {error}; mend or uninstall that package") from error
        if not isinstance(family, Family):
            raise ConfigError(f"{where} is a {type(family).__name__}, not a strobe.engine.family.Family; mend that package")
        for model in family.models:
            if model in taken:
                raise ConfigError(f"{where} has a model {model!r}, as {taken[model]} has; uninstall one of the two")
            taken[model] = where
        found.append(family)
    return tuple(found)


def find(name: str | Path) -> Family | None:
    """The registered family that has a model of this name, or whose checkpoint a folder holds; None if there is none."""
    families = registered()
    named = next((family for family in families if str(name) in family.models), None)
    if named is not None or not Path(name).is_dir():
        return named
    return next((family for family in families if family.holds(Path(name))), None)
