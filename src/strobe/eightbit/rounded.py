"""Queries, keys and values in eight bits for attention: what is kept of them, and the constants they are rounded with.

Keys lose one vector per head and values one number per channel: softmax does not see the first, and the second is added to the
output again, exactly, for the weights of a row sum to one. Any constants are right; means make the numbers small. Queries and
keys are turned by a Hadamard matrix first, which spreads channels that are larger than others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import torch
from torch import Tensor

INT8_MOST: Final = 127.0
FP8_MOST: Final = 448.0
BLOCK: Final = 128
"""Keys that are summed before their sum is added up in float32; rows of values are padded to whole blocks."""
ORDER: Final = tuple(16 * high + 8 * low + 2 * thread + each
                     for high in (0, 1) for thread in range(4) for low in (0, 1) for each in (0, 1))  # fmt: skip
"""Which key of 32 stands where among the values: the order in which a thread of Hopper's matrix units holds its weights."""
LOG2E: Final = 1.4426950408889634
SMALLEST: Final = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundedKeys:
    """Keys and values in eight bits, and what undoes it; made by `round_keys`.

    Args:
        keys: int8 `[B, H_kv, S, D]`: `(k T - key_mean) / key_scale`, where `T` is `hadamard(D)`. They may be the first S
            rows of more.
        values: FP8 (e4m3) `[B, H_kv, D, W]`: `(v - value_mean) / value_scale`, W is S rounded up to 128, or more; `ORDER` says
            where a key stands; what is beyond S is finite, and never counts.
        key_mean: float32 `[B, H_kv, D]`.
        key_scale: float32 `[B, H_kv]`.
        value_mean: float32 `[B, H_kv, D]`.
        value_scale: float32 `[B, H_kv, D]`.
    """

    keys: Tensor
    values: Tensor
    key_mean: Tensor
    key_scale: Tensor
    value_mean: Tensor
    value_scale: Tensor


class RoundedQueries(NamedTuple):
    """Queries in eight bits; made by `round_queries` for keys of certain constants.

    Args:
        values: int8 `[B, H, S_q, D]`: `q T / scale`, with a scale per query and head.
        scale: float32 `[B, H, S_q]`: logits in units of log 2 are `values . keys * scale`; it takes in that of the keys.
        taken: float32 `[B, H, S_q]`: the logits, in natural units, of the mean that the keys lost; None: not asked for.
        dtype: of the queries, and of what attention returns.
        softmax_scale: taken in by `scale`.
    """

    values: Tensor
    scale: Tensor
    taken: Tensor | None
    dtype: torch.dtype
    softmax_scale: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BlockBudget:
    """How many blocks of `BLOCK` keys each tile of 128 queries attends to, and which all of them take.

    Args:
        number: blocks of each tile, at least 1.
        always: those that are always taken, at most `number`, boolean `[N_kv]`.
    """

    number: int
    always: Tensor


class Arriving(NamedTuple):
    """Keys and values on their way to rows of `RoundedKeys`.

    Args:
        k: `[B, T, H_kv, D]`, any strides but 1 for the last.
        v: like k; None: values stay as they are.
        rows: int64 `[T]` on the device, the row of each; -1: not stored. T is a multiple of `run`, and each `run` of tokens goes
            to rows that follow each other, or nowhere.
        run: see `rows`.
    """

    k: Tensor
    v: Tensor | None
    rows: Tensor
    run: int


def turned_together(head_dim: int) -> int:
    """Return how many channels the Hadamard matrix mixes: the largest power of two that divides their number."""
    return head_dim & -head_dim


@lru_cache(maxsize=8)
def hadamard(head_dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the symmetric Hadamard matrix of ones and minus ones, by Sylvester, of `turned_together` channels, block by block.

    Its square is `turned_together` times the identity.
    """
    matrix, size = torch.ones(1, 1), turned_together(head_dim)
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    whole: Tensor = torch.block_diag(*[matrix] * (head_dim // size))
    return whole.to(device, dtype)


def constants(kept: RoundedKeys) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return means and scales of keys, then of values."""
    return kept.key_mean, kept.key_scale, kept.value_mean, kept.value_scale


def measured(k: Tensor, v: Tensor, room: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Measure `constants` of keys and values `[B, S, H_kv, D]`, S at least 1.

    Args:
        room: how much larger later keys and values may be than these.
    """
    turned = k.transpose(1, 2).float() @ hadamard(k.shape[3], k.device, torch.float32)  # [B, H_kv, S, D]
    key_mean = turned.mean(2)
    key_most = turned.sub_(key_mean[:, :, None]).abs_().amax((2, 3))
    wide = v.to(torch.float32, copy=True)
    value_mean = wide.mean(1)
    value_most = wide.sub_(value_mean[:, None]).abs_().amax(1)
    key_scale, value_scale = key_most.clamp_min(SMALLEST) * (room / INT8_MOST), value_most.clamp_min(SMALLEST) * (room / FP8_MOST)
    return key_mean, key_scale, value_mean, value_scale


def unfilled(k: Tensor, v: Tensor, room: float) -> RoundedKeys:
    """Measure the constants of keys and values `[B, S, H_kv, D]` and allocate the rounded ones, as zeros.

    Args:
        room: as of `measured`.
    """
    batch, count, heads, dim = k.shape
    some = (k, v) if count else (k.new_zeros(batch, 1, heads, dim),) * 2  # any constants are right
    key_mean, key_scale, value_mean, value_scale = measured(*some, room)
    with torch.inference_mode(False):  # rows may be replaced later, in whatever mode
        keys = torch.zeros(batch, heads, count, dim, dtype=torch.int8, device=k.device)
        values = torch.zeros(batch, heads, dim, padded(count), device=k.device).to(torch.float8_e4m3fn)
    return RoundedKeys(
        keys=keys, values=values, key_mean=key_mean, key_scale=key_scale, value_mean=value_mean, value_scale=value_scale
    )


def padded(count: int) -> int:
    """Return how many columns the values of so many keys take."""
    return -(-count // BLOCK) * BLOCK
