"""FLOPs and bytes of a shape: what an operation must compute and move, whoever implements it. Plain ints, no torch.

* FLOPs are those of matrix products and convolutions, a multiply-add counted as two. Norms, softmax and other elementwise work
  count as bytes only: peaks of devices are matrix peaks, and that work is bound by memory.
* Bytes are the least that a fused kernel must move: every input read once, every output written once. Real traffic is never less.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from strobe.core.errors import ConfigError, ShapeError

DTYPE_BYTES: Final[dict[str, int]] = {
    "float64": 8,
    "float32": 4,
    "tfloat32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8": 1,
    "int8": 1,
}
"""Bytes of an element by canonical name. `tfloat32` is float32 in memory, multiplied in TF32."""

_SPELLINGS: Final = (
    (r"float64|fp64|f64|double", "float64"),
    (r"tfloat32|tf32", "tfloat32"),
    (r"float32|fp32|f32|float", "float32"),
    (r"bfloat16|bf16", "bfloat16"),
    (r"float16|fp16|f16|half", "float16"),
    (r"float8\w*|fp8\w*|f8\w*", "float8"),
    (r"int8|i8|signed char|char", "int8"),
)


def parse_dtype(name: str) -> str | None:
    """Return the canonical name of a dtype, a key of `DTYPE_BYTES`; None if the spelling is unknown.

    Spellings are those of torch (`torch.bfloat16`), of traces (`c10::BFloat16`) and of people (`bf16`).
    """
    word = re.sub(r"^(torch\.|c10::)", "", name.strip(), flags=re.IGNORECASE)
    return next((dtype for pattern, dtype in _SPELLINGS if re.fullmatch(pattern, word, re.IGNORECASE)), None)


def element_bytes(dtype: str) -> int:
    """Return the bytes of one element.

    Raises:
        ConfigError: no dtype of that name.
    """
    known = parse_dtype(dtype)
    if known is None:
        raise ConfigError(f"unknown dtype {dtype!r}; allowed: {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[known]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """FLOPs and bytes of an operation; costs add, and multiply with a number of calls.

    Args:
        flops: floating-point operations of matrix products and convolutions.
        read_bytes: bytes that must be read at least.
        write_bytes: bytes that must be written at least.
    """

    flops: int = 0
    read_bytes: int = 0
    write_bytes: int = 0

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written together."""
        return self.read_bytes + self.write_bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            flops=self.flops + other.flops,
            read_bytes=self.read_bytes + other.read_bytes,
            write_bytes=self.write_bytes + other.write_bytes,
        )

    def __mul__(self, calls: int) -> Cost:
        return Cost(flops=self.flops * calls, read_bytes=self.read_bytes * calls, write_bytes=self.write_bytes * calls)

    __rmul__ = __mul__


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 0:
            raise ShapeError(f"{name}: got {size}, a size is 0 or more")


# ----------------------------------------------------------------------------------------------------------- operations


def matmul(m: int, k: int, n: int, *, dtype: str, batch: int = 1) -> Cost:
    """Compute the cost of `batch` products `[m, k] @ [k, n]`: `2 m k n` FLOPs each.

    Raises:
        ShapeError: a size is negative.
        ConfigError: unknown dtype.
    """
    _check(m=m, k=k, n=n, batch=batch)
    size = element_bytes(dtype)
    return Cost(flops=2 * batch * m * k * n, read_bytes=batch * (m * k + k * n) * size, write_bytes=batch * m * n * size)


def linear(tokens: int, in_features: int, out_features: int, *, dtype: str, bias: bool = True) -> Cost:
    """Compute the cost of `x [tokens, in] @ W [in, out] (+ b)`: `2 tokens in out` FLOPs."""
    cost = matmul(tokens, in_features, out_features, dtype=dtype)
    return cost + Cost(read_bytes=out_features * element_bytes(dtype) if bias else 0)


def elementwise(elements: int, *, dtype: str, inputs: int = 1, outputs: int = 1) -> Cost:
    """Compute the cost of a fused pass over `elements`: `inputs` tensors read, `outputs` written, no FLOPs of matrix products."""
    _check(elements=elements, inputs=inputs, outputs=outputs)
    size = element_bytes(dtype)
    return Cost(read_bytes=inputs * elements * size, write_bytes=outputs * elements * size)


def norm(tokens: int, dim: int, *, dtype: str) -> Cost:
    """Compute the cost of a norm over the last axis with its affine part fused: every element read and written once."""
    return elementwise(tokens * dim, dtype=dtype) + Cost(read_bytes=2 * dim * element_bytes(dtype))


