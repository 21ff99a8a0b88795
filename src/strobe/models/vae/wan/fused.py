"""A decoder whose residual blocks run in kernels of ours: norms, SiLU, bias and skip beside their convolutions."""

from __future__ import annotations

from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor, nn

from strobe.models.vae.kernels import api
from strobe.models.vae.kernels.api import Impl
from strobe.models.vae.stream import Memories, check_stream
from strobe.models.vae.wan.layers import Coder, LayerMemories, ResidualBlock, SkippedStage, Upsample


def decode(coder: Coder, x: Tensor, memories: Memories, *, first: bool, impl: Impl) -> tuple[Tensor, Memories]:
    """Run a piece `[B, C, F, Y, X]` of a stream through a decoder, as the decoder itself does, in kernels where they fit."""
    past = LayerMemories(memories, first=first)
    x = _through((*coder.middle, *coder.stages), coder.enter(x, past), past, impl)
    pixels = _dense(x.movedim(1, -1))
    seen, after, _ = api.norm(pixels, None, coder.norm.gamma, _before(pixels, past), impl=impl)
    past.after.append(after.movedim(-1, 1))
    assert coder.leave.bias is not None
    return api.leave(seen, coder.leave.weight, coder.leave.bias, impl=impl).movedim(-1, 1), tuple(past.after)


def _through(layers: Iterable[nn.Module], x: Tensor, past: LayerMemories, impl: Impl) -> Tensor:
    """Run layers on `[B, C, F, Y, X]`; residual blocks keep the border, and add the bias of an upsampling before them."""
    bordered, bias, run = None, None, list(layers)
    for layer, following in zip(run, (*run[1:], None), strict=True):
        if isinstance(layer, ResidualBlock) and _fits(layer):
            bordered = _block(layer, x.movedim(1, -1), bias, bordered, past, impl)
            x = bordered[:, :, 1:-1, 1:-1].movedim(-1, 1)
            bias = None
            continue
        if isinstance(layer, SkippedStage):
            x = layer.join(x, _through(layer.layers, x, past, impl), first=past.first)
        elif isinstance(layer, Upsample) and isinstance(following, ResidualBlock) and _fits(following):
            x, bias = _grown(layer, x, bordered, past), layer.conv.bias
        else:
            x = layer(x, past)
        bordered = None
    return x


def _grown(layer: Upsample, x: Tensor, bordered: Tensor | None, past: LayerMemories) -> Tensor:
    """Upsample without the bias; with its border, if that is there, because then nothing is copied."""
    if bordered is None or layer.time_conv is not None:
        return layer.forward(x, past, biased=False)
    return layer.forward(bordered.movedim(-1, 1), past, biased=False)[..., 2:-2, 2:-2]


def _fits(block: ResidualBlock) -> bool:
    return all(api.fits(conv.in_channels, conv.out_channels) for conv in (block.conv1, block.conv2))


def _block(
    block: ResidualBlock, x: Tensor, bias: Tensor | None, bordered: Tensor | None, past: LayerMemories, impl: Impl
) -> Tensor:
    """Run a residual block on `x + bias`, `[B, F, Y, X, C]`, with border too if it comes from a block; the result has one."""
    x = _dense(x)
    one, two, gamma = block.conv1, block.conv2, block.norm2.gamma
    assert one.bias is not None and two.bias is not None
    seen, after, copy = api.norm(x, bias, block.norm1.gamma, _before(x, past), copied=bordered is None, impl=impl)
    past.after.append(after.movedim(-1, 1))
    if one.out_channels <= api.WHOLE:
        seen, after = api.convolve_norm(seen, one.weight, one.bias, gamma, _before(x, past), impl=impl)
    else:
        made = api.convolve(seen, one.weight, one.bias, impl=impl)[:, :, 1:-1, 1:-1]
        seen, after, _ = api.norm(made, None, gamma, _before(x, past), impl=impl)
    past.after.append(after.movedim(-1, 1))
    short, skip = block.shortcut, copy if bordered is None else bordered
    assert skip is not None
    skip = skip if short is None else F.linear(skip, short.weight.flatten(1), short.bias)
    return api.convolve(seen, two.weight, two.bias, skip, impl=impl)


def _dense(x: Tensor) -> Tensor:
    """Lay a pixel's channels side by side; the strides of a single frame may leave its layout open."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _before(x: Tensor, past: LayerMemories) -> Tensor | None:
    """Return what the next layer remembers, `[B, 2, Y, X, C]`."""
    memory = past.before[len(past.after)]
    if memory is None:
        return None
    check_stream(x.movedim(-1, 1), memory)
    return memory.movedim(1, -1).contiguous()
