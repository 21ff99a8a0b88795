"""The tiny decoder for Wan2.1 latents (TAEHV layout: `taew2_1`, `lighttaew2_1`): 2-D convolutions with one-frame memories.

Three resolutions of three blocks, each block seeing its own input one frame earlier; after each the frame size doubles, after
the last two the frame rate too. The weights' first `stride.time - 1` frames of a stream stand for nothing and are dropped.

Source: TAEHV (Bohan 2025), the layout of its released Wan2.1 decoders; its encoder is not built.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strobe.core.errors import ConfigError
from strobe.core.shapes import VaeStride
from strobe.models.checkpoint import fill, on_meta, read_tensors, seeded
from strobe.models.vae.convolutions import convolve_relu, grow
from strobe.models.vae.stream import Memories, check_latents, check_stream, per_channel
from strobe.models.vae.wan.config import WAN21_MEAN, WAN21_STD

BLOCKS = 3
"""Blocks of a resolution."""

RAW_LATENTS = {"taew2_1": False, "lighttaew2_1": True}
"""Whether a released decoder takes latents as the Wan VAE's encoder gives them (True), or as the transformer does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaewConfig:
    """Sizes of the decoder; defaults are those of the released ones.

    Args:
        latent_channels: channels of a latent frame.
        widths: channels at 1/8, 1/4, 1/2 and full frame size.
        patch: pixels along an edge that the last convolution gives at once; 2 for the latents of Wan2.2.
        double_time: whether each doubling of the frame size doubles the frame rate too.
        mean, std: of each latent channel, if the decoder takes latents that are not normalised; None: it takes them as they come.
    """

    latent_channels: int = 16
    widths: tuple[int, int, int, int] = (256, 128, 64, 64)
    patch: int = 1
    double_time: tuple[bool, bool, bool] = (False, True, True)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def stride(self) -> VaeStride:
        return VaeStride(time=2 ** sum(self.double_time), space=self.patch * 2 ** len(self.double_time))


class MemoryBlock(nn.Module):
    """Three convolutions and a skip, which also see the block's input one frame earlier (zeros before the first)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2 * width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.conv3 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run x `[B, F, Y, X, C]` with memory `[B, 1, Y, X, C]` or None; return the output and the next memory."""
        first = torch.zeros_like(x[:, :1]) if memory is None else memory
        seen = torch.cat((first, x), dim=1)
        now, before = self.conv1.weight.chunk(2, dim=1)  # of the frame's channels, and of those one frame earlier
        taps = torch.stack((before, now), dim=2).contiguous(memory_format=torch.channels_last_3d)
        both = convolve_relu(seen.movedim(-1, 1), taps, _bias(self.conv1))  # [B, C, F, Y, X]
        hidden = convolve_relu(both.transpose(1, 2).flatten(0, 1), self.conv2.weight, _bias(self.conv2))
        out = convolve_relu(hidden, self.conv3.weight, _bias(self.conv3), _pictures(x))
        return _video(out, x.shape[0]), seen[:, -1:].clone(memory_format=torch.contiguous_format)


