"""The kernels as a layer calls them; that shapes fit together is asserted here, once per call.

Inference only. `impl` is "triton" or "reference"; see `impl/reference.py` for what each computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from strobe.core.errors import ConfigError, ImplUnavailableError, unknown_choice
from strobe.core.libraries import broken
from strobe.core.settings import read_settings
from strobe.eightbit.types import Quantized
from strobe.models.wan.kernels.custom_ops import call

KernelImpl = Literal["triton", "reference"]
IMPLS: tuple[KernelImpl, ...] = ("triton", "reference")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Affine:
    """Scale and shift after a layer norm: `normed * (1 + scale) + shift`, or `normed * scale + shift`.

    Args:
        scale, shift: `[B or 1, F or 1, dim]`, one row per sample and frame; the last dimension is contiguous.
        from_one: scale is what is added to one (modulation); False: it is the factor (a norm's own weight).
    """

    scale: Tensor
    shift: Tensor
    from_one: bool = True


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Turn:
    """Norm weights and rotation of queries and keys: RMS norm over the full width, then RoPE.

    Args:
        weight_q: of the norm of the queries `[dim]`; None: there are no queries, keys and values alone.
        weight_k: of the norm of the keys `[dim]`.
        rope: (cos, sin) of every token, float32 `[S, D / 2, 2]`.
        eps: of both norms.
    """

    weight_q: Tensor | None
    weight_k: Tensor
    rope: Tensor
    eps: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CacheRows:
    """The cache rows into which the keys and values of a pass go, in one layer.

    Args:
        keys, values: the whole buffers `[B, R, H, D]`; a row is contiguous.
        rows: row of each token, int64 `[S]`, on the device; -1: not written. No two tokens have the same.
    """

    keys: Tensor
    values: Tensor
    rows: Tensor


def check_impl(impl: str, device: torch.device) -> None:
    """Check that an impl runs on a device.

    Raises:
        ConfigError: no impl has that name.
        ImplUnavailableError: it does not.
    """
    if impl not in IMPLS:
        raise unknown_choice("impl of the kernels", impl, IMPLS)
    if impl == "reference":
        return
    if device.type != "cuda" and not read_settings().triton_interpret:
        raise ImplUnavailableError("triton", f"it needs a CUDA device, and this is {device}", alternatives=("reference",))
    if why := broken("triton.language"):
        raise ImplUnavailableError("triton", why, alternatives=("reference",))


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, impl: KernelImpl) -> Tensor:
    """Compute `x / sqrt(mean(x^2) + eps) * weight` over the last axis, statistics in float32.

    Args:
        x: `[..., dim]`.
        weight: `[dim]`.

    Raises:
        ConfigError: a gradient is wanted.
    """
    _check_inference(x)
    assert weight.shape == x.shape[-1:]
    out: Tensor = call("rms_norm", impl, x, weight, eps)
    return out


def norm_modulate(x: Tensor, after: Affine, eps: float, *, impl: KernelImpl, fp8: bool = False) -> Tensor | Quantized:
    """Compute the layer norm of `x [B, S, dim]`, then `after`, in float32, rounded once; with `fp8` quantised row by row.

    Raises:
        ConfigError: a gradient is wanted.
    """
    found = _norm(x, None, None, after, eps, impl, fp8)
    return Quantized(*found) if fp8 else found[0]


def add_gated_norm(
    x: Tensor, y: Tensor, gate: Tensor | None, after: Affine, eps: float, *, impl: KernelImpl, fp8: bool = False
) -> tuple[Tensor, Tensor | Quantized]:
    """Add `x + y * gate`, and compute its layer norm with `after`, with `fp8` quantised row by row.

    Args:
        x, y: `[B, S, dim]`.
        gate: `[B or 1, F or 1, dim]`; None: y is added as it is.

    Returns:
        The sum, rounded, and the norm of the rounded sum.

    Raises:
        ConfigError: a gradient is wanted.
    """
    assert y.shape == x.shape and y.dtype == x.dtype
    total, *found = _norm(x, y, gate, after, eps, impl, fp8)
    return total, Quantized(*found) if fp8 else found[0]


def gelu_quantize(x: Tensor, *, impl: KernelImpl) -> Quantized:
    """Compute `gelu(x)` by tanh, rounded to the dtype of `x [..., K]`, then quantise it row by row.

    Raises:
        ConfigError: a gradient is wanted.
    """
    _check_inference(x)
    return Quantized(*call("gelu_quantize", impl, x))


def qk_norm_rope(packed: Tensor, turn: Turn, num_heads: int, *, impl: KernelImpl) -> tuple[Tensor | None, Tensor, Tensor]:
    """Norm and rotate queries (None without `turn.weight_q`) and keys, with values `[B, S, H, D]`; nothing is written to a cache.

    Args:
        packed: queries, keys and values `[B, S, 3 * dim]`, or keys and values `[B, S, 2 * dim]`. The values returned are a view.

    Raises:
        ConfigError: a gradient is wanted.
    """
    dim = _check_turn(packed, turn, num_heads)
    found = call("turn", impl, packed, turn.weight_q, turn.weight_k, turn.rope, num_heads, turn.eps)
    return None if turn.weight_q is None else found[0], found[-1], packed[..., -dim:].unflatten(-1, (num_heads, -1))


def qk_norm_rope_write(packed: Tensor, turn: Turn, cache: CacheRows, *, impl: KernelImpl) -> Tensor | None:
    """Norm and rotate queries `[B, S, H, D]` (None without `turn.weight_q`), and keys, which go into the cache with the values.

    Args:
        packed: as for `qk_norm_rope`.

    Raises:
        ConfigError: a gradient is wanted.
    """
    _check_rows(packed, turn, cache)
    how = turn.weight_q, turn.weight_k, turn.rope
    q = call("turn_and_write", impl, packed, *how, cache.keys, cache.values, cache.rows, turn.eps)
    return None if turn.weight_q is None else q


def text_attention(q: Tensor, k: Tensor, v: Tensor, distinct: Tensor, *, impl: KernelImpl) -> Tensor:
    """Attend from queries `[B, S, H, D]` to all rows of a text whose last ones are equal: `[B, S, H, D]` in the dtype of q.

    With `n` distinct rows of `L`, row `n - 1` stands for itself and for all behind it, which are not read:
    `sum_j c_j exp(s_j) v_j / sum_j c_j exp(s_j)` over `j < n` with `s_j = q k_j / sqrt(D)`, `c_j = 1` but for
    `c_(n-1) = L - n + 1`; scores and sums in float32.

    Args:
        k, v: `[B, L, H, D]`.
        distinct: `n` of each sample, int32 `[B]`, 1 to L; not checked, it is on the device.

    Raises:
        ConfigError: a gradient is wanted.
    """
    for each in (q, k, v):
        _check_inference(each)
    assert k.shape == v.shape == (q.shape[0], k.shape[1], *q.shape[2:]) and k.dtype == v.dtype == q.dtype
    assert distinct.shape == q.shape[:1] and distinct.dtype == torch.int32
    out: Tensor = call("text_attention", impl, q, k, v, distinct)
    return out


def turn_keys(keys: Tensor, turns: Tensor, out: Tensor, *, impl: KernelImpl) -> None:
    """Rotate the first pairs of channels of keys into `out`, the same for every row, in float32, rounded once.

    A pair is channel `2i` + j channel `2i + 1`, multiplied by `(c + j s)`.

    Args:
        keys: `[L, B, S, H, D]`; the rows of a sample lie one after the other.
        turns: (cos, sin) of so many first pairs, float32 `[pairs, 2]`.
        out: as keys, and equal to them in all other channels, some of which are written again; or `keys` itself.

    Raises:
        ConfigError: a gradient is wanted.
    """
    _check_inference(keys)
    for rows in (keys, out):
        assert rows.dim() == 5 and rows.shape == keys.shape and rows.dtype == keys.dtype
        assert rows.stride()[2:] == (rows.shape[3] * rows.shape[4], rows.shape[4], 1), "rows of a sample lie one after the other"
    assert turns.dim() == 2 and turns.shape[0] <= keys.shape[4] // 2 and turns.shape[1] == 2 and turns.dtype == torch.float32
    call("turn_keys", impl, keys, turns, out)


def _norm(
    x: Tensor, y: Tensor | None, gate: Tensor | None, after: Affine, eps: float, impl: KernelImpl, fp8: bool
) -> list[Tensor]:
    _check_inference(x)
    batch, num_tokens, dim = x.shape
    tables = [table for table in (gate, after.scale, after.shift) if table is not None]
    frames = max(table.shape[1] for table in tables)
    for table in tables:
        assert table.dim() == 3 and table.shape[0] in (1, batch) and table.shape[1] in (1, frames) and table.shape[2] == dim
        assert num_tokens % frames == 0 and table.stride(2) == 1
    found: list[Tensor] = call("norm", impl, x, y, gate, after.scale, after.shift, after.from_one, eps, fp8)
    return found


def _check_turn(packed: Tensor, turn: Turn, num_heads: int) -> int:
    _check_inference(packed)
    dim, parts = turn.weight_k.shape[0], 2 if turn.weight_q is None else 3
    assert packed.dim() == 3 and packed.shape[2] == parts * dim and dim % num_heads == 0
    assert turn.weight_q is None or turn.weight_q.shape == turn.weight_k.shape
    assert turn.rope.shape == (packed.shape[1], dim // num_heads // 2, 2) and turn.rope.dtype == torch.float32
    return dim


def _check_rows(packed: Tensor, turn: Turn, cache: CacheRows) -> None:
    batch, _, num_heads, head_dim = cache.keys.shape
    dim = _check_turn(packed, turn, num_heads)
    for buffer in (cache.keys, cache.values):
        assert buffer.shape == cache.keys.shape and batch == packed.shape[0] and num_heads * head_dim == dim
        assert buffer.dtype == packed.dtype and buffer.stride()[2:] == (head_dim, 1), "heads of a row lie one after the other"
    assert cache.rows.shape == packed.shape[1:2] and cache.rows.dtype == torch.int64


def _check_inference(x: Tensor) -> None:
    if torch.is_grad_enabled() and x.requires_grad:
        raise ConfigError("the kernels have no gradients: call under torch.no_grad(), or train without use_kernels()")
