"""The record of a family of models, and the families that other packages register; ours are in `strobe.engine.load`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from strobe.core.plugins import FAMILIES, Plugin, plugins
from strobe.engine.model import Model, ModelParts
from strobe.engine.weights import Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A kind of model.

    A package adds one with an entry point of the group `strobe.families`. Its models are `strobe.engine.model.Model`s: a
    transformer derived from `strobe.models.wan.transformer.CausalTransformer`, a text encoder as
    `strobe.engine.texts.TextEncoder` describes, an autoencoder, and defaults for what a configuration leaves open: frame size,
    frame block, schedule, window, sink and positions.

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
    parts: Callable[[str, tuple[int, int] | None], ModelParts]


def registered() -> tuple[Plugin, ...]:
    """Return the families that other packages register; one that is broken, or has a model that another has, says so."""
    found: list[Plugin] = []
    taken: dict[str, Plugin] = {}
    for plugin in plugins(FAMILIES, _fault):
        models = plugin.found.models if plugin.found else ()
        doubled = next((model for model in models if model in taken), None)
        if doubled is not None:
            why = f"it has a model {doubled!r}, as {taken[doubled]} has; uninstall one of the two"
            plugin = replace(plugin, found=None, broken=why)
        else:
            taken |= dict.fromkeys(models, plugin)
        found.append(plugin)
    return tuple(found)


def _fault(found: object) -> str:
    return "" if isinstance(found, Family) else f"it is a {type(found).__name__}, not a strobe.engine.family.Family"


def broken() -> str:
    """Return the sentence about broken families for a model that is not found; empty if all are well."""
    return "".join(f"; family {plugin} is broken: {plugin.broken}" for plugin in registered() if plugin.broken)


def find(name: str | Path) -> Family | None:
    """Return the registered family that has a model of this name, or whose checkpoint a folder holds; None if there is none."""
    families: list[Family] = [plugin.found for plugin in registered() if plugin.found]
    named = next((family for family in families if str(name) in family.models), None)
    if named is not None or not Path(name).is_dir():
        return named
    return next((family for family in families if family.holds(Path(name))), None)
