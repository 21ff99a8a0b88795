"""Loading of models by name or folder: the bundled model, and Wan with its settings, files and checks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from strobe.attention.impls import import_ahead
from strobe.core.device import GIB, available_bytes
from strobe.core.errors import ConfigError, ShapeError, WeightsError, nearest
from strobe.core.shapes import VaeStride
from strobe.engine.config import DTYPES, ModelDefaults
from strobe.engine.decode import VideoVAE
from strobe.engine.family import Family, Weights, fetched
from strobe.engine.model import Model, ModelParts
from strobe.engine.prompts import TextEncoder
from strobe.models.checkpoint import check_whole, hashing, on_meta
from strobe.models.hub import RELEASE, TRANSFORMER, fetch, is_address
from strobe.models.lora import combined
from strobe.models.shapes import config as shapes
from strobe.models.shapes import weights as bundled
from strobe.models.shapes.grammar import parse
from strobe.models.text.cache import PromptCache, PromptEncoder
from strobe.models.text.umt5 import Umt5, Umt5Files, check_installed
from strobe.models.vae.taew import RAW_LATENTS, Taew, TaewConfig, load_taew, random_taew
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WAN22, WanVAEConfig
from strobe.models.vae.wan.weights import find_wan_vae, load_wan_vae, random_wan_vae
from strobe.models.wan.config import SIZES, WIDE, WanConfig
from strobe.models.wan.random_init import PromptNoise, empty_transformer, random_transformer
from strobe.models.wan.recipes import RECIPES, Recipe, find_recipe, named_recipe
from strobe.models.wan.weights import open_checkpoint, read_lora
from strobe.models.wan.weights.checkpoint import find_files, find_lora


def text_encoder(folder: Path, given: Weights) -> TextEncoder:
    """Return the umT5 in the folder of a checkpoint; its weights are read when the first new prompt comes.

    Raises:
        WeightsError: it is not there; says what was looked for.
    """
    encoder = Umt5(Umt5Files.find(folder), dtype=DTYPES[given.text_dtype], device=given.text_device)
    return PromptEncoder(encoder, None if given.prompt_cache is None else PromptCache(given.prompt_cache))


TAEW_2_2: Final = TaewConfig(latent_channels=WIDE, patch=2)
"""Sizes of the tiny decoder for them. Source: TAEHV, `taehv.py` (taew2_2: 48 channels, patches of 2)."""


def wan_defaults(config: WanConfig, frame_size: tuple[int, int] | None = None) -> ModelDefaults:
    """Return the settings that causal Wan was distilled for.

    Of Wan2.1 they are frame blocks of 3 latent frames, four steps, shift 5 and 480x832 at 16 frames a second. Latents of 48
    channels are those of Wan2.2: 16x in space, frame blocks of 8, 704x1280 at 24 frames a second, and the recipe of LongLive 2.

    Raises:
        ShapeError: a frame size that is not a multiple of stride and patch; names the nearest.

    Source: Self-Forcing, `configs/self_forcing_dmd.yaml`; Wan2.2, `wan/configs/wan_ti2v_5B.py`; LongLive 2 at NVlabs/LongLive.
    """
    wide = config.latent_channels == WIDE
    own = (704, 1280) if wide else (480, 832)
    defaults = ModelDefaults(
        frame_size=own if frame_size is None else frame_size,
        fps=24 if wide else 16,
        stride=VaeStride(time=4, space=16 if wide else 8),
        frame_block=8 if wide else 3,
        timesteps=(1000.0, 750.0, 500.0, 250.0),
        shift=5.0,
    )
    if wide:
        defaults = recipe_defaults(RECIPES["longlive-2"], defaults)
    height, width = defaults.frame_size
    steps = [patch * defaults.stride.space for patch in config.patch]
    fitting = [max(1, round(side / step)) * step for side, step in zip((height, width), steps, strict=True)]
    if fitting != [height, width]:
        raise ShapeError(
            f"frame size {height}x{width}: height must be a multiple of {steps[0]} and width of {steps[1]}; the nearest is "
            f"{fitting[0]}x{fitting[1]}"
        )
    return defaults


def recipe_defaults(recipe: Recipe, defaults: ModelDefaults) -> ModelDefaults:
    """Replace window and schedule in the defaults of a size of Wan by those of a recipe."""
    names = ("window", "sink", "positions", "past", "past_weight", "timesteps", "shift", "sampler")
    return replace(defaults, **{name: getattr(recipe, name) for name in names})


def check_there(folder: Path, given: Weights, loras: Sequence[Path]) -> None:
    """Check that text encoder, autoencoder and LoRAs of a Wan model are present and whole; no tensor is read.

    Args:
        folder: of text encoder and autoencoder.
        given: what was asked for.
        loras: its LoRA files.

    Raises:
        WeightsError: a file of text encoder, autoencoder or LoRA is missing or half.
        ImplUnavailableError: the text encoder's package is not installed, and no kept embedding could stand for it.
    """
    for file in (*loras, find_wan_vae(folder if given.vae is None else Path(given.vae)), *Umt5Files.find(folder).weights):
        check_whole(file)
    if given.prompt_cache is None or PromptCache(given.prompt_cache).is_empty():
        check_installed()


def check_past(defaults: ModelDefaults, vae: VideoVAE) -> None:
    """Check that an autoencoder can make the past of a model.

    Raises:
        ConfigError: frames are to be encoded again, and it only decodes.
    """
    if defaults.past == "recomputed" and isinstance(vae, Taew):
        raise ConfigError(
            "the past of this model begins with a frame that is encoded again, and a tiny autoencoder only decodes; leave --vae "
            "out, or take another recipe, such as --recipe causal-wan"
        )


def check_memory(where: str, num_bytes: int, dtype: torch.dtype) -> None:
    """Check that a transformer that is assembled in main memory fits there.

    Raises:
        WeightsError: it does not.
    """
    free = available_bytes()
    if free is not None and num_bytes > free:
        raise WeightsError(
            f"{where} is put together in main memory in {str(dtype).removeprefix('torch.')}, which takes {num_bytes / GIB:.1f} "
            f"GiB, and {free / GIB:.1f} GiB are available; free memory, or take a smaller model"
        )


def autoencoder(folder: Path, other: str | None) -> VideoVAE:
    """Read the autoencoder in the folder of a checkpoint, or another one from its file."""
    if other is None:
        return load_wan_vae(folder)
    path = Path(other)
    return load_taew(path) if any(name in path.name for name in RAW_LATENTS) else load_wan_vae(path)


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
        wide = config.latent_channels == WIDE
        vae: VideoVAE = random_wan_vae(WAN22 if wide else WanVAEConfig(), 0)
        if given.vae is not None:
            vae = random_taew(TAEW_2_2 if wide else TaewConfig(), 0)
        check_past(defaults, vae)
        dit, name = random_transformer(config), f"{name}, {'tiny VAE, ' if given.vae else ''}{RANDOM}"
        return Model(
            name=name, hashed=lambda: digest, dit=dit, text=PromptNoise(config), vae=vae, defaults=defaults, random_weights=True
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
    channels = opened.dit.config.latent_channels
    if channels != vae.latent_channels:
        raise WeightsError(
            f"{opened.source.where} takes latents of {channels} channels, and the autoencoder gives {vae.latent_channels}; give "
            "--vae the autoencoder of this transformer"
        )
    check_past(defaults, vae)
    read = [read_lora(file).at(strength) for file, strength in files]
    loras = combined(read[: len(files) - len(given.loras)], read[len(files) - len(given.loras) :])
    for lora in loras:
        lora.check(opened.dit)
    if loras:
        name = f"{name} with {', '.join(map(str, loras))}"
    import_ahead()
    added = [lora.weights_hash + (f" at {lora.strength}" if lora.strength != 1 else "") for lora in loras]
    hashed = hashing(opened.source.files)
    dit = opened.read()  # last: whatever else is wrong has been told
    return Model(
        name=name,
        hashed=lambda: hashlib.sha256("".join((hashed(), *added)).encode()).hexdigest() if added else hashed(),
        dit=dit,
        text=text_encoder(folder, given),
        vae=vae,
        defaults=replace(defaults, lora=bool(loras)),
        loras=loras,
        notes=(f"recipe {recipe}: {why}", *(f"LoRA {lora.account}" for lora in loras)),
    )


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
    with on_meta():
        vae = WanVAE(WAN22 if config.latent_channels == WIDE else WanVAEConfig())
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
    file = folder / bundled.FILE  # alone: a training folder also holds checkpoints
    digest = hashlib.sha256(file.name.encode() + file.read_bytes()).hexdigest()
    return Model(name=name, hashed=lambda: digest, dit=dit, text=text, vae=vae, defaults=shapes_defaults())


def _shapes_parts(name: str, frame_size: tuple[int, int] | None) -> ModelParts:
    if frame_size is not None:
        raise ConfigError(f"model {name!r} has a frame size of its own; leave the size out")
    with on_meta():
        dit, _, vae = bundled.build()
    return ModelParts(dit=dit, vae=vae, defaults=shapes_defaults())


SHAPES: Final = Family(models=("shapes",), load=_shapes, parts=_shapes_parts, reads=parse)
WAN: Final = Family(models=(*SIZES, *SHORT), load=_named_wan, parts=_wan_parts)
OURS: Final = (SHAPES, WAN)


def names() -> tuple[str, ...]:
    """List the names of all models."""
    return tuple(model for family in OURS for model in family.models)


def family_of(name: str) -> Family:
    """Return the family of a model's name or folder.

    Raises:
        ConfigError: there is none of that name; names the nearest.
    """
    family = next((each for each in OURS if name in each.models), None)
    if family is not None:
        return family
    if Path(name).is_dir():
        return SHAPES if (Path(name) / bundled.FILE).is_file() else WAN
    if Path(name).is_file():
        raise ConfigError(f"model {name!r} is a file; give its folder, or --weights with one of: {', '.join(SIZES)}")
    raise ConfigError(f"no model or folder {name!r}{nearest(name, names())}; give a folder or one of: {', '.join(names())}")


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
        name: "shapes" (bundled), a size of Wan, a recipe that stands for its size too, such as "krea", or a folder: with a
            `shapes.safetensors`, or a checkpoint of Wan. A folder may be on the hub, `hf:owner/name`; the model's name then
            says which commit.
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
