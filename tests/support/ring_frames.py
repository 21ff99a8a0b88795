"""Frames with keys and values that depend only on their number, layer and version, and passes that write them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from strobe.cache.kv import CacheShape

SHAPE = CacheShape(num_layers=2, batch=2, tokens_per_frame=3, num_heads=2, head_dim=4)


def turn(keys: Tensor, frames: int) -> Tensor:
    """Rotate the first channel pair of [B, S, H, D] by 0.3 radians per frame."""
    angle = torch.tensor(0.3 * frames, dtype=torch.float64)
    cos, sin = angle.cos(), angle.sin()
    first, second = keys[..., 0].double(), keys[..., 1].double()
    turned = torch.stack([cos * first - sin * second, sin * first + cos * second], dim=-1).to(keys.dtype)
    return torch.cat([turned, keys[..., 2:]], dim=-1)


def turn_into(keys: Tensor, frames: int, out: Tensor) -> None:
    """Rotate the first channel pair into `out`, and write nothing else, as a cache expects."""
    out[..., :2] = turn(keys, frames)[..., :2]


def content(frames: tuple[int, ...] | range, layer: int, version: int = 0) -> Tensor:
    """Return unrotated keys or values [B, F*N, H, D] that depend on frame, layer and version only."""
    return torch.cat([frame_content(frame, layer, version) for frame in frames], dim=1)


@functools.cache
def frame_content(frame: int, layer: int, version: int) -> Tensor:
    generator = torch.Generator().manual_seed(frame + 1000 * layer + 100_000 * version)
    return torch.randn(SHAPE.batch, SHAPE.tokens_per_frame, 2, 4, generator=generator)


def turned_content(frames: tuple[int, ...] | range, positions: tuple[int, ...] | range, layer: int, version: int = 0) -> Tensor:
    pairs = zip(frames, positions, strict=True)
    return torch.cat([turned_frame(frame, position, layer, version) for frame, position in pairs], dim=1)


@functools.cache
def turned_frame(frame: int, position: int, layer: int, version: int) -> Tensor:
    return turn(frame_content(frame, layer, version), position)


def write(step: Any, version: int = 0) -> list[tuple[Tensor, Tensor]]:
    keys = [turned_content(step.positions, step.positions, layer, version) for layer in range(SHAPE.num_layers)]
    values = [content(step.positions, layer, version + 50) for layer in range(SHAPE.num_layers)]
    return [step.write(layer, keys[layer], values[layer]) for layer in range(SHAPE.num_layers)]


def frame_set(values: Tensor) -> list[tuple[float, ...]]:
    """Sort the rows of frames, so that they do not depend on slots."""
    rows = values.unflatten(1, (-1, SHAPE.tokens_per_frame)).transpose(0, 1).flatten(1)
    return sorted(tuple(row.tolist()) for row in rows)


def stored_bytes(cache: Any) -> int:
    """Count the bytes of the tensors in which a cache keeps keys and values, those that share a storage once."""
    cache = getattr(cache, "_ring", cache)
    turned = (keys for _, keys in getattr(cache, "_turned", {}).values())
    parts = (*cache._held(), *vars(cache).values(), getattr(getattr(cache, "_tiled", None), "means", None), *turned)
    storages = (each.untyped_storage() for each in parts if isinstance(each, Tensor) and each.dim() > 1 and each.numel())
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())
