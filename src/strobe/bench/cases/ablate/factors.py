"""Factors of an ablation: `window=6,8 syncs=on steps=4,3`, checked against the fields of the engine's configuration."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from strobe.cache.policy import check_window
from strobe.core.errors import ConfigError, unknown_choice
from strobe.engine import presets
from strobe.engine.config import EngineConfig, Knobs, ModelDefaults, filled, replace_knobs

SWITCH: Final[dict[str, bool]] = {"on": True, "off": False}
SYNCS: Final = "syncs"
WORKLOAD: Final = ("batch", "switch_at")
"""Factors that change the clip itself; such a cell is compared with its own base alone."""
_KNOBS: Final[dict[str, Any]] = get_type_hints(Knobs)
_FIELDS: Final[dict[str, Any]] = get_type_hints(EngineConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """One factor with the values to try, each as text, in the order given and once."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Configuration of one side of a cell.

    Args:
        config: configuration of the stream.
        batch: streams in lockstep.
        switch_at: frame block of a prompt switch; None: as the script has them.
        waits: the host waits for the device inside every pass.
    """

    config: EngineConfig
    batch: int = 1
    switch_at: int | None = None
    waits: bool = False


def parse_factors(texts: Sequence[str]) -> tuple[Factor, ...]:
    """Read `NAME=VALUE,VALUE ...`, one text per factor.

    Raises:
        ConfigError: no factor of that name (names the nearest), no value, or a factor twice.
    """
    found: dict[str, Factor] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        values = tuple(dict.fromkeys(value.strip() for value in rest.split(",")))
        if not equals or not name or not all(values):
            raise ConfigError(f"{text!r} is not a factor; write NAME=VALUE,VALUE like window=6,8,12")
        if name in found:
            raise ConfigError(f"factor {name!r} is given twice; list all its values at once: {name}=A,B,C")
        if name not in names():
            raise unknown_choice("factor", name, names())
        found[name] = Factor(name=name, values=values)
    return tuple(found.values())


def names() -> tuple[str, ...]:
    """Return the names of all factors: of the clip, of the host, of the configuration, optimisations."""
    own = (each.name for each in fields(EngineConfig) if each.name not in ("name", "knobs", "timesteps"))
    return ("preset", "steps", *own, SYNCS, *WORKLOAD, *(each.name for each in fields(Knobs)))


def read_value(name: str, text: str, defaults: ModelDefaults) -> object:
    """Parse one value of a factor. `changed` checks that it goes with the others.

    Raises:
        ConfigError: the value is not one that the factor may have; says which it may.
    """
    if name == "preset":
        return presets.preset(text)
    if name == "steps":
        return _timesteps(text, defaults)
    if name == SYNCS:
        return _switch(name, text)
    if name in WORKLOAD:
        return _count(name, text)
    return _value(name, text, (_KNOBS if name in _KNOBS else _FIELDS)[name])


def changed(setup: Setup, changes: Mapping[str, str], defaults: ModelDefaults) -> Setup:
    """Set several factors at once; a preset among them comes first, because it replaces all others.

    Raises:
        ConfigError: a value is not allowed, or not together with the others.
    """
    values: dict[str, Any] = {name: read_value(name, text, defaults) for name, text in changes.items()}
    config: Any = replace(values.pop("preset", setup.config), simulate=setup.config.simulate)
    timesteps = {"timesteps": values.pop("steps")} if "steps" in values else {}
    own: dict[str, Any] = {"waits" if name == SYNCS else name: values.pop(name) for name in (SYNCS, *WORKLOAD) if name in values}
    knobs: dict[str, Any] = {name: values.pop(name) for name in list(values) if name in _KNOBS}
    frames = {name: value for name in ("window", "sink") if (value := values.get(name)) is not None}
    asked = replace(filled(config, defaults), **frames)
    check_window(asked.window, max(0, asked.sink), defaults.frame_block)
    held = replace(config, knobs=replace_knobs(config.knobs, **knobs), **values, **timesteps)
    return replace(setup, config=held, **own)


def value_of(setup: Setup, name: str, defaults: ModelDefaults) -> str:
    """Return the value of a factor as text, in the form that `read_value` accepts."""
    config = setup.config
    special: Mapping[str, Callable[[], object]] = {
        "preset": lambda: config.name,
        "steps": lambda: len(config.timesteps or defaults.timesteps),
        SYNCS: lambda: setup.waits,
        "batch": lambda: setup.batch,
        "switch_at": lambda: "script" if setup.switch_at is None else setup.switch_at,
    }
    if name in special:
        return _text(special[name]())
    if name in _KNOBS:
        return _text(getattr(config.knobs, name))
    own = filled(config, defaults)
    return _text(getattr(own if hasattr(own, name) else config, name))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _timesteps(text: str, defaults: ModelDefaults) -> tuple[float, ...]:
    """Drop timesteps of the model's schedule evenly; the first and, from two on, the last stay."""
    full, count = defaults.timesteps, _count("steps", text)
    if count > len(full):
        raise ConfigError(f"steps={text}: the model's schedule has {len(full)} timesteps; give 1 to {len(full)}")
    gaps = max(1, count - 1)
    return tuple(full[(2 * i * (len(full) - 1) + gaps) // (2 * gaps)] for i in range(count))


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{name}={text}: give a whole number of 1 or more")
    return int(text)


def _switch(name: str, text: str) -> bool:
    if text not in SWITCH:
        raise ConfigError(f"{name}={text}: give {' or '.join(SWITCH)}")
    return SWITCH[text]


def _value(name: str, text: str, hint: Any) -> Any:
    """Convert text to a field's type; the configuration itself checks its range."""
    if hint is bool:
        return _switch(name, text)
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if text == "model" and type(None) in options:
            return None
        return _value(name, text, next(each for each in options if each is not type(None)))
    if origin is Literal:
        if text not in options:
            raise unknown_choice(f"value of {name}", text, options)
        return text
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError as error:
            raise ConfigError(f"{name}={text}: give a {'whole ' if hint is int else ''}number") from error
    if hint is str:
        return text
    raise ConfigError(f"factor {name!r} cannot be written as one word; name a preset that has it instead")
