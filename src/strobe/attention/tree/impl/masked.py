"""Local attention under a mask by position, and the gradients of any local part, in plain PyTorch, a few queries at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from strobe.attention.tree.placement import Mask
from strobe.attention.types import AttentionOutput

SCORES_BYTES = 64 * 2**20
"""What the scores of one step may take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Visibility:
    """The rule by which a query sees a key, with the global positions of both.

    Args:
        mask: the rule.
        first_query: global position of query 0.
        keys: global positions of the keys, int64 `[S_kv]`.
    """

    mask: Mask
    first_query: int
    keys: Tensor

    def hidden(self, start: int, stop: int) -> Tensor | None:
        """Return True where query `start..stop` does not see a key, `[stop - start, S_kv]`; None if nothing can be hidden."""
        if not self.mask.hides:
            return None
        position = torch.arange(self.first_query + start, self.first_query + stop, device=self.keys.device).unsqueeze(1)
        hidden = torch.zeros(stop - start, len(self.keys), dtype=torch.bool, device=self.keys.device)
        if self.mask.causal:
            hidden |= self.keys > position
        if self.mask.window is not None:
            hidden |= ((self.keys - position).abs() >= self.mask.window) & (self.keys >= self.mask.sinks)
        return hidden


def masked_attention(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, softmax_scale: float) -> AttentionOutput:
    """Attend with hidden keys; a query that sees none has out 0 and lse -inf.

    Args:
        q: `[B, S_q, H, D]`.
        k: `[B, S_kv, H_kv, D]`, at least one key.
        v: `[B, S_kv, H_kv, Dv]`.

    Returns:
        `out` `[B, S_q, H, Dv]` float32 (float64 for float64); lse float32 `[B, H, S_q]`.
    """
    wide, keys, values = _wide(k), _grouped(k), _grouped(v)
    batch, q_len, num_heads, _ = q.shape
    out = wide.new_empty(batch, q_len, num_heads, v.shape[3])
    lse = torch.empty(batch, num_heads, q_len, dtype=torch.float32, device=q.device)
    for start, stop in _chunks(q, k):
        queries = _rows(q[:, start:stop], k.shape[2]) * softmax_scale  # [B, Hk, G * n, D]
        scores = queries @ keys.transpose(-1, -2)
        hidden = visibility.hidden(start, stop)
        if hidden is not None:
            scores.unflatten(2, (-1, stop - start)).masked_fill_(hidden, float("-inf"))
        top = scores.amax(dim=-1, keepdim=True)
        weights = scores.sub_(top.masked_fill(top.isneginf(), 0)).exp_()
        total = weights.sum(dim=-1, keepdim=True)  # 0 where no key is seen
        out[:, start:stop] = _unrows((weights @ values).div_(total.masked_fill(total == 0, 1)), stop - start)
        lse[:, :, start:stop] = (top + total.log()).reshape(batch, num_heads, stop - start)
    return AttentionOutput(out=out, lse=lse)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGradients:
    """The parts of the whole result that a query's gradient needs, whoever owns its keys.

    Args:
        d_out: gradient of out, `[B, S_q, H, Dv]`.
        lse: of the whole, `[B, H, S_q]`.
        delta: `rowsum(d_out * out) - d_lse` of the whole, `[B, H, S_q]`.
    """

    d_out: Tensor
    lse: Tensor
    delta: Tensor


def gradients(
    q: Tensor, k: Tensor, v: Tensor, rows: RowGradients, visibility: Visibility, softmax_scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients from one part of the keys: of all queries (to be summed over parts), and of these keys and values.

    `P = exp(s q k^T - L)`, `dV = P^T dO`, `dS = P * (dO V^T - delta)`, `dQ = s dS K`, `dK = s dS^T Q`.
    """
    wide, keys, values = _wide(k), _grouped(k), _grouped(v)
    num_kv_heads = k.shape[2]
    d_q = wide.new_zeros(q.shape)
    d_keys, d_values = torch.zeros_like(keys), torch.zeros_like(values)
    if k.shape[1] == 0:
        return d_q, torch.zeros_like(k), torch.zeros_like(v)
    for start, stop in _chunks(q, k):
        queries, d_out = _rows(q[:, start:stop], num_kv_heads), _rows(rows.d_out[:, start:stop], num_kv_heads)
        lse, delta = (each[:, :, start:stop].reshape(*queries.shape[:3], 1).to(wide.dtype) for each in (rows.lse, rows.delta))
        weights = torch.exp(queries @ keys.transpose(-1, -2) * softmax_scale - lse.masked_fill(lse.isneginf(), 0))
        hidden = visibility.hidden(start, stop)
        if hidden is not None:
            weights.unflatten(2, (-1, stop - start)).masked_fill_(hidden, 0)
        d_values += weights.transpose(-1, -2) @ d_out
        d_scores = weights * (d_out @ values.transpose(-1, -2) - delta) * softmax_scale
        d_q[:, start:stop] = _unrows(d_scores @ keys, stop - start)
        d_keys += d_scores.transpose(-1, -2) @ queries
    return d_q, d_keys.transpose(1, 2).to(k.dtype), d_values.transpose(1, 2).to(v.dtype)


def _chunks(q: Tensor, k: Tensor) -> Iterator[tuple[int, int]]:
    """Split the queries into runs whose scores fit into `SCORES_BYTES`."""
    row_bytes = q.shape[0] * q.shape[2] * k.shape[1] * _wide(q).element_size()
    step = max(1, SCORES_BYTES // max(1, row_bytes))
    return ((start, min(start + step, q.shape[1])) for start in range(0, q.shape[1], step))


def _wide(tensor: Tensor) -> Tensor:
    """Return an empty tensor of the dtype in which sums are computed, at least float32."""
    return tensor.new_empty(0, dtype=torch.promote_types(tensor.dtype, torch.float32))


def _grouped(tensor: Tensor) -> Tensor:
    """Convert `[B, S, Hk, D]` to wide `[B, Hk, S, D]`."""
    return tensor.transpose(1, 2).to(_wide(tensor).dtype)


def _rows(tensor: Tensor, num_kv_heads: int) -> Tensor:
    """Convert `[B, n, H, D]` to wide `[B, Hk, G * n, D]`: the queries of a group are rows of one product, no key is copied."""
    batch, number, num_heads, dim = tensor.shape
    rows = tensor.transpose(1, 2).reshape(batch, num_kv_heads, num_heads // num_kv_heads * number, dim)
    return rows.to(_wide(tensor).dtype)


def _unrows(tensor: Tensor, number: int) -> Tensor:
    """Convert `[B, Hk, G * n, D]` back to `[B, n, H, D]`."""
    rows: Tensor = tensor.unflatten(2, (-1, number)).flatten(1, 2)
    return rows.transpose(1, 2)
