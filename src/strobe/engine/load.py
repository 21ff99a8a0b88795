"""Loading of models by name or folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch

from strobe.core.errors import ConfigError, ShapeError, WeightsError, nearest
from strobe.core.main_memory import GIB, available_bytes
from strobe.core.shapes import VaeStride
from strobe.engine.config import ModelDefaults
from strobe.engine.decode import VideoVAE
from strobe.engine.family import broken, find, registered
from strobe.engine.prepared import Shelf
from strobe.engine.texts import TextEncoder, random_text, text_encoder
from strobe.engine.weights import Weights, fetched
from strobe.models.checkpoint import check_whole
from strobe.models.hub import RELEASE, TRANSFORMER, fetch, is_address
from strobe.models.lora import Lora, combined
from strobe.models.shapes import config as shapes
from strobe.models.shapes import weights as bundled
from strobe.models.text.cache import PromptCache
from strobe.models.text.umt5 import Umt5Files, check_installed
from strobe.models.vae.taew import RAW_LATENTS, Taew, TaewConfig, load_taew, random_taew
from strobe.models.vae.tiny import TinyVAE
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WanVAEConfig
from strobe.models.vae.wan.weights import find_wan_vae, load_wan_vae, random_wan_vae
from strobe.models.wan.config import SIZES, WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.random_init import random_transformer
from strobe.models.wan.recipes import RECIPES, Recipe, find_recipe, named_recipe
from strobe.models.wan.weights import OpenCheckpoint, open_checkpoint, read_lora
from strobe.models.wan.weights.files import find_files, find_lora

MODELS: Final = ("shapes", *SIZES)
FAMILIES: Final = tuple(recipe.name for recipe in RECIPES.values() if recipe.needs)
"""Names that stand for a size of Wan and its recipe."""
RANDOM: Final = "random weights"
"""Part of the name of every model without weights, and so of every record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A model: everything that turns a prompt into frames.

    Args:
        name: "shapes", a size of Wan or the folder it was read from; says so if weights are random.
        weights_hash: sha256 over names and contents of the weight files, hexadecimal.
        dit, text, vae: the parts, on the CPU. A session copies what it changes.
        defaults: what the model was trained for.
        loras: updates of `dit` that sessions run with, those that belong to the weights first.
        random_weights: frames mean nothing, so quality must not be judged.
        notes: what a caller should be told about the choices that were made, a line each.
        shelf: what is on a device and in use; sessions of this model share it.
    """

    name: str
    weights_hash: str
    dit: CausalWan
    text: TextEncoder
    vae: VideoVAE
    defaults: ModelDefaults
    loras: tuple[Lora, ...] = ()
    random_weights: bool = False
    notes: tuple[str, ...] = ()
    shelf: Shelf = field(default_factory=Shelf, init=False, compare=False, repr=False)

    @property
    def parts(self) -> Parts:
        """Sizes that decide how much memory a stream takes."""
        return Parts(dit=self.dit.config, vae=self.vae, defaults=self.defaults, loras=self.loras)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Sizes of a model's parts, from which its memory follows; nothing needs to be loaded.

    Args:
        dit: sizes of the transformer.
        vae: the autoencoder, on any device, the meta device included.
        defaults: frame size, frame block and stride.
        loras: updates of the transformer.
    """

    dit: WanConfig
    vae: VideoVAE
    defaults: ModelDefaults
    loras: tuple[Lora, ...] = ()


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


WIDE: Final = 48
"""Channels of the latents of Wan2.2 5B."""
TAEW_2_2: Final = TaewConfig(latent_channels=WIDE, patch=2)
"""Sizes of the tiny decoder for them. Source: TAEHV, `taehv.py` (taew2_2: 48 channels, patches of 2)."""