class Growth(nn.Module):
    """Upsampling to twice the height and width and, if `time`, twice the frame rate.

    Released decoders repeat every pixel, mix channels and convolve. Mixing first is the same with a quarter of the work.
    """

    def __init__(self, width: int, next_width: int, *, time: bool) -> None:
        super().__init__()
        self.frames = 2 if time else 1
        self.mix = nn.Conv2d(width, self.frames * width, 1, bias=False)
        self.conv = nn.Conv2d(width, next_width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Upsample `[B, F, Y, X, C]` to `[B, F', 2 Y, 2 X, C']`."""
        mixed = _video(self.mix(_pictures(x)), x.shape[0]).unflatten(-1, (self.frames, -1))  # [B, F, Y, X, 1 or 2, C]
        small = mixed.movedim(-2, 2).flatten(1, 2)
        return _video(grow(_pictures(small), self.conv.weight, None), x.shape[0])


class TaewDecoder(nn.Module):
    """Latent frames to groups of `stride.time` frames, with one memory per block."""

    def __init__(self, config: TaewConfig) -> None:
        super().__init__()
        self.enter = nn.Conv2d(config.latent_channels, config.widths[0], 3, padding=1)
        self.blocks = nn.ModuleList([MemoryBlock(width) for width in config.widths[:-1] for _ in range(BLOCKS)])
        pairs = zip(config.widths[:-1], config.widths[1:], config.double_time, strict=True)
        self.growths = nn.ModuleList([Growth(width, after, time=time) for width, after, time in pairs])
        self.patch = config.patch
        self.leave = nn.Conv2d(config.widths[-1], 3 * config.patch**2, 3, padding=1)

    def forward(self, latents: Tensor, memories: Memories) -> tuple[Tensor, Memories]:
        """Decode `[B, F, C, Y, X]` to `[B, F', 3, Y', X']` in [0, 1], with the memories for the next call."""
        batch, after = latents.shape[0], []
        pictures = latents.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        x = _video(convolve_relu(torch.tanh(pictures / 3) * 3, self.enter.weight, _bias(self.enter)), batch)
        for number, block in enumerate(self.blocks):
            memory = memories[number]
            if memory is not None:
                check_stream(x.movedim(-1, 2), memory.movedim(-1, 2))
            x, kept = block(x, memory)
            after.append(kept)
            if number % BLOCKS == BLOCKS - 1:
                x = self.growths[number // BLOCKS](x)
        pictures, bias = _pictures(F.relu(x, inplace=True)), _bias(self.leave)
        empty = -len(bias) % 8 if pictures.is_cuda else 0  # to eight channels at least, or cuDNN is slow
        weight = F.pad(self.leave.weight, (0, 0, 0, 0, 0, 0, 0, empty)).contiguous(memory_format=torch.channels_last)
        pixels = F.conv2d(pictures, weight, F.pad(bias, (0, empty)), padding=1)[:, : len(bias)]  # [N, 3 P P, Y, X]
        return F.pixel_shuffle(_video(pixels, batch).movedim(-1, 2), self.patch).clamp(0, 1), tuple(after)


class Taew(nn.Module):
    """The decoder as a `strobe.models.vae.stream.VideoDecoder`.

    Args:
        config: sizes.
    """

    def __init__(self, config: TaewConfig) -> None:
        super().__init__()
        self.config = config
        self.decoder = TaewDecoder(config)
        self.channels_last()

    @property
    def stride(self) -> VaeStride:
        return self.config.stride

    @property
    def latent_channels(self) -> int:
        return self.config.latent_channels

    def channels_last(self) -> None:
        """Keep weights with contiguous channels, as the activations are."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)

    def empty_memories(self) -> Memories:
        return (None,) * len(self.decoder.blocks)

    def decode_piece(self, latents: Tensor, memories: Memories, *, first: bool) -> tuple[Tensor, Memories]:
        """Decode a piece of a stream; see `strobe.models.vae.stream.VideoDecoder`.

        Raises:
            ShapeError: the latents are not those of this decoder, or of another size than the memories.
        """
        check_latents(latents, self.latent_channels)
        if self.config.mean is not None and self.config.std is not None:
            mean, std = (per_channel(values, latents.device) for values in (self.config.mean, self.config.std))
            latents = latents.float() * std + mean
        frames, after = self.decoder(latents.to(self.decoder.enter.weight.dtype), memories)
        return frames[:, self.stride.time - 1 if first else 0 :], after

    def decode(self, latents: Tensor) -> Tensor:
        """Decode a whole video's latents `[B, F, C, Y, X]` to frames `[B, 4 F - 3, 3, 8Y, 8X]` in [0, 1], in one call."""
        return self.decode_piece(latents, self.empty_memories(), first=True)[0]


def key_names(config: TaewConfig) -> dict[str, str]:
    """Map our tensor names to those of a released checkpoint, where the decoder is one numbered sequence."""
    with on_meta():
        keys = list(Taew(config).state_dict())
    return {key: f"decoder.{_place(key.split('.')[1:-1])}.{key.rpartition('.')[2]}" for key in keys}


def _place(path: list[str]) -> str:
    enter, start, length = 1, 3, BLOCKS + 3  # a clamp comes first; a resolution is its blocks, enlarge, mix, convolution
    match path:
        case ["enter"]:
            return str(enter)
        case ["blocks", number, conv]:
            resolution, block = divmod(int(number), BLOCKS)
            return f"{start + length * resolution + block}.conv.{2 * (int(conv[-1]) - 1)}"
        case ["growths", number, "mix"]:
            return f"{start + length * int(number) + BLOCKS + 1}.conv"
        case ["growths", number, _]:
            return str(start + length * int(number) + BLOCKS + 2)
        case _:
            return str(start + length * 3 + 1)


def load_taew(path: str | Path) -> Taew:
    """Load a released decoder for Wan2.1, float32, on the CPU, ready for inference. An encoder in the file is left out.

    Args:
        path: a `.pth` or `.safetensors` file, whose name is one of `RAW_LATENTS`.

    Raises:
        ConfigError: it has another name; both kinds have the same tensors.
        WeightsError: no such file, damaged, or not all and only the tensors of this decoder.
    """
    path = Path(path)
    if path.stem not in RAW_LATENTS:
        raise ConfigError(f"{path.name} is none of {', '.join(RAW_LATENTS)}; rename it to the one whose latents it takes")
    raw = RAW_LATENTS[path.stem]
    tensors = {name: tensor for name, tensor in read_tensors(path).items() if not name.startswith("encoder.")}
    config = TaewConfig(mean=WAN21_MEAN, std=WAN21_STD) if raw else TaewConfig()
    with on_meta():
        vae = Taew(config)
    fill(vae, tensors, key_names(config), path)
    vae.channels_last()
    return vae


def random_taew(config: TaewConfig, seed: int) -> Taew:
    """Build an untrained decoder for measuring: the same weights for the same seed, float32, on the CPU. Frames are noise."""
    with seeded(seed):
        return Taew(config).requires_grad_(False).eval()


def _bias(conv: nn.Conv2d) -> Tensor:
    assert conv.bias is not None
    return conv.bias


def _pictures(x: Tensor) -> Tensor:
    """Convert `[B, F, Y, X, C]` to `[B F, C, Y, X]`, a view with contiguous channels."""
    return x.flatten(0, 1).movedim(-1, 1)


def _video(x: Tensor, batch: int) -> Tensor:
    """Convert `[B F, C, Y, X]` to `[B, F, Y, X, C]`, a view."""
    return torch.unflatten(x, 0, (batch, -1)).movedim(2, -1)
