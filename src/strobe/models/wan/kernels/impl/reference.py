"""The kernels in plain PyTorch: the definition of the values, and of each rounding to the dtype of the input."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from strobe.eightbit.impl.reference import quantize_rows
from strobe.models.wan.layers import rotate, turn_first


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute `x / sqrt(mean(x^2) + eps) * weight`: statistics in float32, rounded before the weight and after it."""
    return F.rms_norm(x.float(), (x.shape[-1],), eps=eps).to(x.dtype) * weight.to(x.dtype)


def turn(
    packed: Tensor, weight_q: Tensor | None, weight_k: Tensor, rope: Tensor, num_heads: int, eps: float
) -> tuple[Tensor | None, Tensor]:
    """Norm queries, if asked for, and keys `[B, S, H, D]` over the full width, and rotate them in float32.

    Args:
        packed: `[B, S, 3 * dim]`, queries, keys and values; without `weight_q` `[B, S, 2 * dim]`, keys and values.
        weight_q, weight_k: of the norms, `[dim]`.
        rope: (cos, sin), float32 `[S, D / 2, 2]`.
    """
    *q, k, _ = packed.chunk(2 if weight_q is None else 3, dim=-1)
    heads = (num_heads, -1)
    keys = rotate(rms_norm(k, weight_k, eps).unflatten(-1, heads), rope)
    return None if weight_q is None else rotate(rms_norm(q[0], weight_q, eps).unflatten(-1, heads), rope), keys


def turn_and_write(
    packed: Tensor,
    weight_q: Tensor | None,
    weight_k: Tensor,
    rope: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    eps: float,
) -> Tensor | None:
    """Run `turn`, and store keys and values in `keys` and `values` `[B, R, H, D]` at `rows` int64 `[S]`, unless negative."""
    q, k = turn(packed, weight_q, weight_k, rope, keys.shape[2], eps)
    kept = rows >= 0
    v = packed[..., -weight_k.shape[0] :].unflatten(-1, keys.shape[2:])
    for buffer, new in ((keys, k), (values, v)):
        buffer.index_copy_(1, rows[kept], new[:, kept])
    return q


def turn_keys(keys: Tensor, turns: Tensor, out: Tensor) -> None:
    """Rotate the first pairs of channels of keys `[L, B, S, H, D]` into `out`, in float32 by (cos, sin) `[pairs, 2]`."""
    turn_first(keys, turns, out)


def norm(
    x: Tensor,
    y: Tensor | None,
    gate: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    from_one: bool,
    eps: float,
    fp8: bool,
) -> list[Tensor]:
    """Compute the layer norm of `x`, or of the new `x = x + y * gate`, then apply one factor and one summand per row.

    `layer_norm(x) * factor + shift` in float32, rounded once, with factor `1 + scale`, rounded as `scale` is, or `scale`. The new
    `x` is rounded before its norm.

    Args:
        x, y: `[B, S, dim]`.
        gate, scale, shift: `[B or 1, F or 1, dim]`, each for `S / F` tokens in a row; without a gate y is added as it is.
        from_one: scale is what is added to one.
        fp8: the rounded result is quantised row by row.

    Returns:
        The new x, if there is a y; the result, or its values and its scales `[B, S, 1]`.
    """
    found = []
    if y is not None:
        x = x + y if gate is None else torch.addcmul(x, y, _rows(gate.to(x.dtype), x))
        found.append(x)
    factor = (1 + scale if from_one else scale).to(x.dtype)
    normed = F.layer_norm(x.float(), (x.shape[-1],), eps=eps)
    result = torch.addcmul(_rows(shift.to(x.dtype), x).float(), normed, _rows(factor, x).float()).to(x.dtype)
    return [*found, *(quantize_rows(result, torch.float8_e4m3fn) if fp8 else (result,))]


def gelu_quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise the rows of `gelu(x)` to FP8 values and scales; GELU is by tanh, rounded to the dtype of x."""
    return quantize_rows(F.gelu(x, approximate="tanh"), torch.float8_e4m3fn)


def text_attention(q: Tensor, k: Tensor, v: Tensor, distinct: Tensor) -> Tensor:
    """Attend in float32 from queries `[B, S, H, D]` to keys and values `[B, L, H, D]`.

    The first `distinct[b]` rows are read; the last of them stands for all rows behind it too.
    """
    last, rows = distinct[:, None] - 1, torch.arange(k.shape[1], device=k.device)
    counts = torch.where(rows == last, k.shape[1] - last, 1).log().masked_fill(rows > last, float("-inf"))  # [B, L]
    read = (rows <= last)[:, None, :, None]
    queries, keys, values = (each.transpose(1, 2).float() for each in (q, k, v))
    keys, values = (torch.where(read, each, 0.0) for each in (keys, values))
    scores = queries @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5 + counts[:, None, None]
    out: Tensor = scores.softmax(-1) @ values
    return out.transpose(1, 2).to(q.dtype).contiguous()


def _rows(table: Tensor, x: Tensor) -> Tensor:
    """Repeat the rows of a table `[B or 1, F or 1, dim]` for the tokens of x: `[B or 1, S or 1, dim]`."""
    return table if table.shape[1] == 1 else table.repeat_interleave(x.shape[1] // table.shape[1], dim=1)
