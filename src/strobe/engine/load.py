"""Loading of models by name or folder."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from strobe.attention.impls import import_ahead
from strobe.core.errors import ConfigError, WeightsError, nearest
from strobe.engine.config import ModelDefaults
from strobe.engine.family import Family, broken, find, registered
from strobe.engine.model import Model, ModelParts
from strobe.engine.texts import random_text, text_encoder
from strobe.engine.wan_family import (
    autoencoder,
    check_latents,
    check_memory,
    check_past,
    check_there,
    empty_autoencoder,
    random_autoencoder,
    recipe_defaults,
    wan_defaults,
)
from strobe.engine.weights import Weights, fetched
from strobe.models.hub import RELEASE, TRANSFORMER, fetch, is_address
from strobe.models.lora import combined
from strobe.models.shapes import config as shapes
from strobe.models.shapes import weights as bundled
from strobe.models.wan.config import SIZES, WanConfig
from strobe.models.wan.random_init import empty_transformer, random_transformer
from strobe.models.wan.recipes import RECIPES, find_recipe, named_recipe
from strobe.models.wan.weights import open_checkpoint, read_lora
from strobe.models.wan.weights.files import find_files, find_lora

SHORT: Final = tuple(recipe.name for recipe in RECIPES.values() if recipe.needs)
"""Names that stand for a size of Wan and its recipe."""
RANDOM: Final = "random weights"
"""Part of the name of every model without weights, and so of every record."""


def shapes_defaults() -> ModelDefaults:
    """Return the settings that the bundled model was trained for, without reading its weights."""
    return ModelDefaults(
        frame_size=shapes.FRAME_SIZE,
        fps=shapes.FPS,
        stride=shapes.VAE.stride,
        frame_block=shapes.FRAME_BLOCK,
        timesteps=shapes.TIMESTEPS,
        shift=shapes.SHIFT,
    )


def _wan(name: str, config: WanConfig | None, given: Weights) -> Model:
    if given.random and config is not None:
        digest = hashlib.sha256(f"{RANDOM} of {name}".encode()).hexdigest()
        defaults = wan_defaults(config, given.frame_size)
        if given.recipe is not None:
            defaults = recipe_defaults(named_recipe(given.recipe), defaults)
        numbers = sum(parameter.numel() for parameter in empty_transformer(config).parameters())
        check_memory(f"{name} with {RANDOM}", numbers * torch.bfloat16.itemsize, torch.bfloat16)
        vae = random_autoencoder(config, given.vae)
        check_past(defaults, vae)
        dit, name = random_transformer(config), f"{name}, {'tiny VAE, ' if given.vae else ''}{RANDOM}"
        return Model(
            name=name,
            weights_hash=digest,
            dit=dit,
            text=random_text(config, given),
            vae=vae,
            defaults=defaults,
            random_weights=True,
        )
    if given.path is None:
        raise ConfigError(f"{name} comes without weights: give --weights with their folder, or --random-weights to measure speed")
    if config is not None:
        wan_defaults(config, given.frame_size)  # a wrong size is told before gigabytes are read
    folder = given.release or (given.path if given.path.is_dir() else given.path.parent)
    opened = open_checkpoint(given.path, config)
    beside = find_lora(given.path)
    recipe, why = find_recipe(opened, beside, given.recipe)
    defaults = recipe_defaults(recipe, wan_defaults(opened.dit.config, given.frame_size))
    files = (*(() if beside is None else ((beside, 1.0),)), *given.loras)
    check_there(folder, given, [file for file, _ in files])
    if opened.copied_bytes:
        check_memory(f"{opened.source.where}, in eight bits,", opened.copied_bytes, torch.float32)
    vae = autoencoder(folder, given.vae)
    check_latents(opened, vae)
    check_past(defaults, vae)
    read = [read_lora(file).at(strength) for file, strength in files]
    loras = combined(read[: len(files) - len(given.loras)], read[len(files) - len(given.loras) :])
    for lora in loras:
        lora.check(opened.dit)
    if loras:
        name = f"{name} with {', '.join(map(str, loras))}"
    import_ahead()
    checkpoint = opened.read()  # last: whatever else is wrong has been told
    return Model(
        name=name,
        weights_hash=_together(
            checkpoint.weights_hash,
            *(lora.weights_hash + (f" at {lora.strength}" if lora.strength != 1 else "") for lora in loras),
        ),
        dit=checkpoint.dit,
        text=text_encoder(folder, given),
        vae=vae,
        defaults=replace(defaults, lora=bool(loras)),
        loras=loras,
        notes=(f"recipe {recipe}: {why}", *(f"LoRA {lora.account}" for lora in loras)),
    )


def _together(weights: str, *loras: str) -> str:
    return hashlib.sha256("".join((weights, *loras)).encode()).hexdigest() if loras else weights


def _hash(folder: Path) -> str:
    path = folder / bundled.FILE  # alone: a training folder also holds checkpoints
    return hashlib.sha256(path.name.encode() + path.read_bytes()).hexdigest()


def _named_wan(name: str, given: Weights) -> Model:
    """Load a size of Wan, a recipe that stands for one, or the folder of a checkpoint."""
    if name in SIZES:
        return _wan(name, SIZES[name], given)
    if name in SHORT:
        return _wan(name, SIZES[RECIPES[name].size], given if given.recipe else replace(given, recipe=name))
    folder = Path(name)
    if given.path is not None or given.random:
        raise ConfigError(f"the model is the folder {name}; give weights with one of: {', '.join(SIZES)}")
    try:
        find_files(folder)
    except WeightsError as error:
        raise WeightsError(f"{folder} holds no {bundled.FILE} of a bundled model; as a Wan checkpoint: {error}") from error
    return _wan(name, None, replace(given, path=folder))


def _wan_parts(name: str, frame_size: tuple[int, int] | None) -> ModelParts:
    recipe = RECIPES.get(name)
    config = SIZES[name if recipe is None else recipe.size]
    defaults = wan_defaults(config, frame_size)
    with torch.device("meta"):
        vae = empty_autoencoder(config)
    return ModelParts(
        dit=empty_transformer(config), vae=vae, defaults=defaults if recipe is None else recipe_defaults(recipe, defaults)
    )


def _shapes(name: str, given: Weights) -> Model:
    """Load the bundled model, or a folder with weights trained like it."""
    if given != Weights():
        raise ConfigError(
            f"model {str(name)!r} has weights and a size of its own; give those with one of: {', '.join(SIZES)}; other weights "
            "of a bundled model are a model themselves: --model with their folder"
        )
    folder = bundled.FOLDER if name == "shapes" else Path(name)
    dit, text, vae = bundled.load(folder)
    return Model(name=name, weights_hash=_hash(folder), dit=dit, text=text, vae=vae, defaults=shapes_defaults())


def _shapes_parts(name: str, frame_size: tuple[int, int] | None) -> ModelParts:
    if frame_size is not None:
        raise ConfigError(f"model {name!r} has a frame size of its own; leave the size out")
    with torch.device("meta"):
        dit, _, vae = bundled.build()
    return ModelParts(dit=dit, vae=vae, defaults=shapes_defaults())


SHAPES: Final = Family(
    name="shapes",
    models=("shapes",),
    holds=lambda folder: (folder / bundled.FILE).is_file(),
    load=_shapes,
    parts=_shapes_parts,
)
WAN: Final = Family(
    name="wan",
    models=(*SIZES, *SHORT),
    holds=lambda folder: not SHAPES.holds(folder),
    load=_named_wan,
    parts=_wan_parts,
)
OURS: Final = (SHAPES, WAN)
"""The families of this package. A name of theirs is never another package's; a folder is theirs if no other package holds it."""


