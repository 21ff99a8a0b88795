"""Keys and values in eight bits: what is kept of them, and the constants that they are rounded with.

Keys lose one vector per head and values one number per channel: softmax does not see the first, and the second is added to the
output again, exactly, for the weights of a row sum to one. Any constants are right; means make the numbers small. Queries and
keys are turned by a Hadamard matrix first, which spreads channels that are larger than others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

INT8_MOST: Final = 127.0
FP8_MOST: Final = 448.0
BLOCK: Final = 128
"""Keys that are summed before their sum is added up in float32; rows of values are padded to whole blocks."""
ORDER: Final = tuple(16 * high + 8 * low + 2 * thread + each
                     for high in (0, 1) for thread in range(4) for low in (0, 1) for each in (0, 1))  # fmt: skip
"""Which key of 32 stands where among the values: the order in which a thread of Hopper's matrix units holds its weights."""
_SMALLEST: Final = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundedKeys:
    """Keys and values in eight bits, and what undoes it; made by `round_keys`.

    Args:
        keys: int8 `[B, H_kv, S, D]`: `(k T - key_mean) / key_scale`, where `T` is the Hadamard matrix of ones and minus ones.
        values: FP8 (e4m3) `[B, H_kv, D, W]`: `(v - value_mean) / value_scale`, W is S rounded up to 128; `ORDER` says where a key
            stands; what is beyond S is 0.
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


@lru_cache(maxsize=8)
def hadamard(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the symmetric Hadamard matrix of ones and minus ones of a power of two, by Sylvester; its square is `size`."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix.to(device, dtype)


def unfilled(k: Tensor, v: Tensor, room: float) -> RoundedKeys:
    """Measure the constants of keys and values `[B, S, H_kv, D]` and allocate the rounded ones, as zeros.

    Args:
        room: how much larger later keys and values may be than these.
    """
    batch, count, heads, dim = k.shape
    if count == 0:
        k = v = k.new_zeros(batch, 1, heads, dim)  # any constants are right
    turned = k.transpose(1, 2).float() @ hadamard(dim, k.device, torch.float32)  # [B, H_kv, S, D]
    key_mean = turned.mean(2)
    value_mean = v.float().mean(1)
    with torch.inference_mode(False):  # rows may be replaced later, in whatever mode
        keys = torch.zeros(batch, heads, count, dim, dtype=torch.int8, device=k.device)
        values = torch.zeros(batch, heads, dim, -(-count // BLOCK) * BLOCK, device=k.device).to(torch.float8_e4m3fn)
    return RoundedKeys(
        keys=keys,
        values=values,
        key_mean=key_mean,
        key_scale=(turned - key_mean[:, :, None]).abs().amax((2, 3)).clamp_min(_SMALLEST) * (room / INT8_MOST),
        value_mean=value_mean,
        value_scale=(v.float() - value_mean[:, None]).abs().amax(1).clamp_min(_SMALLEST) * (room / FP8_MOST),
    )
