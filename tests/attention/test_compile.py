"""Every public operator compiles in one piece, for sizes that the compiler knows and for sizes that change.

A graph break is an error, and so is a call that compiled code cannot serve. Values and gradients are those of the eager call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import strobe
from strobe.attention.sparse.coarse import pool
from strobe.attention.sparse.history import History, history_attention
from strobe.attention.sparse.layout import tile_layout
from strobe.compat import video_sparse_attn

Shape = tuple[int, int, int, int]
SHAPES: tuple[Shape, ...] = ((1, 128, 2, 2), (2, 192, 2, 2), (3, 320, 4, 2))
"""Batch, rows, heads, heads of the keys."""
GRID = (4, 5, 8)


def draw(shape: Shape, rows: int | None = None) -> list[Tensor]:
    batch, length, heads, kv_heads = shape
    generator = torch.Generator().manual_seed(sum(shape))
    return [
        torch.randn(batch, length if rows is None else rows, number, 16, generator=generator).requires_grad_()
        for number in (heads, kv_heads, kv_heads)
    ]


def dense(shape: Shape) -> tuple[Any, ...]:
    return lambda q, k, v: strobe.dense_attention(q, k, v).out, *draw(shape)


def block_sparse(shape: Shape) -> tuple[Any, ...]:
    batch, rows, heads, _ = shape
    mask = torch.rand(batch, heads, rows // 64, rows // 64, generator=torch.Generator().manual_seed(rows)) < 0.6
    selection = strobe.BlockSelection.from_mask(mask, block=64)
    return lambda q, k, v, chosen: strobe.block_sparse_attention(q, k, v, chosen).out, *draw(shape), selection


def varlen(shape: Shape) -> tuple[Any, ...]:
    batch, rows, heads, _ = shape
    q, k, v = (each[0].detach().requires_grad_() for each in draw(shape))
    cu = torch.tensor([0, rows // 3, rows], dtype=torch.int32) if batch < 3 else torch.tensor([0, 70, 71, rows]).int()
    blocks = rows // 64 + cu.shape[0] - 1
    indices, counts = torch.zeros(heads, blocks, 1, dtype=torch.int32), torch.ones(heads, blocks, dtype=torch.int32)

    def call(q: Tensor, k: Tensor, v: Tensor, indices: Tensor, counts: Tensor, cu: Tensor) -> Tensor:
        return strobe.block_sparse_attention_varlen(q, k, v, indices, counts, cu, cu, block=64).out

    return call, q, k, v, indices, counts, cu


def video(shape: Shape) -> tuple[Any, ...]:
    gate = torch.rand(1, 160, 1, 1, generator=torch.Generator().manual_seed(1))

    def call(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, grid: tuple[int, ...]) -> Tensor:
        return strobe.video_sparse_attention(q, k, v, grid=grid, topk=2, gate=gate).out

    return call, *draw(shape, 160), gate, GRID


def video_of_a_length(shape: Shape) -> tuple[Any, ...]:
    frames = 2 * sum(shape) // 64
    angles = torch.linspace(0, 1, frames * 15 * 8).view(-1, 8)

    def call(q: Tensor, k: Tensor, v: Tensor, rope: tuple[Tensor, Tensor], frames: int) -> Tensor:
        return strobe.video_sparse_attention(q, k, v, grid=(frames, 3, 5), tile="auto", sparsity=0.5, rope=rope).out

    return call, *draw(shape, frames * 15), (angles.cos(), angles.sin()), frames


def history(shape: Shape) -> tuple[Any, ...]:
    q, k, v = draw(shape, 160)
    keys, values = (torch.cat((each.detach(),) * 2, dim=1)[:, :192] for each in (k, v))
    sizes = torch.tensor([64, 0, 64], dtype=torch.int32)
    past = History(keys=keys, values=values, means=pool(keys, sizes, 64), sizes=sizes, num_tiles=2, block=64)
    tiles = tile_layout(GRID, 64)

    def call(q: Tensor, k: Tensor, v: Tensor, past: History) -> Tensor:
        return history_attention(q, [(k, v)], past, q_tiles=tiles, sparsity=0.5).out

    return call, q, k, v, past


def _merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    parts = [strobe.dense_attention(q, k[:, i:j], v[:, i:j], return_lse=True) for i, j in ((0, 64), (64, k.shape[1]))]
    return strobe.merge(parts).out


def merge(shape: Shape) -> tuple[Any, ...]:
    return _merged, *draw(shape)


def foreign(shape: Shape) -> tuple[Any, ...]:
    batch, rows, heads, _ = shape
    q, k, v = (each.detach().transpose(1, 2).contiguous().requires_grad_() for each in draw((batch, rows, heads, heads)))
    sizes = torch.full((rows // 64,), 60, dtype=torch.int32)

    def call(q: Tensor, k: Tensor, v: Tensor, sizes: Tensor) -> Tensor:
        return video_sparse_attn(q, k, v, sizes, sizes, topk=2)

    return call, q, k, v, sizes


OPERATORS = (dense, block_sparse, varlen, video, video_of_a_length, history, merge, foreign)


def gradients(out: Tensor, inputs: Sequence[Any]) -> list[Tensor]:
    leaves = [each for each in inputs if isinstance(each, Tensor) and each.requires_grad]
    weight = torch.linspace(-1, 1, out.numel()).view_as(out)
    return list(torch.autograd.grad((out * weight).sum(), leaves))


REST = pytest.mark.rest
FIRST = [
    each if each not in (video, merge) else pytest.param(each, marks=REST) for each in OPERATORS
]  # others hold the same code


@pytest.mark.parametrize(
    ("dynamic", "shapes"),
    [(True, SHAPES[::2]), pytest.param(True, SHAPES, marks=REST), pytest.param(None, SHAPES, marks=REST)],
    ids=["True-2", "True", "None"],
)
@pytest.mark.parametrize("operator", FIRST)
def test_it_compiles_for_sizes_that_change(
    operator: Callable[[Shape], tuple[Any, ...]], dynamic: bool | None, shapes: Sequence[Shape]
) -> None:
    torch._dynamo.reset()
    call = operator(SHAPES[0])[0]
    backend = (
        "aot_eager" if operator in (dense, block_sparse) else "eager"
    )  # the other graphs are long, and of the same operations
    compiled = torch.compile(call, fullgraph=True, backend=backend, dynamic=dynamic)
    for shape in shapes:
        _, *inputs = operator(shape)
        expected, found = call(*inputs), compiled(*inputs)
        torch.testing.assert_close(found, expected)
        for mine, theirs in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("operator", [dense, block_sparse, video])
def test_one_compilation_serves_any_batch(operator: Callable[[Shape], tuple[Any, ...]]) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    compiled = torch.compile(operator(SHAPES[0])[0], fullgraph=True, backend=counter, dynamic=True)
    for batch in (3, 5, 7):  # no other size is one of these: a compiler takes equal sizes for the same one
        compiled(*operator((batch, 128, 2, 2))[1:])
    assert counter.frame_count == 1
