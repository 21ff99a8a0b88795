"""A tiny streaming video autoencoder: 8x in space, 4x in time, causal.

Every latent frame stands for four frames (the first of a video for one). The encoder sees only those frames, so a latent is a
pure function of them. The decoder works at the latent rate and remembers the previous latent frame's features at each
resolution; its last layer gives four frames at once. So a stream decodes one latent frame at a time, exactly as in one call.

Source: the idea of decoding with one-frame memories is TAEHV's (Bohan 2025); the layout is our own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strobe.core.shapes import VaeStride
from strobe.models.vae.stream import Memories, check_frames, check_latents

NO_MEMORY: Memories = (None,) * 5
"""The decoder's memories before a stream's first latent frame."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyVAEConfig:
    """Sizes of the autoencoder.

    Args:
        latent_channels: channels of a latent frame.
        widths: the decoder's channels at 1/8, 1/4 and 1/2 of the frame size.
        encoder_widths: the same for the encoder.
    """

    latent_channels: int = 8
    widths: tuple[int, int, int] = (96, 64, 48)
    encoder_widths: tuple[int, int, int] = (96, 80, 64)

    @property
    def stride(self) -> VaeStride:
        return VaeStride(time=4, space=8)


class TinyResidualBlock(nn.Module):
    """Two 3x3 convolutions and a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.conv2(F.relu(self.conv1(x))))


class TinyMemoryBlock(nn.Module):
    """A residual block that also sees its own input one latent frame earlier (zeros before the first)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2 * width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run x `[B, F, C, Y, X]` with memory `[B, 1, C, Y, X]` or None; return the output and the next memory."""
        first = torch.zeros_like(x[:, :1]) if memory is None else memory
        past = torch.cat((first, x[:, :-1]), dim=1)
        flat = x.flatten(0, 1)
        hidden = F.relu(self.conv1(torch.cat((flat, past.flatten(0, 1)), dim=1)))
        kept = x[:, -1:].clone(memory_format=torch.contiguous_format)  # a view would keep all of x
        return F.relu(flat + self.conv2(hidden)).unflatten(0, x.shape[:2]), kept


class TinyEncoder(nn.Module):
    """Four stacked frames to one latent frame."""

    def __init__(self, config: TinyVAEConfig) -> None:
        super().__init__()
        deep, middle, shallow = config.encoder_widths
        self.net = nn.Sequential(
            nn.PixelUnshuffle(2),
            nn.Conv2d(3 * config.stride.time * 4, shallow, 3, padding=1),
            nn.ReLU(),
            TinyResidualBlock(shallow),
            nn.Conv2d(shallow, middle, 3, stride=2, padding=1),
            nn.ReLU(),
            TinyResidualBlock(middle),
            nn.Conv2d(middle, deep, 3, stride=2, padding=1),
            nn.ReLU(),
            TinyResidualBlock(deep),
            nn.Conv2d(deep, config.latent_channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


class TinyDecoder(nn.Module):
    """Latent frames to groups of four frames, with one memory per block."""

    def __init__(self, config: TinyVAEConfig) -> None:
        super().__init__()
        deep, middle, shallow = config.widths
        self.enter = nn.Conv2d(config.latent_channels, deep, 3, padding=1)
        self.deep1, self.deep2 = TinyMemoryBlock(deep), TinyMemoryBlock(deep)
        self.down1 = nn.Conv2d(deep, middle * 4, 1)
        self.middle = TinyMemoryBlock(middle)
        self.down2 = nn.Conv2d(middle, shallow * 4, 1)
        self.shallow1, self.shallow2 = TinyMemoryBlock(shallow), TinyMemoryBlock(shallow)
        self.leave = nn.Conv2d(shallow, 3 * config.stride.time * 4, 3, padding=1)

    def forward(self, x: Tensor, memories: Memories) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Decode x `[B, F, C, Y, X]` to `[B, F, 4 * 3, 8Y, 8X]`, with the memories for the next call."""
        shape = x.shape[:2]
        deep1, deep2, middle, shallow1, shallow2 = memories
        x = F.relu(self.enter(x.flatten(0, 1))).unflatten(0, shape)
        x, deep1 = self.deep1(x, deep1)
        x, deep2 = self.deep2(x, deep2)
        x = F.relu(F.pixel_shuffle(self.down1(x.flatten(0, 1)), 2)).unflatten(0, shape)
        x, middle = self.middle(x, middle)
        x = F.relu(F.pixel_shuffle(self.down2(x.flatten(0, 1)), 2)).unflatten(0, shape)
        x, shallow1 = self.shallow1(x, shallow1)
        x, shallow2 = self.shallow2(x, shallow2)
        out = F.pixel_shuffle(self.leave(x.flatten(0, 1)), 2).unflatten(0, shape)
        return out, (deep1, deep2, middle, shallow1, shallow2)


