"""Recipes of streams: files that the live page saves and `strobe generate --replay` reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from strobe.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from strobe.engine.prompts import Switch
    from strobe.engine.session import Session
    from strobe.serve.protocol import RecipeAnswer


def read_recipe(path: Path) -> RecipeAnswer:
    """Read and check the recipe of a stream.

    Raises:
        DataError: no such file, or it is no recipe of this version.
    """
    import msgspec

    from strobe.serve.protocol import VERSION, RecipeAnswer

    try:
        recipe = msgspec.json.decode(path.read_bytes(), type=RecipeAnswer)
    except OSError as error:
        raise DataError(f"cannot read the recipe {path}: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DataError(f"{path} is no recipe: {error}; save one with the button Recipe of strobe serve") from error
    if recipe.v != VERSION:
        raise DataError(f"{path} is a recipe of version {recipe.v}, and this strobe reads version {VERSION}")
    if not recipe.prompts or recipe.prompts[0].frame_block != 0:
        raise DataError(f"{path} has no prompt for frame block 0")
    return recipe


def start_image(recipe: RecipeAnswer) -> bytes:
    """Return the bytes of the picture that the stream began with; empty without one.

    Raises:
        DataError: it is not the one that was used.
    """
    import base64
    import binascii
    import hashlib

    try:
        image = base64.b64decode(recipe.image, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"the start image of the recipe is damaged: {error}") from error
    if image and hashlib.sha256(image).hexdigest() != recipe.image_sha256:
        raise DataError("the start image of the recipe is not the one that was used: its sha256 differs")
    return image


def switches(recipe: RecipeAnswer, blocks: int) -> list[Switch]:
    """Return the prompt switches of the first `blocks` frame blocks."""
    from strobe.engine.prompts import Switch

    return [
        Switch(frame_block=each.frame_block, prompt=each.text, mode=each.mode, over=each.over)
        for each in recipe.prompts[1:]
        if each.frame_block < blocks
    ]


def mismatches(recipe: RecipeAnswer, session: Session) -> Iterator[str]:
    """Yield what differs from the machine and versions that made the stream, whose frames may then differ too.

    Raises:
        ConfigError: the model is another, so that nothing of the stream would come back.
    """
    from strobe.engine.snapshot import device_name, versions

    model = session.model
    if model.weights_hash != recipe.weights:
        raise ConfigError(
            f"the recipe is of {recipe.model} with weights {recipe.weights[:12]}, and these are {model.name} with "
            f"{model.weights_hash[:12]}; give --model and --weights of the stream"
        )
    here = {"device": device_name(session.config.device), **versions()}
    there = {"device": recipe.device, **recipe.versions}
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            yield f"{name}: {there.get(name)} then, {here.get(name)} now"