def names() -> tuple[str, ...]:
    """List the names of all models, including those that other packages register."""
    families = (*OURS, *(plugin.found for plugin in registered() if plugin.found))
    return tuple(model for family in families for model in family.models)


def family_of(name: str) -> Family:
    """Return the family of a model's name or folder.

    Raises:
        ConfigError: there is none of that name; names the nearest.
    """
    family = next((each for each in OURS if name in each.models), None) or find(name)
    if family is not None:
        return family
    if Path(name).is_dir():
        return next(each for each in OURS if each.holds(Path(name)))
    if Path(name).is_file():
        raise ConfigError(f"model {name!r} is a file; give its folder, or --weights with one of: {', '.join(SIZES)}")
    allowed = f"give a folder or one of: {', '.join(names())}"
    raise ConfigError(f"no model or folder {name!r}{nearest(name, names())}; {allowed}{broken()}")


def model_parts(name: str, frame_size: tuple[int, int] | None = None) -> ModelParts:
    """Return the sizes of a model of `names`, without reading or allocating.

    Raises:
        ConfigError: no such model, or a frame size for "shapes", which has one of its own.
        ShapeError: a frame size that is not a multiple of stride and patch.
    """
    return family_of(name).parts(name, frame_size)


def load(name: str | Path = "shapes", given: Weights | None = None) -> Model:
    """Load a model.

    Args:
        name: "shapes" (bundled), a size of Wan, a recipe that stands for its size too, such as "krea", a model that another
            package registers (`strobe.engine.family`), or a folder: with a `shapes.safetensors`, or a
            checkpoint of Wan or of a registered family. A folder may be on the hub, `hf:owner/name`; the model's name then says
            which commit.
        given: weights of a Wan model; see docs/wan.md.

    Raises:
        ConfigError: no model and no folder of that name, or weights where none belong or none where some do.
        WeightsError: a weight file is missing, damaged or of another model, or cannot be fetched.
    """
    local, sources = fetched(given or Weights())
    if is_address(name):
        place, source = fetch(str(name), (*TRANSFORMER, *RELEASE))
        model = replace(family_of(str(place)).load(str(place), local), name=source)
    else:
        model = family_of(str(name)).load(str(name), local)
    return replace(model, name=", ".join((model.name, *sources))) if sources else model