class TinyVAE(nn.Module):
    """Encoder, decoder and the per-channel statistics that make latents zero-mean and unit-variance."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: TinyVAEConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = TinyEncoder(config)
        self.decoder = TinyDecoder(config)
        self.register_buffer("mean", torch.zeros(config.latent_channels))
        self.register_buffer("std", torch.ones(config.latent_channels))

    @property
    def stride(self) -> VaeStride:
        return self.config.stride

    @property
    def latent_channels(self) -> int:
        return self.config.latent_channels

    def _statistics(self) -> tuple[Tensor, Tensor]:
        return self.mean.view(1, 1, -1, 1, 1), self.std.view(1, 1, -1, 1, 1)

    def encode(self, frames: Tensor) -> Tensor:
        """Encode frames `[B, 1 + 4 n, 3, Y, X]` in [0, 1] from the start of a video to latents `[B, 1 + n, C, Y/8, X/8]`.

        Raises:
            ShapeError: another number of frames or channels, or a size that is not a multiple of the stride.
        """
        check_frames(frames, self.stride, first=True)
        padded = torch.cat((frames[:, :1].expand(-1, self.stride.time - 1, -1, -1, -1), frames), dim=1)
        return self.encode_groups(padded)

    def encode_groups(self, frames: Tensor) -> Tensor:
        """Encode frames `[B, 4 n, 3, Y, X]` to latents `[B, n, C, Y/8, X/8]`, each from its own four frames."""
        batch, count = frames.shape[0], frames.shape[1] // self.config.stride.time
        stacked = frames.reshape(batch * count, -1, *frames.shape[3:])
        mean, std = self._statistics()
        latents: Tensor = self.encoder(stacked).unflatten(0, (batch, count))
        return (latents - mean) / std

    def decode_groups(self, latents: Tensor, memories: Memories = NO_MEMORY) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Decode latents `[B, F, C, Y, X]` to frames `[B, 4 F, 3, 8Y, 8X]` (not clamped) and the decoder's next memories.

        Raises:
            ShapeError: the latents are not those of this autoencoder.
        """
        check_latents(latents, self.latent_channels)
        mean, std = self._statistics()
        out, after = self.decoder(latents.to(std.dtype) * std + mean, memories)
        return out.unflatten(2, (self.config.stride.time, 3)).flatten(1, 2), after

    def empty_memories(self) -> Memories:
        return NO_MEMORY

    def decode_piece(self, latents: Tensor, memories: Memories, *, first: bool) -> tuple[Tensor, Memories]:
        frames, after = self.decode_groups(latents, memories)
        return frames[:, self.stride.time - 1 if first else 0 :].clamp(0, 1), after

    def decode(self, latents: Tensor) -> Tensor:
        """Decode a whole video's latents `[B, F, C, Y, X]` to frames `[B, 4 F - 3, 3, 8Y, 8X]` in [0, 1]."""
        return self.decode_piece(latents, NO_MEMORY, first=True)[0]
