"""Rounding for attention in eight bits, in plain PyTorch: the specification. See `strobe.eightbit.rounding`."""

from __future__ import annotations

import torch
from torch import Tensor

from strobe.eightbit.rounded import FP8_MOST, INT8_MOST, LOG2E, ORDER, SMALLEST, Arriving, RoundedKeys, hadamard, turned_together


def store(kept: RoundedKeys, new: Arriving) -> None:
    """See `rounding.store`."""
    stored = new.rows >= 0
    rows, k = new.rows[stored], new.k[:, stored]
    turned = k.transpose(1, 2).float() @ hadamard(k.shape[3], k.device, torch.float32)
    keys = (turned - kept.key_mean[:, :, None]) / kept.key_scale[:, :, None, None]
    kept.keys[:, :, rows] = keys.round().clamp(-INT8_MOST, INT8_MOST).to(torch.int8)
    if new.v is not None:
        values = new.v[:, stored].permute(0, 2, 3, 1).float()  # [B, H_kv, D, T]
        values = (values - kept.value_mean[..., None]) / kept.value_scale[..., None]
        there = places(kept.values)[rows]
        kept.values.view(torch.int8)[..., there] = values.clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn).view(torch.int8)


def places(values: Tensor) -> Tensor:
    """Return the place of each key among the values."""
    order = torch.tensor(ORDER, device=values.device).argsort()
    groups = torch.arange(0, values.shape[3], len(ORDER), device=values.device)
    return (groups[:, None] + order).flatten()


def round_queries(
    q: Tensor, kept: RoundedKeys, softmax_scale: float, new: Arriving | None, with_taken: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """See `rounding.round_queries`; float64 for float64 queries."""
    if new is not None:
        store(kept, new)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups, dim, norm = q.shape[2] // kept.keys.shape[1], q.shape[3], turned_together(q.shape[3])
    turned = q.transpose(1, 2).to(wide) @ hadamard(dim, q.device, wide)  # [B, H, S_q, D]
    largest = turned.abs().amax(-1).clamp_min(SMALLEST)
    values = (turned * (INT8_MOST / largest)[..., None]).round().clamp(-INT8_MOST, INT8_MOST).to(torch.int8)
    key_scale, key_mean = (each.to(wide).repeat_interleave(groups, dim=1) for each in (kept.key_scale, kept.key_mean))
    scale = largest / INT8_MOST * key_scale[..., None] * (softmax_scale * LOG2E / norm)
    taken = (turned @ key_mean[..., None])[..., 0] * (softmax_scale / norm) if with_taken else None
    return values, scale, taken