def wan_defaults(config: WanConfig, frame_size: tuple[int, int] | None = None) -> ModelDefaults:
    """Return the settings that causal Wan2.1 was distilled for.

    They are frame blocks of 3 latent frames, four steps, shift 5 and 480x832 at 16 frames a second. Latents of 48 channels are
    those of Wan2.2: 16x in space, frame blocks of 8, 704x1280 at 24 frames a second, and window and sink of LongLive 2.

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
        window=32 if wide else 12,
        sink=8 if wide else 3,
    )
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
    names = ("window", "sink", "positions", "past", "past_weight", "timesteps", "shift")
    return replace(defaults, **{name: getattr(recipe, name) for name in names})


def names() -> tuple[str, ...]:
    """List the names of all models, including those that other packages register."""
    return (*MODELS, *FAMILIES, *(model for plugin in registered() if plugin.found for model in plugin.found.models))


def model_parts(name: str, frame_size: tuple[int, int] | None = None) -> Parts:
    """Return the sizes of "shapes", a size of Wan with its autoencoder or a registered model, without reading or allocating.

    Raises:
        ConfigError: a frame size for "shapes", which has one of its own.
        ShapeError: a frame size that is not a multiple of stride and patch.
    """
    with torch.device("meta"):
        if name in SIZES:
            vae = Taew(TAEW_2_2) if SIZES[name].latent_channels == WIDE else WanVAE(WanVAEConfig())
            return Parts(dit=SIZES[name], vae=vae, defaults=wan_defaults(SIZES[name], frame_size))
        if name in FAMILIES:
            parts = model_parts(RECIPES[name].size, frame_size)
            return replace(parts, defaults=recipe_defaults(RECIPES[name], parts.defaults))
        if name not in MODELS and (family := find(name)) is not None:
            return family.parts(name, frame_size)
        if frame_size is not None:
            raise ConfigError(f"model {name!r} has a frame size of its own; leave the size out")
        return Parts(dit=shapes.WAN, vae=TinyVAE(shapes.VAE), defaults=shapes_defaults())


def load(name: str | Path = "shapes", given: Weights | None = None) -> Model:
    """Load a model.

    Args:
        name: "shapes" (bundled), a size of Wan, a recipe that stands for its size too, such as "krea", a model that another
            package registers (`strobe.engine.family`), or a folder: of weights as `strobe train-shapes` writes them, or a
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
        model = replace(_load(str(place), local), name=source)
    else:
        model = _load(str(name), local)
    return replace(model, name=", ".join((model.name, *sources))) if sources else model


def _load(name: str, given: Weights) -> Model:
    """Load a model whose files are all on the disk."""
    if name in SIZES:
        return _wan(name, SIZES[name], given)
    if name in FAMILIES:
        return _wan(name, SIZES[RECIPES[name].size], given if given.recipe else replace(given, recipe=name))
    family = find(name) if name not in MODELS else None
    if family is not None:
        return family.load(str(name), given)
    if name != "shapes" and not Path(name).is_dir():
        if Path(name).is_file():
            raise ConfigError(f"model {str(name)!r} is a file; give its folder, or --weights with one of: {', '.join(SIZES)}")
        allowed = f"give a folder or one of: {', '.join(names())}"
        raise ConfigError(f"no model or folder {str(name)!r}{nearest(str(name), names())}; {allowed}{broken()}")
    folder = bundled.FOLDER if name == "shapes" else Path(name)
    if name != "shapes" and not (folder / bundled.FILE).is_file():
        if given.path is not None or given.random:
            raise ConfigError(f"the model is the folder {name}; give weights with one of: {', '.join(SIZES)}")
        try:
            find_files(folder)
        except WeightsError as error:
            raise WeightsError(
                f"{folder} holds no {bundled.FILE} of `strobe train-shapes`; as a Wan checkpoint: {error}"
            ) from error
        return _wan(str(name), None, replace(given, path=folder))
    if given != Weights():
        raise ConfigError(
            f"model {str(name)!r} has weights and a size of its own; give those with one of: {', '.join(SIZES)}; other weights "
            "of `strobe train-shapes` are a model themselves: --model with their folder"
        )
    dit, text, vae = bundled.load(folder)
    return Model(name=str(name), weights_hash=_hash(folder), dit=dit, text=text, vae=vae, defaults=shapes_defaults())


