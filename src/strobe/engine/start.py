"""Streams that begin with given frames: an image, or the end of another clip."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from strobe.core.errors import ConfigError, DataError, ShapeError
from strobe.core.shapes import VaeStride
from strobe.engine.config import EngineConfig, ModelDefaults, NoiseSchedule
from strobe.engine.denoise import BlockNoise
from strobe.engine.model import Model
from strobe.engine.resolve import ResolvedConfig
from strobe.engine.video import MOST_PIXELS
from strobe.models.vae.taew import Taew
from strobe.models.wan.flow import add_noise


@torch.inference_mode()
def start_latents(start: Tensor, model: Model, batch: int, device: torch.device) -> Tensor:
    """Return the clean latents [B, F, C, Y, X], float32 on the CPU, that a stream begins with.

    Args:
        start: frames uint8 [1 + stride * n, Y, X, 3] of the model's size, or clean latents [F, C, Y, X].
        model: encodes frames.
        batch: streams in lockstep; all begin alike.
        device: where frames are encoded.

    Raises:
        ShapeError: neither of the two.
        DataError: latents that are not finite.
        ConfigError: frames, and the model's autoencoder only decodes.
    """
    defaults = model.defaults
    height, width = defaults.stride.latent_size(*defaults.frame_size)
    if start.is_floating_point():
        expected: tuple[int, ...] = (model.dit.config.latent_channels, height, width)
        if start.dim() != 4 or start.shape[0] < 1 or tuple(start.shape[1:]) != expected:
            raise ShapeError(f"start: latents {tuple(start.shape)}; expected [F, {', '.join(map(str, expected))}] with F >= 1")
        if not start.isfinite().all():
            raise DataError("start: these latents hold NaN or infinity, and so would every frame after them; give finite ones")
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
        vae = model.vae if device.type == "cpu" else copy.deepcopy(model.vae).to(device)
        latents = vae.encode(start.to(device).permute(0, 3, 1, 2).unsqueeze(0).float() / 255).float().cpu()
    return latents.expand(batch, *latents.shape[1:]).clone()


def noised(noise: BlockNoise, config: ResolvedConfig, given: Tensor | None) -> tuple[BlockNoise, NoiseSchedule]:
    """Return noise and schedule of a frame block: all of both, or those that make given latents anew.

    ``x = (1 - sigma) * given + sigma * noise``, with the noise level of the first step that is left.

    Args:
        noise: of the frame block.
        config: its `again` says which steps are left.
        given: clean latents [B, F, C, Y, X] of the frame block; None: it is made of noise alone.
    """
    if given is None or config.again is None:
        return noise, config.schedule
    start = add_noise(given, noise.initial, config.again.sigmas[0])
    return BlockNoise(initial=start, renoise=noise.renoise[config.again.skipped :]), config.again


def fitted(frames: Tensor, size: tuple[int, int], stride: VaeStride) -> Tensor:
    """Fit a clip to a model: scaled to fill the frame, what sticks out cut off, cut to a length that the autoencoder takes.

    Args:
        frames: uint8 [F, Y, X, 3] of any size.
        size: height and width in pixels.
        stride: of the autoencoder.

    Returns:
        uint8 [1 + stride.time * n, *size, 3], the first frames.

    Raises:
        DataError: a frame that fills the model's has more than `MOST_PIXELS`.
    """
    frames = frames[: len(frames) - (len(frames) - 1) % stride.time]
    scale = max(wanted / own for wanted, own in zip(size, frames.shape[1:3], strict=True))
    height, width = (max(wanted, round(scale * own)) for wanted, own in zip(size, frames.shape[1:3], strict=True))
    if height * width > MOST_PIXELS:  # of a line of pixels
        raise DataError(f"the clip has {frames.shape[2]}x{frames.shape[1]} pixels, too long and narrow; cut it")
    if (height, width) != tuple(frames.shape[1:3]):
        planes = frames.permute(0, 3, 1, 2).float()
        planes = functional.interpolate(planes, (height, width), mode="bilinear", antialias=True, align_corners=False)
        frames = planes.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    return frames[:, top : top + size[0], left : left + size[1]].contiguous()


def blocks_given(frames: int, config: ResolvedConfig, stride: VaeStride) -> int:
    """Return the number of frame blocks that the frames of a clip, as `fitted` returns it, fill."""
    latents = stride.latents_for(frames)
    return 1 + -(-max(0, latents - config.first_block) // config.frame_block)


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
