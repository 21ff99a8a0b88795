from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from strobe.core.costs import (
    DTYPE_BYTES,
    AttentionShape,
    Cost,
    attention,
    block_mask_pairs,
    conv,
    element_bytes,
    elementwise,
    kv_read,
    kv_write,
    linear,
    matmul,
    norm,
    parse_dtype,
)
from strobe.core.errors import ConfigError, ShapeError

SMALL = st.integers(1, 9)


def counted(run: object) -> int:
    """FLOPs as torch counts them, from the operators that really ran."""
    with FlopCounterMode(display=False) as counter:
        run()  # type: ignore[operator]
    return counter.get_total_flops()


@given(SMALL, SMALL, SMALL, SMALL)
def test_a_matmul_is_what_torch_counts(batch: int, m: int, k: int, n: int) -> None:
    a, b = torch.ones(batch, m, k), torch.ones(batch, k, n)
    cost = matmul(m, k, n, dtype="float32", batch=batch)
    assert cost.flops == counted(lambda: a @ b)
    assert cost.read_bytes == a.numel() * 4 + b.numel() * 4
    assert cost.write_bytes == (a @ b).numel() * 4


def test_a_linear_layer_reads_its_bias_too() -> None:
    layer, x = torch.nn.Linear(7, 5).bfloat16(), torch.ones(3, 7, dtype=torch.bfloat16)
    cost = linear(3, 7, 5, dtype="bf16")
    assert cost.flops == counted(lambda: layer(x)) == 2 * 3 * 7 * 5
    assert cost.read_bytes == 2 * (x.numel() + sum(parameter.numel() for parameter in layer.parameters()))
    assert linear(3, 7, 5, dtype="bf16", bias=False).read_bytes == cost.read_bytes - 2 * 5


@given(SMALL, SMALL, SMALL)
def test_a_convolution_is_what_torch_counts(channels: int, out: int, size: int) -> None:
    layer = torch.nn.Conv3d(channels, out, 3, padding=1)
    x = torch.ones(1, channels, 2, size, size)
    cost = conv(2 * size * size, channels, out, taps=27, dtype="float32")
    assert cost.flops == counted(lambda: layer(x))
    assert cost.read_bytes == 4 * (x.numel() + sum(parameter.numel() for parameter in layer.parameters()))
    assert cost.write_bytes == 4 * layer(x).numel()


@given(SMALL, SMALL, SMALL, SMALL)
def test_attention_is_what_torch_counts(batch: int, heads: int, q_tokens: int, kv_tokens: int) -> None:
    q, k, v = (torch.ones(batch, heads, tokens, 4) for tokens in (q_tokens, kv_tokens, kv_tokens))
    shape = AttentionShape(batch=batch, num_heads=heads, q_tokens=q_tokens, kv_tokens=kv_tokens, head_dim=4)
    cost = attention(shape, dtype="float32")
    assert cost.flops == counted(lambda: (q @ k.transpose(-1, -2)) @ v)
    assert cost.moved_bytes == 4 * (2 * q.numel() + k.numel() + v.numel())


def test_grouped_queries_read_fewer_keys() -> None:
    shape = AttentionShape(num_heads=8, num_kv_heads=2, q_tokens=3, kv_tokens=5, head_dim=4)
    assert attention(shape, dtype="float32").read_bytes == 4 * (3 * 8 * 4 + 2 * 5 * 2 * 4)


@given(st.data(), st.lists(SMALL, min_size=1, max_size=5), st.lists(SMALL, min_size=1, max_size=5))
def test_sparse_attention_counts_the_pairs_of_the_actual_mask(
    data: st.DataObject, q_sizes: list[int], kv_sizes: list[int]
) -> None:
    mask = [[data.draw(st.booleans()) for _ in kv_sizes] for _ in q_sizes]
    q_block = list(itertools.chain.from_iterable([block] * size for block, size in enumerate(q_sizes)))
    kv_block = list(itertools.chain.from_iterable([block] * size for block, size in enumerate(kv_sizes)))
    by_token = sum(mask[i][j] for i in q_block for j in kv_block)
    pairs = block_mask_pairs(mask, q_sizes, kv_sizes)
    assert pairs == by_token
    shape = AttentionShape(num_heads=1, q_tokens=len(q_block), kv_tokens=len(kv_block), head_dim=8)
    assert attention(shape, dtype="bf16", pairs=pairs).flops == 4 * 8 * by_token
    assert attention(shape, dtype="bf16", pairs=shape.pairs) == attention(shape, dtype="bf16")


def test_a_share_of_blocks_is_not_a_share_of_pairs() -> None:
    """One of two key blocks is half of the blocks, but 64 of 70 keys."""
    assert block_mask_pairs([[True, False]], [64], [64, 6]) * 70 == 64 * 70 * 64


def test_pairs_that_cannot_be_are_refused() -> None:
    shape = AttentionShape(num_heads=2, q_tokens=3, kv_tokens=5, head_dim=4)
    for pairs in (-1, 31):
        with pytest.raises(ShapeError, match="a dense call of this shape has 30"):
            attention(shape, dtype="bf16", pairs=pairs)
    with pytest.raises(ShapeError, match="1 rows of 2 blocks"):
        block_mask_pairs([[True]], [64], [64, 64])


def test_elementwise_work_moves_bytes_and_has_no_matrix_flops() -> None:
    assert elementwise(10, dtype="bf16", inputs=2) == Cost(read_bytes=40, write_bytes=20)
    assert norm(3, 5, dtype="float32") == Cost(read_bytes=4 * (15 + 10), write_bytes=60)
    assert kv_write(6, 2, 4, dtype="bf16") == Cost(read_bytes=2 * 2 * 48, write_bytes=2 * 2 * 48)
    assert kv_read(6, 2, 4, dtype="bf16") == Cost(read_bytes=2 * 2 * 48)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 9))
def test_costs_add_and_multiply(flops: int, read: int, write: int, calls: int) -> None:
    cost = Cost(flops=flops, read_bytes=read, write_bytes=write)
    assert cost * calls == calls * cost == sum([cost] * calls, Cost())
    assert (cost * calls).moved_bytes == calls * (read + write)


@pytest.mark.parametrize(
    ("spelling", "dtype"),
    [
        ("torch.bfloat16", "bfloat16"),
        ("c10::BFloat16", "bfloat16"),
        ("bf16", "bfloat16"),
        ("c10::Half", "float16"),
        ("float", "float32"),
        ("torch.float32", "float32"),
        ("TF32", "tfloat32"),
        ("double", "float64"),
        ("c10::Float8_e4m3fn", "float8"),
        ("fp8_e5m2", "float8"),
        ("signed char", "int8"),
        ("long int", None),
        ("", None),
        ("bf16x", None),
    ],
)
def test_dtypes_in_every_spelling(spelling: str, dtype: str | None) -> None:
    assert parse_dtype(spelling) == dtype


@pytest.mark.parametrize("dtype", [name for name in DTYPE_BYTES if hasattr(torch, name)])
def test_bytes_of_an_element_are_torchs(dtype: str) -> None:
    assert element_bytes(dtype) == getattr(torch, dtype).itemsize


def test_an_unknown_dtype_and_a_negative_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown dtype 'bf61'; allowed: float64"):
        matmul(1, 1, 1, dtype="bf61")
    with pytest.raises(ShapeError, match="m: got -1"):
        matmul(-1, 1, 1, dtype="bf16")
