"""What the libraries are told of a selection, entry by entry, and FlexAttention as a second oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.impl import cudnn, reference
from strobe.attention.sparse.lists import key_lists, query_lists
from strobe.attention.sparse.padding import aligned, cleared, finite
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.types import check
from strobe.core.tolerances import tolerance

ELEMENT = tolerance("element", "float32")

SIZES = torch.tensor([64, 0, 10, 64, 63, 1], dtype=torch.int32)


def selection(*, ragged: bool = True) -> BlockSelection:
    generator = torch.Generator().manual_seed(4)
    mask = torch.rand(2, 3, 4, 6, generator=generator) < 0.6
    mask[0, 0, 0] = False
    made = BlockSelection.from_mask(mask, block=64, kv_sizes=SIZES if ragged else None)
    poison = torch.arange(6) >= made.counts[..., None]
    return replace(made, indices=made.indices.masked_fill(poison, 1 << 29))


def rows(counts: Tensor, indices: Tensor) -> list[list[int]]:
    flat = zip(indices.flatten(0, 2), counts.flatten(), strict=True)
    return [sorted(row[:number].tolist()) for row, number in flat]


@pytest.mark.parametrize("ragged", [False, True])
def test_whole_blocks_and_blocks_with_padding_are_told_apart(ragged: bool) -> None:
    made = selection(ragged=ragged)
    seen, sizes = made.mask(6), SIZES.tolist() if ragged else [64] * 6
    places = [(b, h) for b in range(2) for h in range(3)]
    for lists, pairs in (
        (key_lists(made), [[(i, j, j) for j in range(6)] for i in range(4)]),
        (query_lists(made, 6), [[(i, j, i) for i in range(4)] for j in range(6)]),
    ):
        for whole, counts, indices in ((True, lists.full_counts, lists.full), (False, lists.partial_counts, lists.partial)):
            wanted = [
                [name for i, j, name in row if seen[b, h, i, j] and sizes[j] and (sizes[j] == 64) == whole]
                for b, h in places
                for row in pairs
            ]
            assert counts.dtype == indices.dtype == torch.int32 and rows(counts, indices) == wanted


def test_padding_is_cleared_only_where_it_could_matter() -> None:
    made, rows_kv = selection(), torch.full((2, 384, 3, 8), torch.nan)
    padding = (torch.arange(64) >= SIZES[:, None]).flatten()
    rows_kv[:, ~padding] = 1.0
    clean = cleared(rows_kv, SIZES, 64)
    assert not clean[:, padding].any() and (clean[:, ~padding] == 1).all() and rows_kv[:, padding].isnan().all()
    assert cleared(rows_kv, None, 64) is rows_kv
    assert torch.equal(finite(rows_kv, SIZES, made), clean)
    assert finite(rows_kv, SIZES, replace(made, finite_padding=True)) is rows_kv


def test_only_what_a_descriptor_cannot_address_is_copied() -> None:
    base = torch.randn(2, 10, 4, 8)
    for view in (base, base[:, 3:], base.transpose(1, 2).contiguous().transpose(1, 2), base[:1]):
        assert aligned(view) is view
    odd = torch.randn(2 * 10 * 4 * 8 + 1)[1:].view(2, 10, 4, 8)
    for view in (odd, base[:, :, :1].expand(2, 10, 4, 8), base.transpose(2, 3), torch.randn(2, 10, 4, 9)[..., :8]):
        copy = aligned(view)
        assert torch.equal(copy, view) and copy.is_contiguous() and copy.data_ptr() % 16 == 0


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("block", [64, 128])
def test_flexattention_agrees(block: int, ragged: bool) -> None:
    generator = torch.Generator().manual_seed(block)
    q = torch.randn(2, 3 * block, 4, 16, generator=generator)
    k, v = (torch.randn(2, 4 * block, 2, 16, generator=generator) for _ in range(2))
    mask = torch.rand(2, 4, 3, 4, generator=generator) < 0.5
    mask[0, 0, 0] = False
    sizes = [torch.tensor(each, dtype=torch.int32) for each in ([block, 0, 7], [3, block, 0, 60])] if ragged else [None, None]
    for tensors, valid in (((q,), sizes[0]), ((k, v), sizes[1])):
        for tensor in tensors:
            if valid is not None:
                tensor[:, (torch.arange(block) >= valid[:, None]).flatten()] = float("nan")
    made = BlockSelection.from_mask(mask, block=block, q_sizes=sizes[0], kv_sizes=sizes[1])
    found = block_sparse_attention(q, k, v, made, impl="flex", softmax_scale=0.3, return_lse=True)
    for impl in ("reference", "cpu"):
        expected = block_sparse_attention(q, k, v, made, impl=impl, softmax_scale=0.3, return_lse=True)
        torch.testing.assert_close(found.out, expected.out, atol=ELEMENT, rtol=ELEMENT)
        torch.testing.assert_close(found.lse, expected.lse, atol=ELEMENT, rtol=ELEMENT)


def stand_in(
    block: int, width: int, groups: int, dtype: torch.dtype, ragged: bool, counted: bool, _: int | None
) -> Callable[..., None]:
    """A kernel of cuDNN's signature that computes with the reference, from its own order of dimensions."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, indices: Tensor, counts: Tensor, *rest: Any) -> None:
        for tensor, leading in ((q, 1), (k, 1), (v, 0), (out, 1), (lse, 0), (indices, 0), (counts, 0)):
            assert tensor.stride(leading) == 1, "the dimension that a kernel is compiled for is the contiguous one"
        if block == 128:
            sizes, softmax_scale, count = rest
            assert count == (2 if counted else 0) and (sizes.dim() == 1) == ragged
        else:
            per_head, again, softmax_scale = rest
            assert again is counts
            sizes = per_head[:, 0, 0]
            assert not ragged or all(torch.equal(sizes, each) for each in per_head.flatten(1).unbind(1))
        operands = [q.permute(3, 0, 2, 1), k.permute(3, 0, 2, 1), v.permute(3, 1, 2, 0)]
        assert operands[0].shape[2] == groups * operands[1].shape[2] and operands[0].shape[3] == width
        selection = BlockSelection(
            indices=indices.permute(3, 2, 1, 0),
            counts=counts.permute(2, 1, 0),
            block=block,
            kv_sizes=sizes if ragged else None,
            finite_padding=True,
        )
        call = check(*operands, softmax_scale, True)
        spec = SparseSpec.of(
            call, block=block, most_selected=indices.shape[0], ragged=ragged, uniform=counted, deterministic=False
        )
        found = reference.IMPL.run(*operands, selection, spec)
        out.copy_(found.out.permute(1, 3, 2, 0))
        lse.copy_(found.lse.permute(2, 1, 0))

    return kernel


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("count", [None, 2])
def test_cudnn_is_prepared_for_what_its_forward_is_given(
    block: int, ragged: bool, count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cudnn, "_forward_kernel", stand_in)
    generator = torch.Generator().manual_seed(block)
    shapes = ((2, 3 * block, 4, 64), (2, 5 * block, 2, 64), (2, 5 * block, 2, 64))
    sizes = torch.tensor([block, block, 7, block, 1], dtype=torch.int32) if ragged else None
    counts = torch.full((2, 4, 3), 2, dtype=torch.int32)
    if count is None:
        counts[0, 1, 2] = 1

    def drawn() -> tuple[list[Tensor], BlockSelection]:
        indices = torch.rand(2, 4, 3, 5, generator=generator).argsort(dim=-1)[..., :2].to(torch.int32).contiguous()
        selection = BlockSelection(
            indices=indices, counts=counts, block=block, kv_sizes=sizes, finite_padding=True, known_count=count, known_bound=5
        )
        return [torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in shapes], selection

    first, selection = drawn()
    prepared = cudnn.prepare(*first, selection, 0.2)
    for _ in range(2):
        tensors, selection = drawn()
        out, lse = cudnn.forward(*tensors, selection, 0.2)
        orders = ((1, 3, 2, 0), (1, 3, 2, 0), (3, 1, 2, 0))
        placed = []
        for tensor, (size, stride), order in zip(tensors, prepared.places, orders, strict=True):
            room = torch.empty_strided(size, stride, dtype=torch.bfloat16)
            placed.append(room.copy_(tensor.permute(order)))
            assert torch.equal(torch.as_strided(room, tensor.shape, tensor.stride()), tensor), "the memory is in its usual order"
        got, denominators = prepared.run(0, *placed, selection.indices)
        assert torch.equal(torch.as_strided(got, out.shape, prepared.stride), out)
        assert torch.equal(prepared.lse(denominators), lse)


def test_nothing_is_prepared_for_no_keys() -> None:
    q, k = torch.zeros(1, 64, 1, 64), torch.zeros(1, 0, 1, 64)
    indices, counts = torch.zeros(1, 1, 1, 0, dtype=torch.int32), torch.zeros(1, 1, 1, dtype=torch.int32)
    assert cudnn.prepare(q, k, k, BlockSelection(indices=indices, counts=counts, block=64), 0.1) is None
