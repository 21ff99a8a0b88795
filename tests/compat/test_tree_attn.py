"""`tree_attn_decode` as its users know it, and the layouts that others stop at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from strobe.compat import tree_attn_decode
from strobe.core.errors import ImplUnavailableError, ShapeError
from strobe.core.tolerances import tolerance
from tree_ranks import Runner, threads

ELEMENT_BF16 = tolerance("element", "bfloat16")
ROUNDING = tolerance("rounding", "float32")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Runner]:
    with threads() as run:
        yield run


def draw(length: int, heads: int, dim: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(2, heads, length, dim, generator=torch.Generator().manual_seed(seed)).to(dtype)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1).double() for each in (k, v))
    return torch.softmax(q.double() @ k.transpose(-1, -2) * q.shape[3] ** -0.5, dim=-1) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("length", [1, 5, 31])  # 5 keys on 4 ranks: chunks of 2, 2, 1 and none
def test_whole_keys_are_shared_out(ranks: Runner, length: int, dtype: torch.dtype) -> None:
    q, k, v = draw(1, 8, 16, dtype, 0), draw(length, 2, 16, dtype, 1), draw(length, 2, 12, dtype, 2)
    tolerance = 1e-5 if dtype.itemsize > 2 else 2e-2
    for out in ranks(4, lambda rank: tree_attn_decode(q, k, v)):
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), plain(q, k, v), atol=tolerance, rtol=tolerance)


def test_keys_that_are_spread_already(ranks: Runner) -> None:
    q, k, v = draw(3, 4, 8, torch.bfloat16, 0), draw(9, 1, 8, torch.bfloat16, 1), draw(9, 1, 8, torch.bfloat16, 2)
    spans = [slice(0, 4), slice(4, 4), slice(4, 9)]

    def work(rank: int) -> Tensor:
        if rank == 1:
            return tree_attn_decode(q, None, None, shard_kv_seq=False)
        return tree_attn_decode(q, k[:, :, spans[rank]], v[:, :, spans[rank]], 1e-6, False, False)

    for out in ranks(3, work):
        torch.testing.assert_close(out.double(), plain(q, k, v), atol=ELEMENT_BF16, rtol=ELEMENT_BF16)


def test_one_process_without_a_group() -> None:
    q, k, v = draw(2, 4, 8, torch.float32, 0), draw(6, 2, 8, torch.float32, 1), draw(6, 2, 5, torch.float32, 2)
    torch.testing.assert_close(tree_attn_decode(q, k, v).double(), plain(q, k, v), atol=ROUNDING, rtol=ROUNDING)


def test_what_cannot_run_says_so() -> None:
    q, k = draw(1, 4, 8, torch.float32, 0), draw(3, 2, 8, torch.float32, 1)
    with pytest.raises(ShapeError, match="got None, expected the whole keys"):
        tree_attn_decode(q)
    with pytest.raises(ShapeError, match="without other ranks"):
        tree_attn_decode(q, shard_kv_seq=False)
    with pytest.raises(ImplUnavailableError, match="tensors are on cpu"):
        tree_attn_decode(q, k, k, use_triton=True)
    with pytest.raises(ShapeError, match=r"q: got shape \(4, 1, 8\)"):
        tree_attn_decode(q[0], k, k)
