"""Tensors of one rank, the contestants bound to them, and the float64 reference."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from strobe.attention.tree import KVShards, Links, tree_attention
from strobe.attention.tree.placement import split
from strobe.bench.cells import Attempt
from strobe.bench.tree.request import PEER, RankedCall, RankErrors
from strobe.core.errors import ImplUnavailableError
from strobe.core.libraries import broken

CHECKED_ROWS: Final = 64
"""Queries of every head that are compared with float64, evenly spaced."""
_ROUNDING: Final = {torch.float64: 0.0, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
_HALF_LSE: Final = 2.0**-13
"""Allowance for the lse of 16-bit tensors: the approximate error of exp in torch's CPU kernel."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RankShare:
    """One rank's share.

    Args:
        q: `[B, S_q, H, D]`, all queries, or this rank's rows.
        k, v: this rank's keys, `[B, S_r, H_kv, D]`, the rows of a head side by side.
        shards: who owns which.
        rows: rows of the result on this rank: `[start, stop)` of all queries.
        expected, expected_lse: float64, of the checked rows `[B, R, H, D]` and `[B, H, R]`.
        checked: rows of this rank's result that are checked.
        largest_v: absolute, of all keys.
    """

    shape: RankedCall
    q: Tensor
    k: Tensor
    v: Tensor
    shards: KVShards
    rows: tuple[int, int]
    checked: Tensor
    expected: Tensor
    expected_lse: Tensor
    largest_v: float


def draw(shape: RankedCall, rank: int, device: torch.device, seed: int) -> RankShare:
    """Draw the tensors, the same on every rank, and keep this rank's share and its expected result."""
    dtype = getattr(torch, shape.dtype)
    generator = torch.Generator(device).manual_seed(seed)

    def normal(rows: int, heads: int) -> Tensor:
        size = (shape.batch, heads, rows, shape.dim)
        return torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(dtype)

    q, k, v = normal(shape.q_len, shape.heads), normal(shape.seq_len, shape.kv_heads), normal(shape.seq_len, shape.kv_heads)
    spread = shape.placement == "sequence"
    rows = split(shape.q_len, shape.world_size)[rank] if spread else (0, shape.q_len)
    count = min(CHECKED_ROWS, rows[1] - rows[0])
    checked = torch.linspace(0, max(0, rows[1] - rows[0] - 1), count, device=device).round().long()
    expected, lse = exact(q[:, :, rows[0] : rows[1]][:, :, checked], k, v)
    start, stop = split(shape.seq_len, shape.world_size)[rank]
    queries = q[:, :, rows[0] : rows[1]] if spread else q
    return RankShare(
        shape=shape,
        q=queries.transpose(1, 2).contiguous(),
        k=k[:, :, start:stop].contiguous().transpose(1, 2),
        v=v[:, :, start:stop].contiguous().transpose(1, 2),
        shards=KVShards.even(shape.seq_len, shape.world_size),
        rows=rows,
        checked=checked,
        expected=expected.transpose(1, 2),
        expected_lse=lse,
        largest_v=float(v.abs().max()),
    )


def exact(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Compute dense attention in float64 by its definition, one key head at a time; `[B, H, S, D]` in and out, and the lse."""
    groups = q.shape[1] // k.shape[1]
    outs, lses = [], []
    for head in range(q.shape[1]):
        keys, values = k[:, head // groups].double(), v[:, head // groups].double()
        scores = q[:, head].double() @ keys.transpose(1, 2) * q.shape[3] ** -0.5
        lse = scores.logsumexp(-1)
        outs.append(torch.exp(scores - lse.unsqueeze(-1)) @ values)
        lses.append(lse)
    return torch.stack(outs, 1), torch.stack(lses, 1)


Run = Callable[[], Tensor]
"""One call; the result in `[B, S, H, D]`."""


def bind(name: str, inputs: RankShare, timeout_s: float, links: Links | None = None) -> Run:
    """Bind a contestant to this rank's tensors; `auto` chooses by the links.

    Raises:
        ImplUnavailableError: the peer is not installed, or has no such call.
    """
    if name == PEER:
        return _peer(inputs)
    call = partial(_ours, name, inputs, timeout_s, links=links)
    return lambda: call()[0]


def _ours(
    name: str, inputs: RankShare, timeout_s: float, return_lse: bool = False, links: Links | None = None
) -> tuple[Tensor, Tensor | None]:
    placement = inputs.shape.placement
    lengths = [stop - start for start, stop in split(inputs.shape.q_len, inputs.shape.world_size)]
    found = tree_attention(
        inputs.q,
        inputs.k,
        inputs.v,
        shards=inputs.shards,
        strategy=name,
        q_placement=placement,
        out_placement=placement,
        q_lengths=lengths if placement == "sequence" else None,
        return_lse=return_lse,
        links=links,
        timeout=timeout_s,
    )
    return found.out, found.lse


def _peer(inputs: RankShare) -> Run:
    """Bind `tree_attn_decode` of ring-attention-pytorch: three all-reduces, on the default group."""
    if why := broken("ring_attention_pytorch.tree_attn_decoding"):
        raise ImplUnavailableError(PEER, why)
    if inputs.shape.placement != "replicated":
        raise ImplUnavailableError(PEER, "its queries are replicated")
    module = importlib.import_module("ring_attention_pytorch.tree_attn_decoding")
    q, k, v = (each.transpose(1, 2) for each in (inputs.q, inputs.k, inputs.v))

    def run() -> Tensor:
        out: Tensor = module.tree_attn_decode(q, k, v, shard_kv_seq=False)
        return out.transpose(1, 2)

    return run


def check(name: str, inputs: RankShare, timeout_s: float) -> RankErrors:
    """Run a contestant once and compare this rank's rows with float64.

    The rounding of a weight is that of its lse and grows with it: a flat tolerance would be wrong at both ends.
    """
    lse: Tensor | None = None
    with Attempt() as attempt:
        if name == PEER:
            out = bind(name, inputs, timeout_s)()
        else:
            out, lse = _ours(name, inputs, timeout_s, return_lse=True)
    if attempt.reason:
        return RankErrors(refused=f"{'refused' if attempt.refused else 'failed'}: {attempt.reason}", impossible=attempt.refused)
    shape, expected = inputs.shape, inputs.expected
    wanted = (shape.batch, inputs.rows[1] - inputs.rows[0], shape.heads, shape.dim)
    if tuple(out.shape) != wanted or out.dtype != inputs.q.dtype:
        return RankErrors(error=float("inf"), limit=0.0)
    largest = float(inputs.expected_lse.abs().max()) if len(inputs.checked) else 0.0
    lse_error = 8 * 2.0**-24 * max(1.0, largest)
    rounding = 4 * _ROUNDING[inputs.q.dtype]
    missed = (out[:, inputs.checked].double() - expected).abs()
    found = None
    if lse is not None and len(inputs.checked):
        found = float((lse[:, :, inputs.checked].double() - inputs.expected_lse).abs().max())
    return RankErrors(
        error=float(missed.max()) if missed.numel() else 0.0,
        limit=(lse_error + 2 * rounding) * inputs.largest_v,
        lse_error=found,
        lse_limit=lse_error + (_HALF_LSE if inputs.q.dtype.itemsize == 2 else 0.0),
        bits=zlib.crc32(out.contiguous().view(torch.uint8).cpu().numpy().tobytes()),
    )
