"""Streams that begin with given frames: an image, or the end of another clip."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from strobe.core.errors import ConfigError, ShapeError
from strobe.engine.config import EngineConfig, ModelDefaults
from strobe.engine.load import Model
from strobe.models.vae.taew import Taew


@torch.inference_mode()
def start_latents(start: Tensor, model: Model, batch: int) -> Tensor:
    """Return the clean latents [B, F, C, Y, X], float32 on the CPU, that a stream begins with.

    Args:
        start: frames uint8 [1 + stride * n, Y, X, 3] of the model's size, or clean latents [F, C, Y, X].
        model: encodes frames.
        batch: streams in lockstep; all begin alike.

    Raises:
        ShapeError: neither of the two.
        ConfigError: frames, and the model's autoencoder only decodes.
    """
    defaults = model.defaults
    height, width = defaults.stride.latent_size(*defaults.frame_size)
    if start.is_floating_point():
        expected: tuple[int, ...] = (model.dit.config.latent_channels, height, width)
        if start.dim() != 4 or start.shape[0] < 1 or tuple(start.shape[1:]) != expected:
            raise ShapeError(f"start: latents {tuple(start.shape)}; expected [F, {', '.join(map(str, expected))}] with F >= 1")
        latents = start.cpu().float().unsqueeze(0)
    else:
        expected = (*defaults.frame_size, 3)
        extra = start.shape[0] % defaults.stride.time if start.dim() else 0
        if start.dtype != torch.uint8 or start.dim() != 4 or tuple(start.shape[1:]) != expected or extra != 1:
            raise ShapeError(
                f"start: {start.dtype} {tuple(start.shape)}; expected torch.uint8 [1 + {defaults.stride.time} n, "
                f"{', '.join(map(str, expected))}], or clean latents in a floating dtype"
            )
        if isinstance(model.vae, Taew):
            raise ConfigError("this autoencoder only decodes; start from clean latents, or use one that encodes")
        latents = model.vae.encode(start.cpu().permute(0, 3, 1, 2).unsqueeze(0).float() / 255)
    return latents.expand(batch, *latents.shape[1:]).clone()


def with_first_block(config: EngineConfig, latents: int, defaults: ModelDefaults) -> EngineConfig:
    """Return a configuration whose first frame blocks are filled by `latents` given latent frames.

    Raises:
        ConfigError: its own `first_block` does not fit them.
    """
    size = defaults.frame_block
    if config.first_block is None:
        return replace(config, first_block=latents % size or size)
    if latents < config.first_block or (latents - config.first_block) % size:
        raise ConfigError(
            f"{latents} latent frame(s) to start from do not fill frame blocks of {config.first_block}, then {size} each; "
            f"give first_block={latents % size or size}, or leave it out"
        )
    return config