def conv(
    positions: int, in_channels: int, out_channels: int, *, taps: int, dtype: str, inputs: int | None = None, bias: bool = True
) -> Cost:
    """Compute the cost of a convolution with `taps` weights per channel pair (27 for 3x3x3): `2 positions in out taps` FLOPs.

    Args:
        positions: of the output.
        inputs: positions of the input; default: as many.
        bias: whether one number per output channel is added.
    """
    _check(positions=positions, in_channels=in_channels, out_channels=out_channels, taps=taps)
    size = element_bytes(dtype)
    given = positions if inputs is None else inputs
    weights = in_channels * out_channels * taps + (out_channels if bias else 0)
    return Cost(
        flops=2 * positions * in_channels * out_channels * taps,
        read_bytes=(given * in_channels + weights) * size,
        write_bytes=positions * out_channels * size,
    )


# ------------------------------------------------------------------------------------------------------------ attention


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionShape:
    """One attention call over `[B, S, H, D]`.

    Args:
        q_tokens, kv_tokens: length of the queries, of the keys and values.
        num_kv_heads: heads of keys and values; default: as many as of the queries.
    """

    q_tokens: int
    kv_tokens: int
    num_heads: int
    head_dim: int
    batch: int = 1
    num_kv_heads: int | None = None

    @property
    def pairs(self) -> int:
        """Number of (query token, key token) pairs of a dense call, over all heads and samples."""
        return self.batch * self.num_heads * self.q_tokens * self.kv_tokens


def attention(shape: AttentionShape, *, dtype: str, pairs: int | None = None) -> Cost:
    """Compute the cost of fused attention: `4 D` FLOPs for every pair of query and key token that meet (two products of `2 D`).

    Args:
        pairs: pairs computed, over all heads and samples: `block_mask_pairs` of the actual mask. None: dense, all of them. Bytes
            are those of the dense call: a sparse one reads no more, and which keys nobody selected is not known from the count.

    Raises:
        ShapeError: more pairs than a dense call has.
    """
    dense = shape.pairs
    computed = dense if pairs is None else pairs
    if not 0 <= computed <= dense:
        raise ShapeError(f"pairs: got {computed}, a dense call of this shape has {dense}")
    size = element_bytes(dtype)
    kv_heads = shape.num_heads if shape.num_kv_heads is None else shape.num_kv_heads
    queries = shape.batch * shape.q_tokens * shape.num_heads * shape.head_dim
    keys = shape.batch * shape.kv_tokens * kv_heads * shape.head_dim
    return Cost(flops=4 * shape.head_dim * computed, read_bytes=(queries + 2 * keys) * size, write_bytes=queries * size)


def attention_backward(shape: AttentionShape, *, dtype: str, pairs: int | None = None) -> Cost:
    """Compute the cost of attention's gradients: `10 D` FLOPs per pair that meets (scores again, and four gradients, `2 D` each).

    Bytes: queries, keys, values, the output and its gradient are read, three gradients are written.

    Raises:
        ShapeError: more pairs than a dense call has.
    """
    forward = attention(shape, dtype=dtype, pairs=pairs)
    queries = forward.write_bytes
    return Cost(flops=forward.flops // 2 * 5, read_bytes=forward.read_bytes + 2 * queries, write_bytes=forward.read_bytes)


def block_mask_pairs(block_mask: Sequence[Sequence[object]], q_sizes: Sequence[int], kv_sizes: Sequence[int]) -> int:
    """Count the (query token, key token) pairs that a block mask selects in one head: `sum mask[i][j] q_sizes[i] kv_sizes[j]`.

    Args:
        block_mask: true where query block i attends to key block j (`tensor.tolist()` of a boolean mask).
        q_sizes, kv_sizes: tokens of each block; edge blocks are smaller, so a share of blocks is not a share of pairs.

    Raises:
        ShapeError: the mask does not have one row per query block and one column per key block.
    """
    if len(block_mask) != len(q_sizes) or any(len(row) != len(kv_sizes) for row in block_mask):
        raise ShapeError(f"block_mask: expected {len(q_sizes)} rows of {len(kv_sizes)} blocks, one per block size")
    return sum(
        rows * sum(columns for selected, columns in zip(row, kv_sizes, strict=True) if selected)
        for row, rows in zip(block_mask, q_sizes, strict=True)
    )


def kv_write(tokens: int, num_heads: int, head_dim: int, *, dtype: str) -> Cost:
    """Compute the cost of writing new keys and values to a cache: both are read once and written once."""
    return elementwise(2 * tokens * num_heads * head_dim, dtype=dtype)


def kv_read(tokens: int, num_heads: int, head_dim: int, *, dtype: str) -> Cost:
    """Compute the cost of reading the keys and values of a window once, as the attention kernel does."""
    return Cost(read_bytes=2 * tokens * num_heads * head_dim * element_bytes(dtype))
