"""Models by name or folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor

from strobe.core.errors import ConfigError, ShapeError, WeightsError, nearest
from strobe.core.main_memory import GIB, available_bytes
from strobe.core.shapes import VaeStride
from strobe.engine.config import ModelDefaults
from strobe.engine.decode import VideoVAE
from strobe.models.checkpoint import check_whole
from strobe.models.lora import Lora
from strobe.models.shapes import config as shapes
from strobe.models.shapes import weights as bundled
from strobe.models.text.cache import PromptCache, PromptEncoder
from strobe.models.text.umt5 import Umt5, Umt5Files, check_installed
from strobe.models.vae.taew import RAW_LATENTS, TaewConfig, load_taew, random_taew
from strobe.models.vae.tiny import TinyVAE
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WanVAEConfig
from strobe.models.vae.wan.weights import find_wan_vae, load_wan_vae, random_wan_vae
from strobe.models.wan.config import SIZES, WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.stand_in import PromptNoise, random_transformer
from strobe.models.wan.weights import open_checkpoint, read_lora
from strobe.models.wan.weights.files import find_files, find_lora

MODELS: Final = ("shapes", *SIZES)
RANDOM: Final = "random weights"
"""Part of the name of every model without weights, and so of every record."""
TINY: Final = "tiny"
"""Names the tiny autoencoder where weights are random."""


class TextEncoder(Protocol):
    """Prompts to what cross-attention attends to."""

    def check(self, prompts: Sequence[str]) -> None:
        """Check prompts before a stream depends on them.

        Raises:
            ConfigError: a prompt that it cannot encode.
        """
        ...

    def encode(self, prompts: Sequence[str]) -> Tensor:
        """Prompts to text `[B, L, text_dim]`; padding rows are zeros."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """Everything that turns a prompt into frames.

    Args:
        name: "shapes", a size of Wan or the folder it was read from; says so if weights are random.
        weights_hash: sha256 over names and contents of the weight files, hexadecimal.
        dit, text, vae: the parts, on the CPU. A session copies what it changes.
        defaults: what the model was trained for.
        lora: an update of `dit` that sessions run with.
        random_weights: frames mean nothing, so quality must not be judged.
    """

    name: str
    weights_hash: str
    dit: CausalWan
    text: TextEncoder
    vae: VideoVAE
    defaults: ModelDefaults
    lora: Lora | None = None
    random_weights: bool = False

    @property
    def parts(self) -> Parts:
        """What decides how much memory a stream takes."""
        return Parts(dit=self.dit.config, vae=self.vae, defaults=self.defaults, lora=self.lora)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Sizes of what runs; nothing of it needs to be loaded.

    Args:
        dit: sizes of the transformer.
        vae: the autoencoder, on any device, the meta device included.
        defaults: frame size, frame block and stride.
        lora: an update of the transformer.
    """

    dit: WanConfig
    vae: VideoVAE
    defaults: ModelDefaults
    lora: Lora | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Where the weights of a Wan model are.

    Args:
        path: checkpoint file or folder; None: there are none.
        lora: a LoRA file; None: the one beside a base in the folder `path`, if there is one.
        random: weights are drawn instead.
        vae: file of another autoencoder: taew2_1 or lighttaew2_1, by name, or a Wan VAE; with `random` "tiny". None: that of
            `release`.
        release: folder of Wan2.1 as released, for umT5 and VAE; None: the folder `path` has them too.
        prompt_cache: folder that keeps the embeddings of prompts; None: each session encodes its own.
        frame_size: height and width in pixels; None: the model's own.

    Raises:
        ConfigError: weights that are given and drawn.
    """

    path: Path | None = None
    lora: Path | None = None
    random: bool = False
    vae: str | None = None
    release: Path | None = None
    prompt_cache: Path | None = None
    frame_size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.random and (self.path is not None or self.lora is not None):
            raise ConfigError("give weights or ask for random ones, not both")
        if self.random and self.vae not in (None, TINY):
            raise ConfigError(f"with random weights the autoencoder is Wan's or {TINY!r}; got {self.vae!r}")


def shapes_defaults() -> ModelDefaults:
    """What the bundled model was trained for, without reading its weights."""
    return ModelDefaults(
        frame_size=shapes.FRAME_SIZE,
        fps=shapes.FPS,
        stride=shapes.VAE.stride,
        frame_block=shapes.FRAME_BLOCK,
        timesteps=shapes.TIMESTEPS,
        shift=shapes.SHIFT,
    )


def wan_defaults(config: WanConfig, frame_size: tuple[int, int] | None = None) -> ModelDefaults:
    """What causal Wan2.1 was distilled for: frame blocks of 3 latent frames, four steps, shift 5, 480x832 at 16 frames a second.

    Raises:
        ShapeError: a frame size that is not a multiple of stride and patch; names the nearest.

    Source: Self-Forcing, `configs/self_forcing_dmd.yaml`.
    """
    defaults = ModelDefaults(
        frame_size=(480, 832) if frame_size is None else frame_size,
        fps=16,
        stride=VaeStride(time=4, space=8),
        frame_block=3,
        timesteps=(1000.0, 750.0, 500.0, 250.0),
        shift=5.0,
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


def model_parts(name: str, frame_size: tuple[int, int] | None = None) -> Parts:
    """Sizes of "shapes" or of a size of Wan with its own autoencoder; nothing is read or allocated.

    Raises:
        ConfigError: a frame size for "shapes", which has one of its own.
        ShapeError: a frame size that is not a multiple of stride and patch.
    """
    with torch.device("meta"):
        if name in SIZES:
            return Parts(dit=SIZES[name], vae=WanVAE(WanVAEConfig()), defaults=wan_defaults(SIZES[name], frame_size))
        if frame_size is not None:
            raise ConfigError(f"model {name!r} has a frame size of its own; leave the size out")
        return Parts(dit=shapes.WAN, vae=TinyVAE(shapes.VAE), defaults=shapes_defaults())


def load(name: str | Path = "shapes", given: Weights | None = None) -> Model:
    """Load a model.

    Args:
        name: "shapes" (bundled), "wan-1.3b", "wan-14b", or a folder: of weights as `strobe train-shapes` writes them, or a Wan
            checkpoint.
        given: weights of a Wan model; see docs/wan.md.

    Raises:
        ConfigError: no model and no folder of that name, or weights where none belong or none where some do.
        WeightsError: a weight file is missing, damaged or of another model.
    """
    given = given or Weights()
    if name in SIZES:
        return _wan(str(name), SIZES[str(name)], given)
    if name != "shapes" and not Path(name).is_dir():
        if Path(name).is_file():
            raise ConfigError(f"model {str(name)!r} is a file; give its folder, or --weights with one of: {', '.join(SIZES)}")
        allowed = f"give a folder or one of: {', '.join(MODELS)}"
        raise ConfigError(f"no model or folder {str(name)!r}{nearest(str(name), MODELS)}; {allowed}")
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
        check_memory(f"{name} with {RANDOM}", config, torch.bfloat16)
        vae = random_wan_vae(WanVAEConfig(), 0) if given.vae is None else random_taew(TaewConfig(), 0)
        dit, name = random_transformer(config), f"{name}, {'tiny VAE, ' if given.vae else ''}{RANDOM}"
        return Model(
            name=name, weights_hash=digest, dit=dit, text=PromptNoise(config), vae=vae, defaults=defaults, random_weights=True
        )
    if given.path is None:
        raise ConfigError(f"{name} comes without weights: give --weights with their folder, or --random-weights to measure speed")
    if config is not None:
        wan_defaults(config, given.frame_size)  # a wrong size is told before gigabytes are read
    folder = given.release or (given.path if given.path.is_dir() else given.path.parent)
    opened = open_checkpoint(given.path, config)
    defaults = wan_defaults(opened.dit.config, given.frame_size)
    beside = find_lora(given.path) if given.lora is None else given.lora
    check_there(folder, given, beside)
    check_memory(opened.source.where, opened.dit.config, torch.float32)
    autoencoder = _autoencoder(folder, given.vae)
    lora = None if beside is None else read_lora(beside)
    if lora is not None:
        lora.check(opened.dit)
        name = f"{name} with {lora.name}"
    checkpoint = opened.read()  # last: whatever else is wrong has been told
    return Model(
        name=name,
        weights_hash=checkpoint.weights_hash if lora is None else _together(checkpoint.weights_hash, lora.weights_hash),
        dit=checkpoint.dit,
        text=text_encoder(folder, given.prompt_cache),
        vae=autoencoder,
        defaults=replace(defaults, lora=lora is not None),
        lora=lora,
    )


def check_there(folder: Path, given: Weights, lora: Path | None) -> None:
    """Refuse what a Wan model needs beside its transformer and is not there or not whole; no tensor is read.

    Args:
        folder: of text encoder and autoencoder.
        given: what was asked for.
        lora: its LoRA file.

    Raises:
        WeightsError: a file of text encoder, autoencoder or LoRA is missing or half.
        ImplUnavailableError: the text encoder's package is not installed, and no kept embedding could stand for it.
    """
    named = [] if lora is None else [lora]
    for file in (*named, find_wan_vae(folder if given.vae is None else Path(given.vae)), *Umt5Files.find(folder).weights):
        check_whole(file)
    if given.prompt_cache is None or PromptCache(given.prompt_cache).is_empty():
        check_installed()


def check_memory(where: str, config: WanConfig, dtype: torch.dtype) -> None:
    """Check that a transformer fits the main memory, where it is put together.

    Raises:
        WeightsError: it does not.
    """
    with torch.device("meta"):
        num_bytes = sum(parameter.numel() for parameter in CausalWan(config).parameters()) * dtype.itemsize
    free = available_bytes()
    if free is not None and num_bytes > free:
        raise WeightsError(
            f"{where} is put together in main memory in {str(dtype).removeprefix('torch.')}, which takes {num_bytes / GIB:.1f} "
            f"GiB, and {free / GIB:.1f} GiB are available; free memory, or take a smaller model"
        )


def text_encoder(folder: Path, cache: Path | None = None) -> TextEncoder:
    """The umT5 in the folder of a checkpoint; its weights are read when the first new prompt comes.

    Raises:
        WeightsError: it is not there; says what was looked for.
    """
    return PromptEncoder(Umt5(Umt5Files.find(folder)), None if cache is None else PromptCache(cache))


def _autoencoder(folder: Path, other: str | None) -> VideoVAE:
    if other is None:
        return load_wan_vae(folder)
    path = Path(other)
    return load_taew(path) if any(name in path.name for name in RAW_LATENTS) else load_wan_vae(path)


def _together(*hashes: str) -> str:
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def _hash(folder: Path) -> str:
    path = folder / bundled.FILE  # alone: a training folder also holds checkpoints
    return hashlib.sha256(path.name.encode() + path.read_bytes()).hexdigest()
