"""Settings, files and checks of Wan: what its family takes besides a transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from strobe.core.errors import ConfigError, ShapeError, WeightsError
from strobe.core.main_memory import GIB, available_bytes
from strobe.core.shapes import VaeStride
from strobe.engine.config import ModelDefaults
from strobe.engine.decode import VideoVAE
from strobe.engine.weights import Weights
from strobe.models.checkpoint import check_whole
from strobe.models.text.cache import PromptCache
from strobe.models.text.umt5 import Umt5Files, check_installed
from strobe.models.vae.taew import RAW_LATENTS, Taew, TaewConfig, load_taew, random_taew
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WAN22, WanVAEConfig
from strobe.models.vae.wan.weights import find_wan_vae, load_wan_vae, random_wan_vae
from strobe.models.wan.config import WIDE, WanConfig
from strobe.models.wan.recipes import RECIPES, Recipe
from strobe.models.wan.weights import OpenCheckpoint

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


def random_autoencoder(config: WanConfig, asked: str | None) -> VideoVAE:
    """Draw the autoencoder of a size of Wan, or the tiny one."""
    wide = config.latent_channels == WIDE
    if asked is None:
        return random_wan_vae(WAN22 if wide else WanVAEConfig(), 0)
    return random_taew(TAEW_2_2 if wide else TaewConfig(), 0)


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


def empty_autoencoder(config: WanConfig) -> VideoVAE:
    """Build the autoencoder of a size of Wan; call it where the meta device is the default."""
    return WanVAE(WAN22 if config.latent_channels == WIDE else WanVAEConfig())


def autoencoder(folder: Path, other: str | None) -> VideoVAE:
    """Read the autoencoder in the folder of a checkpoint, or another one from its file."""
    if other is None:
        return load_wan_vae(folder)
    path = Path(other)
    return load_taew(path) if any(name in path.name for name in RAW_LATENTS) else load_wan_vae(path)
