"""Causal convolutions with memories, and the layers made of them. Activations are `[B, C, F, Y, X]`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strobe.models.vae.convolutions import grow, to_few_channels
from strobe.models.vae.kernels.api import EPS
from strobe.models.vae.stream import Memories, check_stream

Scale = tuple[int, int, int]
"""Frames, rows and columns for one."""


class LayerMemories:
    """Memories of one call, taken in the order of the layers, and collected for the next call.

    Args:
        before: memories that the call before left.
        first: this is the start of a stream.
    """

    def __init__(self, before: Memories, *, first: bool) -> None:
        self.before = before
        self.first = first
        self.after: list[Tensor] = []

    def join(self, x: Tensor, count: int) -> Tensor:
        """Put the `count` frames before `x` in front of it (zeros at the start of a stream); remember the last `count`."""
        memory = self.before[len(self.after)]
        if memory is None:
            memory = _zeros(x, count)
        else:
            check_stream(x, memory)
        seen = _cat(memory, x)
        self.after.append(_last(seen, count))
        return seen

    def skip(self, x: Tensor, count: int) -> None:
        """Remember `count` zero frames of the size of `x`, as the memory of a layer that has seen nothing yet."""
        self.after.append(_zeros(x, count))


def _zeros(x: Tensor, count: int) -> Tensor:
    """Return `count` zero frames in the layout of `x`, also where `x` has one frame and its strides leave the layout open."""
    batch, channels, _, height, width = x.shape
    if x.stride(1) == 1:
        return x.new_zeros(batch, count, height, width, channels).movedim(-1, 1)
    return x.new_zeros(batch, channels, count, height, width)


def _last(x: Tensor, count: int) -> Tensor:
    """Copy the last `count` frames in the layout of `x`, with strides that do not depend on the length of `x`. A view would keep
    all of `x`; strides of another length would compile a graph again."""
    if x.stride(1) == 1:
        return x.movedim(1, -1)[:, -count:].clone(memory_format=torch.contiguous_format).movedim(-1, 1)
    return x[:, :, -count:].clone(memory_format=torch.contiguous_format)


def _cat(before: Tensor, x: Tensor) -> Tensor:
    """Concatenate frames in the layout of `x`; `torch.cat` would mistake the layout of a single frame."""
    if x.stride(1) == 1:
        return torch.cat((before.movedim(1, -1), x.movedim(1, -1)), dim=1).movedim(-1, 1)
    return torch.cat((before, x), dim=2)


class CausalConv3d(nn.Conv3d):
    """A convolution that is causal in time: frame t sees t - 2, t - 1 and t."""

    def __init__(self, channels: int, out_channels: int, *, space: int = 3) -> None:
        super().__init__(channels, out_channels, (3, space, space), padding=(0, space // 2, space // 2))

    def forward(self, x: Tensor, past: LayerMemories) -> Tensor:  # type: ignore[override]
        """Convolve `[B, C, F, Y, X]` to `[B, C', F, Y, X]`."""
        out: Tensor = super().forward(past.join(x, self.kernel_size[0] - 1))
        return out


class LastConv(CausalConv3d):
    """A `CausalConv3d` to few channels, computed as one matrix product."""

    def forward(self, x: Tensor, past: LayerMemories) -> Tensor:  # type: ignore[override]
        """Convolve `[B, C, F, Y, X]` to `[B, C', F, Y, X]`."""
        assert self.bias is not None
        seen = past.join(x, self.kernel_size[0] - 1)
        return to_few_channels(seen.movedim(1, -1), self.weight, self.bias).movedim(-1, 1)


class Pointwise(nn.Conv3d):
    """A 1x1x1 convolution; a matrix product if the channels are contiguous."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__(channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve `[B, C, F, Y, X]` to `[B, C', F, Y, X]`."""
        if x.stride(1) == 1:
            return F.linear(x.movedim(1, -1), self.weight.flatten(1), self.bias).movedim(-1, 1)
        out: Tensor = super().forward(x)
        return out


class ChannelNorm(nn.Module):
    """RMS norm over the channels of each pixel: x / sqrt(mean(x²)) * gamma."""

    def __init__(self, channels: int, num_dims: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, *[1] * num_dims))

    def forward(self, x: Tensor) -> Tensor:
        """Norm `[B, C, ...]`: one kernel if the channels are contiguous, the official formula if not."""
        if x.stride(1) == 1:
            return F.rms_norm(x.movedim(1, -1), x.shape[1:2], self.gamma.flatten(), EPS).movedim(-1, 1)
        out: Tensor = F.normalize(x, dim=1) * (self.gamma * x.shape[1] ** 0.5)
        return out


