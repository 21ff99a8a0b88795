"""Queries, keys and values as a video transformer makes them: from one smooth field of tokens, normed, weighted and turned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_FIELD = 96
"""Channels of the field that queries, keys and values are made from."""
_SHARPNESS = (0.8, 3.2)
"""Standard deviation of a row's logits, of the first head and of the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Tokens of a call. Args: frames seen, the last `own` of which ask, of `height` x `width` tokens; heads of `dim` channels."""

    frames: int
    own: int
    height: int
    width: int
    heads: int
    dim: int = 128


def real_like(shape: Shape, device: str = "cpu", seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Draw q `[1, S_q, H, D]`, k and v `[1, S, H, D]` in bfloat16.

    Keys have a mean per head and channels far larger than others, heads attend from diffusely to sharply, and values have a mean
    and a scale per channel. q and k are RMS-normed over all heads and turned by RoPE over frame, row and column.
    """
    draw = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=draw, device=device)

    heads, dim = shape.heads, shape.dim
    coarse = normal(1, _FIELD, shape.frames, -(-shape.height // 4), -(-shape.width // 4))
    size = (shape.frames, shape.height, shape.width)
    field = torch.nn.functional.interpolate(coarse, size=size, mode="trilinear")[0].flatten(1).T  # [S, C]
    field = field / field.std() + 0.5 * normal(field.shape[0], _FIELD)
    shared = normal(_FIELD, heads, dim)
    outlier = (0.4 * normal(heads, dim // 2)).exp()
    outlier[:, torch.randperm(dim // 2, generator=torch.Generator().manual_seed(seed))[:3].to(device)] *= 4.0
    outlier = outlier.repeat_interleave(2, -1)  # both channels of a pair

    def projected(own_part: float, mean: float) -> Tensor:
        weight = (1 - own_part) * shared + own_part * normal(_FIELD, heads, dim)
        x = torch.einsum("sc,chd->shd", field, weight) / _FIELD**0.5 + mean * normal(heads, dim)
        return x / x.square().mean((1, 2), keepdim=True).sqrt()

    turn = _rope(size, dim, torch.device(device))
    own = shape.own * shape.height * shape.width
    q = _turned(projected(0.6, 0.5) * outlier.sqrt(), turn)[-own:]
    k = _turned(projected(0.6, 1.0) * outlier, turn)
    logits = torch.einsum("qhd,khd->hqk", q[:: -(-own // 256)], k[:: -(-k.shape[0] // 1024)]) / dim**0.5
    q = q * (torch.linspace(*_SHARPNESS, heads, device=device) / logits.std(-1).mean(-1))[:, None]
    v = torch.einsum("sc,chd->shd", field, normal(_FIELD, heads, dim)) / _FIELD**0.5
    v = (v + 0.4 * normal(*v.shape) + 0.7 * normal(heads, dim)) * (0.3 * normal(heads, dim)).exp()
    return tuple(x[None].bfloat16().contiguous() for x in (q, k, v))  # type: ignore[return-value]


def plain(shape: Shape, device: str = "cpu", seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Draw independent normal numbers of the same shapes: nothing to smooth, and an output that is an average of noise."""
    draw = torch.Generator(device).manual_seed(seed)
    tokens = shape.height * shape.width
    sizes = ((1, frames * tokens, shape.heads, shape.dim) for frames in (shape.own, shape.frames, shape.frames))
    return tuple(torch.randn(size, generator=draw, device=device).bfloat16() for size in sizes)  # type: ignore[return-value]


def _rope(size: tuple[int, int, int], dim: int, device: torch.device) -> Tensor:
    """Angles of each token and pair of channels `[S, 1, D / 2]`, as Wan splits them: a third for each axis, the rest for time."""
    pairs = dim // 2
    split = (pairs - 2 * (pairs // 3), pairs // 3, pairs // 3)
    parts = []
    for axis, count in enumerate(split):
        rates = 10000.0 ** (-torch.arange(count, device=device) / count)
        angle = torch.arange(size[axis], device=device)[:, None] * rates
        place = [1, 1, 1, count]
        place[axis] = size[axis]
        parts.append(angle.reshape(place).expand(*size, count))
    return torch.cat(parts, -1).reshape(-1, 1, pairs)


def _turned(x: Tensor, angle: Tensor) -> Tensor:
    real, imaginary = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), -1).flatten(-2)


def error(found: Tensor, expected: Tensor) -> float:
    """Return `||found - expected|| / ||expected||`."""
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()