def _wan(name: str, config: WanConfig | None, given: Weights) -> Model:
    if given.random and config is not None:
        digest = hashlib.sha256(f"{RANDOM} of {name}".encode()).hexdigest()
        defaults = wan_defaults(config, given.frame_size)
        if given.recipe is not None:
            defaults = recipe_defaults(named_recipe(given.recipe), defaults)
        with torch.device("meta"):
            numbers = sum(parameter.numel() for parameter in CausalWan(config).parameters())
        check_memory(f"{name} with {RANDOM}", numbers * torch.bfloat16.itemsize, torch.bfloat16)
        vae = _random_autoencoder(name, config, given.vae)
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
    found = find_recipe(opened, beside, given.recipe)
    defaults = recipe_defaults(found.recipe, wan_defaults(opened.dit.config, given.frame_size))
    files = (*(() if beside is None else ((beside, 1.0),)), *given.loras)
    check_there(folder, given, [file for file, _ in files])
    if opened.copied_bytes:
        check_memory(f"{opened.source.where}, in eight bits,", opened.copied_bytes, torch.float32)
    autoencoder = _autoencoder(folder, given.vae)
    check_latents(opened, autoencoder)
    check_past(defaults, autoencoder)
    read = [read_lora(file).at(strength) for file, strength in files]
    loras = combined(read[: len(files) - len(given.loras)], read[len(files) - len(given.loras) :])
    for lora in loras:
        lora.check(opened.dit)
    if loras:
        name = f"{name} with {', '.join(map(str, loras))}"
    checkpoint = opened.read()  # last: whatever else is wrong has been told
    return Model(
        name=name,
        weights_hash=_together(
            checkpoint.weights_hash,
            *(lora.weights_hash + (f" at {lora.strength}" if lora.strength != 1 else "") for lora in loras),
        ),
        dit=checkpoint.dit,
        text=text_encoder(folder, given),
        vae=autoencoder,
        defaults=replace(defaults, lora=bool(loras)),
        loras=loras,
        notes=(f"recipe {found.recipe}: {found.why}",),
    )


def _random_autoencoder(name: str, config: WanConfig, asked: str | None) -> VideoVAE:
    """Draw the autoencoder of a size of Wan, or the tiny one.

    Raises:
        ConfigError: the size has no other than the tiny one here.
    """
    if config.latent_channels == WIDE:
        if asked is None:
            raise ConfigError(f"the autoencoder of {name} (48 channels, 4x16x16) is not built; give --vae tiny")
        return random_taew(TAEW_2_2, 0)
    return random_wan_vae(WanVAEConfig(), 0) if asked is None else random_taew(TaewConfig(), 0)


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


def check_latents(opened: OpenCheckpoint, vae: VideoVAE) -> None:
    """Check that a transformer and its autoencoder have the same number of latent channels.

    Raises:
        WeightsError: they do not.
    """
    channels = opened.dit.config.latent_channels
    if channels != vae.latent_channels:
        raise WeightsError(
            f"{opened.source.where} takes latents of {channels} channels, and the autoencoder gives {vae.latent_channels}; give "
            "--vae the autoencoder of this transformer"
        )


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


def _autoencoder(folder: Path, other: str | None) -> VideoVAE:
    if other is None:
        return load_wan_vae(folder)
    path = Path(other)
    return load_taew(path) if any(name in path.name for name in RAW_LATENTS) else load_wan_vae(path)


def _together(weights: str, *loras: str) -> str:
    return hashlib.sha256("".join((weights, *loras)).encode()).hexdigest() if loras else weights


def _hash(folder: Path) -> str:
    path = folder / bundled.FILE  # alone: a training folder also holds checkpoints
    return hashlib.sha256(path.name.encode() + path.read_bytes()).hexdigest()