class ResidualBlock(nn.Module):
    """Norm, SiLU, convolution, twice, around a skip."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm1 = ChannelNorm(channels, 3)
        self.conv1 = CausalConv3d(channels, out_channels)
        self.norm2 = ChannelNorm(out_channels, 3)
        self.conv2 = CausalConv3d(out_channels, out_channels)
        self.shortcut = Pointwise(channels, out_channels) if channels != out_channels else None

    def forward(self, x: Tensor, past: LayerMemories) -> Tensor:
        """Run the block: `[B, C, F, Y, X]` to `[B, C', F, Y, X]`."""
        out = self.conv1(F.silu(self.norm1(x), inplace=True), past)
        out = self.conv2(F.silu(self.norm2(out), inplace=True), past)
        skipped: Tensor = (x if self.shortcut is None else self.shortcut(x)) + out  # last: it need not live beside the rest
        return skipped


class FrameAttention(nn.Module):
    """Self-attention with a single head over the pixels of each frame."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(channels, 2)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, past: LayerMemories) -> Tensor:
        """Attend within each frame of `[B, C, F, Y, X]`; memories are not used."""
        pictures = to_pictures(x)
        size = pictures.shape[2:]
        tokens = self.qkv(self.norm(pictures)).flatten(2).transpose(1, 2).unsqueeze(1)  # [B F, 1, Y X, 3 C]
        attended = F.scaled_dot_product_attention(*tokens.chunk(3, dim=-1))
        out = self.out(attended.squeeze(1).transpose(1, 2).unflatten(2, size))
        both: Tensor = x + to_video(out, x.shape[0])
        return both


class Downsample(nn.Module):
    """Half the height and width and, if `time`, half the frame rate; the first frame of a video stays one."""

    def __init__(self, channels: int, *, time: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)
        self.time_conv = nn.Conv3d(channels, channels, (3, 1, 1), stride=(2, 1, 1)) if time else None

    def forward(self, x: Tensor, past: LayerMemories) -> Tensor:
        """Downsample `[B, C, F, Y, X]` to `[B, C, F', Y / 2, X / 2]`."""
        pictures = F.pad(to_pictures(x), (0, 1, 0, 1))
        small = to_video(self.conv(pictures), x.shape[0])
        if self.time_conv is None:
            return small
        seen = past.join(small, 1)
        if not past.first:
            halved: Tensor = self.time_conv(seen)
            return halved
        if small.shape[2] == 1:
            return small
        return _cat(small[:, :, :1], self.time_conv(small))


class Upsample(nn.Module):
    """Twice the height and width, other channels and, if `time`, twice the frame rate; a video's first frame stays one."""

    def __init__(self, channels: int, out_channels: int, *, time: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, 3, padding=1)
        self.time_conv = CausalConv3d(channels, 2 * channels, space=1) if time else None

    def forward(self, x: Tensor, past: LayerMemories, *, biased: bool = True) -> Tensor:
        """Upsample `[B, C, F, Y, X]` to `[B, C', F', 2 Y, 2 X]`; without its last bias if not `biased`."""
        if self.time_conv is not None:
            x = self._double(x, past)
        return to_video(grow(to_pictures(x), self.conv.weight, self.conv.bias if biased else None), x.shape[0])

    def _double(self, x: Tensor, past: LayerMemories) -> Tensor:
        """Double the frames, `[B, C, F, Y, X]` to `[B, C, 2 F, Y, X]`; a video's first frame stays one and is not seen later."""
        assert self.time_conv is not None
        later = x[:, :, 1:] if past.first else x
        if not later.shape[2]:
            past.skip(x, 2)
            return x
        pairs = self.time_conv(later, past).unflatten(1, (2, -1)).transpose(1, 2)  # [B, C, 2, F, Y, X]
        doubled = pairs.movedim(2, 3).flatten(2, 3)
        if x.stride(1) == 1:
            doubled = doubled.contiguous(memory_format=torch.channels_last_3d)
        return _cat(x[:, :, :1], doubled) if past.first else doubled


