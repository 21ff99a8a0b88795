"""Prepared calls: what a fine stage hands to its library. Whole calls are compared in `support/stages_on_cpu.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from strobe.attention.sparse.impl import cudnn, reference
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.types import check


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
        assert found.lse is not None
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
    assert prepared is not None
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
        assert denominators is not None
        assert torch.equal(torch.as_strided(got, out.shape, prepared.stride), out)
        assert torch.equal(prepared.lse(denominators), lse)


def test_nothing_is_prepared_for_no_keys() -> None:
    q, k = torch.zeros(1, 64, 1, 64), torch.zeros(1, 0, 1, 64)
    indices, counts = torch.zeros(1, 1, 1, 0, dtype=torch.int32), torch.zeros(1, 1, 1, dtype=torch.int32)
    assert cudnn.prepare(q, k, k, BlockSelection(indices=indices, counts=counts, block=64), 0.1) is None
