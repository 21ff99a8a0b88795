"""The video autoencoders of Wan: 8x in space (Wan2.1) or 16x (Wan2.2), 4x in time, causal, in pieces of any length.

Every convolution over time sees the two frames before. What it saw of the piece before is its memory, so that a video may be
decoded or encoded piece by piece: the first latent frame alone gives one frame, every later one four, and the result is that of
one call over all of it. A clip's first frame is not doubled in time, and the layers that double have no memory of it.

Source: Wan2.1 (Wan Team 2025), Wan2.2 (`wan/modules/vae2_2.py` at bf69229); checked against the implementation in diffusers.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from strobe.core.errors import ImplUnavailableError
from strobe.core.shapes import VaeStride
from strobe.models.vae.kernels.api import Impl, unavailable
from strobe.models.vae.stream import Memories, check_frames, check_latents, per_channel
from strobe.models.vae.wan import fused
from strobe.models.vae.wan.config import WanVAEConfig
from strobe.models.vae.wan.layers import Coder, Downsample, Pointwise, ResidualBlock, SkippedStage, Upsample


def encoder(config: WanVAEConfig) -> Coder:
    """Build the encoder: pixels `[B, 3 P P, F, Y, X]` in [-1, 1] to means and log-variances `[B, 2 C, F', Y', X']`."""
    stages: list[nn.Module] = []
    for (before, after), time in zip(pairwise((config.widths[0], *config.widths)), (*config.halve_time, None), strict=True):
        layers: list[nn.Module] = [ResidualBlock(after if number else before, after) for number in range(config.num_blocks)]
        layers += [] if time is None else [Downsample(after, time=time)]
        scale = (1, 1, 1) if time is None else (1 + time, 2, 2)
        stages += [SkippedStage(layers, after, scale, up=False)] if config.residual else layers
    ends = (config.widths[0], config.widths[-1])
    return Coder(3 * config.patch**2, 2 * config.latent_channels, ends, stages, middle_first=False)


def decoder(config: WanVAEConfig) -> Coder:
    """Build the decoder: latents `[B, C, F, Y, X]` to pixels `[B, 3 P P, F', Y', X']`, about in [-1, 1]."""
    stages: list[nn.Module] = []
    widths = config.decoder_widths[::-1]
    before = widths[0]
    for width, time in zip(widths, (*config.halve_time[::-1], None), strict=True):
        layers: list[nn.Module] = [ResidualBlock(width if number else before, width) for number in range(config.num_blocks + 1)]
        after = width if config.residual or time is None else width // 2
        layers += [] if time is None else [Upsample(width, after, time=time)]
        scale = None if time is None else (1 + time, 2, 2)
        stages += [SkippedStage(layers, after, scale, up=True)] if config.residual else layers
        before = after
    return Coder(config.latent_channels, 3 * config.patch**2, (widths[0], widths[-1]), stages, middle_first=True)


class WanVAE(nn.Module):
    """Encoder and decoder of Wan2.1 or Wan2.2 with latents as the transformer takes them, zero-mean and unit-variance.

    Args:
        config: sizes.
    """

    def __init__(self, config: WanVAEConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder(config)
        self.moments = Pointwise(2 * config.latent_channels, 2 * config.latent_channels)
        self.unpack = Pointwise(config.latent_channels, config.latent_channels)
        self.decoder = decoder(config)
        self.memory_format = torch.contiguous_format
        self.fused: Impl | None = None

    @property
    def stride(self) -> VaeStride:
        return self.config.stride

    @property
    def latent_channels(self) -> int:
        return self.config.latent_channels

    def channels_last(self) -> WanVAE:
        """Keep weights and activations with contiguous channels from now on; returns itself."""
        self.memory_format = torch.channels_last_3d
        for module in self.modules():
            if isinstance(module, nn.Conv3d):
                module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last_3d)
            elif isinstance(module, nn.Conv2d):
                module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
        return self

    def fuse_decoder(self, impl: Impl = "triton") -> WanVAE:
        """Decode with residual blocks in kernels of ours from now on, without gradients; returns itself.

        Raises:
            ImplUnavailableError: they do not run on this device or in this dtype.
        """
        self._check_impl(impl)
        self.fused = impl
        return self.channels_last()

    def _check_impl(self, impl: Impl) -> None:
        weight = self.unpack.weight
        if why := unavailable(impl, weight.device, weight.dtype):
            raise ImplUnavailableError(impl, why, alternatives=("compile_decoder()",))

    def compile_decoder(self) -> None:
        """Compile the decoder for the sizes that come; the first piece of a stream is a graph of its own.

        Frames and those before them are joined where they are computed. Else Inductor copies what every convolution remembers
        into its input at the start of the call, and all inputs, the largest tensors there are, live until their convolution runs.
        """
        self.decoder.compile(options={"force_pointwise_cat": True}, dynamic=False, fullgraph=True)

    def empty_memories(self) -> Memories:
        return (None,) * self.decoder.num_memories

    def empty_encoder_memories(self) -> Memories:
        """Return the encoder's memories before a stream's first frame."""
        return (None,) * self.encoder.num_memories

    def decode_piece(self, latents: Tensor, memories: Memories, *, first: bool) -> tuple[Tensor, Memories]:
        """Decode a piece of a stream to float32 frames; see `strobe.models.vae.stream.VideoDecoder`.

        Raises:
            ShapeError: the latents are not those of this autoencoder, or of another size than the memories.
        """
        check_latents(latents, self.latent_channels)
        mean, std = self._statistics(latents.device)
        raw = (latents.float() * std + mean).transpose(1, 2).to(self.unpack.weight.dtype)
        x = self.unpack(raw.contiguous(memory_format=self.memory_format))
        if self.fused is None:
            out, after = self.decoder(x, memories, first)
        else:
            self._check_impl(self.fused)  # it may have moved since
            out, after = fused.decode(self.decoder, x, memories, first=first, impl=self.fused)
        cells: Tensor = out.unflatten(1, (3, self.config.patch, self.config.patch))  # [B, 3, column, row, F, Y, X]
        pixels = cells.permute(0, 4, 1, 5, 3, 6, 2).flatten(5, 6).flatten(3, 4)
        return (pixels.float().clamp(-1, 1) + 1) / 2, after

    def encode_piece(self, frames: Tensor, memories: Memories, *, first: bool) -> tuple[Tensor, Memories]:
        """Encode frames `[B, 4 n, 3, Y, X]` (`1 + 4 n` if `first`) in [0, 1] to `[B, F', C, Y', X']`, with the next memories.

        The latents are the means, float32; nothing is drawn.

        Raises:
            ShapeError: another number of frames or channels, a size that is no multiple of the stride or not the memories'.
        """
        check_frames(frames, self.stride, first=first)
        cells: Tensor = (frames * 2 - 1).unflatten(4, (-1, self.config.patch)).unflatten(3, (-1, self.config.patch))
        x = cells.permute(0, 2, 6, 4, 1, 3, 5).flatten(1, 3).to(self.moments.weight.dtype)  # a patch's pixels by column, then row
        out, after = self.encoder(x.contiguous(memory_format=self.memory_format), memories, first)
        mean, std = self._statistics(frames.device)
        latents = self.moments(out).float()[:, : self.latent_channels].transpose(1, 2)
        return (latents - mean) / std, after

    def decode(self, latents: Tensor, *, piece: int = 3) -> Tensor:
        """Decode a video's latents `[B, F, C, Y, X]` to frames `[B, 4 F - 3, 3, Y', X']` in [0, 1], `piece` latents per call."""
        check_latents(latents, self.latent_channels)
        return _in_pieces(self.decode_piece, latents, self.empty_memories(), piece)

    def encode(self, frames: Tensor, *, piece: int = 1) -> Tensor:
        """Encode frames `[B, 1 + 4 n, 3, Y, X]` in [0, 1] from the start of a video to latents, `piece` of them per call.

        Raises: see `encode_piece`.
        """
        check_frames(frames, self.stride, first=True)
        return _in_pieces(self.encode_piece, frames, self.empty_encoder_memories(), piece * self.stride.time)

    def _statistics(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return per_channel(self.config.mean, device), per_channel(self.config.std, device)


def _in_pieces(run: Callable[..., tuple[Tensor, Memories]], x: Tensor, memories: Memories, size: int) -> Tensor:
    """Run the first frame, then pieces of so many, and put the results one after the other."""
    done: list[Tensor] = []
    for part in (x[:, :1], *(x[:, 1:].split(size, dim=1) if x.shape[1] > 1 else ())):
        out, memories = run(part, memories, first=not done)
        done.append(out)
    return torch.cat(done, dim=1)