class SkippedStage(nn.Module):
    """The layers of a resolution, with a skip around them all.

    Args:
        layers: in order; the last one may change resolution.
        channels: of the output.
        scale: frames, rows and columns of the output (`up`) or input (not) for one of the other; None: there is no skip.
        up: the skip repeats cells; else it averages them.
    """

    def __init__(self, layers: list[nn.Module], channels: int, scale: Scale | None, *, up: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.channels, self.scale, self.up = channels, scale, up

    def forward(self, x: Tensor, past: LayerMemories) -> Tensor:
        """Run the stage: `[B, C, F, Y, X]` to `[B, C', F', Y', X']`."""
        out = x
        for layer in self.layers:
            out = layer(out, past)
        return self.join(x, out, first=past.first)

    def join(self, x: Tensor, out: Tensor, *, first: bool) -> Tensor:
        """Add the skip of the input `x` to the last layer's output, in place."""
        if self.scale is None:
            return out
        skip = repeated(x, self.channels, self.scale, first=first) if self.up else averaged(x, self.channels, self.scale)
        both: Tensor = out.add_(skip)
        return both


class Coder(nn.Module):
    """Encoder or decoder: convolution, stages and a middle, norm, convolution.

    Args:
        channels, out_channels: of input and output.
        widths: channels of the first and of the last stage.
        stages: residual blocks and changes of resolution, in order.
        middle_first: the middle comes before the stages (decoder) or after (encoder).
    """

    def __init__(
        self, channels: int, out_channels: int, widths: tuple[int, int], stages: list[nn.Module], *, middle_first: bool
    ) -> None:
        super().__init__()
        deep = widths[0] if middle_first else widths[1]
        self.middle_first = middle_first
        self.enter = CausalConv3d(channels, widths[0])
        self.stages = nn.ModuleList(stages)
        self.middle = nn.ModuleList([ResidualBlock(deep, deep), FrameAttention(deep), ResidualBlock(deep, deep)])
        self.norm = ChannelNorm(widths[1], 3)
        self.leave = (LastConv if middle_first else CausalConv3d)(widths[1], out_channels)

    @property
    def num_memories(self) -> int:
        """Memories that a stream carries from call to call."""
        return sum(
            isinstance(module, CausalConv3d) or (isinstance(module, Downsample) and module.time_conv is not None)
            for module in self.modules()
        )

    def forward(self, x: Tensor, memories: Memories, first: bool) -> tuple[Tensor, Memories]:
        """Run a piece `[B, C, F, Y, X]` of a stream; return the result and the memories for the next piece."""
        past = LayerMemories(memories, first=first)
        x = self.enter(x, past)
        for layer in (*self.middle, *self.stages) if self.middle_first else (*self.stages, *self.middle):
            x = layer(x, past)
        x = F.silu(self.norm(x), inplace=True)
        return self.leave(x, past), tuple(past.after)


def averaged(x: Tensor, channels: int, scale: Scale) -> Tensor:
    """Put the cells of each `scale` side by side as channels, `(C t y x)`, and average neighbours to fewer channels.

    Frames that are no multiple get zeros in front, as the first frame of a video has.

    Source: Wan2.2, `wan/modules/vae2_2.py` at bf69229, `AvgDown3D`.
    """
    times, height, width = scale
    x = F.pad(x, (0, 0, 0, 0, -x.shape[2] % times, 0))
    cells: Tensor = x.unflatten(4, (-1, width)).unflatten(3, (-1, height)).unflatten(2, (-1, times))
    order = (0, 2, 4, 6, 1, 3, 5, 7)  # [B, F', Y', X', C, t, y, x]
    means: Tensor = cells.permute(order).flatten(4).unflatten(4, (channels, -1)).mean(-1)
    return means.movedim(-1, 1)


def repeated(x: Tensor, channels: int, scale: Scale, *, first: bool) -> Tensor:
    """Spread channels over the cells of each `scale`, `(C' t y x)`, each repeated as often as that takes.

    Of a video's first frame only the last of its repetitions stays.

    Source: Wan2.2, `wan/modules/vae2_2.py` at bf69229, `DupUp3D`.
    """
    left, spread = x.shape[1] // channels, []
    for size in scale:
        spread.append(math.gcd(left, size))  # what is not spread over this dimension is repeated along it
        left //= spread[-1]
    cells: Tensor = x.unflatten(1, (channels, *spread))  # [B, C', t, y, x, F, Y, X]
    if x.stride(1) == 1:
        cells = cells.permute(0, 5, 2, 6, 3, 7, 4, 1)
        whole = cells.expand(-1, -1, scale[0], -1, scale[1], -1, scale[2], -1)
        out = whole.flatten(5, 6).flatten(3, 4).flatten(1, 2).movedim(-1, 1)
    else:
        whole = cells.permute(0, 1, 5, 2, 6, 3, 7, 4).expand(-1, -1, -1, scale[0], -1, scale[1], -1, scale[2])
        out = whole.flatten(6, 7).flatten(4, 5).flatten(2, 3)
    return out[:, :, scale[0] - 1 :] if first else out


def to_pictures(x: Tensor) -> Tensor:
    """Convert `[B, C, F, Y, X]` to `[B F, C, Y, X]`; a view if the channels are contiguous."""
    return x.transpose(1, 2).flatten(0, 1)


def to_video(x: Tensor, batch: int) -> Tensor:
    """Convert `[B F, C, Y, X]` to `[B, C, F, Y, X]`, a view."""
    return torch.unflatten(x, 0, (batch, -1)).transpose(1, 2)
