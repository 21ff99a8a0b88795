"""The whole operator on a GPU: nothing waits for the device, and a captured graph follows new inputs."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from strobe.attention.sparse import layout, video, video_plan
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.sparse.packed import block_sparse_attention_varlen, video_sparse_attention_varlen
from strobe.attention.sparse.video import video_sparse_attention
from strobe.attention.sparse.video_plan import VideoOptions, filled, plan_of, written
from strobe.core.errors import ImplUnavailableError
from strobe.core.tolerances import tolerance

pytestmark = pytest.mark.gpu


def operands() -> tuple[Tensor, ...]:
    q, k, v, gate = (torch.randn(2, 5 * 9 * 10, 3, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    angles = torch.rand(5 * 9 * 10, 32, device="cuda") * 6
    return q, k, v, gate, angles.cos(), angles.sin()


def call(inputs: tuple[Tensor, ...]) -> Tensor:
    q, k, v, gate, cos, sin = inputs
    return video_sparse_attention(q, k, v, grid=(5, 9, 10), topk=4, gate=gate, rope=(cos, sin), impl="triton").out


@pytest.mark.parametrize("impl", ["cudnn", "fa4", "triton"])
@pytest.mark.parametrize("tile", [(4, 4, 4), (2, 8, 8)])
@pytest.mark.parametrize("layout", ["raster", "tiled"])
def test_every_impl_of_the_fine_stage_gives_the_same(layout: str, tile: tuple[int, int, int], impl: str) -> None:
    """Twice, so that the second call's launches are those that were kept; from other memory, and with the lse."""
    cut = tile_layout((5, 9, 10), tile)
    results = []
    for name in (impl, impl, "reference"):
        torch.manual_seed(0)
        q, k, v, gate = (torch.randn(2, 5 * 9 * 10, 3, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        if layout == "tiled":
            q, k, v, gate = (cut.to_tiles(tensor) for tensor in (q, k, v, gate))
        options = {"q_layout": layout, "kv_layout": layout, "grid": (5, 9, 10), "tile": tile, "gate": gate, "topk": 4}
        try:
            found = video_sparse_attention(q, k, v, **options, impl=name, return_lse=True)  # type: ignore[arg-type]
        except ImplUnavailableError as error:
            pytest.skip(f"{name}: {error.reason}")
        results.append(found)
    first, second, expected = results
    assert torch.equal(first.out, second.out) and torch.equal(first.lse, second.lse)
    assert torch.equal(first.selection.indices, expected.selection.indices) and first.selection.uniform_count == 4
    near, near_lse = tolerance("video of a GPU", "bfloat16"), tolerance("lse of a video of a GPU", "bfloat16")
    torch.testing.assert_close(first.out.float(), expected.out.float(), atol=near, rtol=near)
    torch.testing.assert_close(first.lse, expected.lse, atol=near_lse, rtol=near_lse)


def test_nothing_waits_for_the_device() -> None:
    inputs = operands()
    call(inputs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = call(inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found.isfinite().all()


@pytest.mark.parametrize("selects", [True, False])
def test_nothing_waits_for_packed_sequences(selects: bool) -> None:
    """Neither where the coarse stage selects nor where the caller did."""
    cu_seqlens = torch.tensor([0, 300, 370, 570], dtype=torch.int32, device="cuda")
    q, k, v = (torch.randn(570, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    blocks = 570 // 64 + 3  # as many as three sequences can have
    indices, counts = (
        make(4, blocks, *last, dtype=torch.int32, device="cuda") for make, last in ((torch.zeros, (1,)), (torch.ones, ()))
    )

    def call() -> Tensor:
        if selects:
            return video_sparse_attention_varlen(q, k, v, cu_seqlens, cu_seqlens, block=64, topk=2, impl="triton").out
        return block_sparse_attention_varlen(q, k, v, indices, counts, cu_seqlens, cu_seqlens, block=64, impl="triton").out

    call()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found.isfinite().all()


def test_what_a_graph_reads_outlives_the_caches() -> None:
    inputs = operands()
    call(inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call(inputs)
    expected = call(inputs).clone()
    layout._kept.cache_clear()
    video_plan._kept.cache_clear()
    video_plan._SEEN.clear()
    gc.collect()
    others = [torch.zeros(size, dtype=torch.int32, device="cuda") for size in (30, 90, 128, 900, 1920, 3840) for _ in range(200)]
    graph.replay()
    assert torch.equal(found, expected) and not any(other.any() for other in others)


@pytest.mark.parametrize("return_lse", [False, True])
def test_the_operator_that_a_compiler_calls_finds_its_prepared_call_and_gives_the_same(return_lse: bool) -> None:
    """Of new values, of other strides, which are not what was prepared, and in a graph that outlives what is kept."""
    q, k, v, gate, cos, sin = operands()
    options = VideoOptions(grid=(5, 9, 10), topk=4, impl="triton", return_lse=return_lse)
    asked = video._call_of(q, k, v, gate, (cos, sin), options)
    text = written(filled(asked.options, plan_of(asked, keep=True)))
    video._READY.clear()

    def compare(*tensors: Tensor) -> Tensor:
        q, k, v, gate, cos, sin = tensors
        out, lse, indices = torch.ops.strobe.video_sparse_attention.default(*tensors, text)
        expected = video._attend(q, k, v, gate, (cos, sin), options)
        assert torch.equal(out, expected.out) and torch.equal(indices, expected.selection.indices)
        assert lse.numel() == 0 if expected.lse is None else torch.equal(lse, expected.lse)
        return out

    for tensors in ((q, k, v, gate, cos, sin), (q, k, v, gate, cos, sin), operands()):
        compare(*tensors)
        assert [len(kept) for kept in video._READY.values()] == [1]
    compare(*(each.transpose(1, 2).contiguous().transpose(1, 2) for each in (q, k, v, gate)), cos, sin)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = torch.ops.strobe.video_sparse_attention.default(q, k, v, gate, cos, sin, text)[0]
    video._READY.clear()
    layout._kept.cache_clear()
    video_plan._kept.cache_clear()
    video_plan._SEEN.clear()
    gc.collect()
    graph.replay()
    assert torch.equal(found, compare(q, k, v, gate, cos, sin))


def test_a_graph_follows_new_inputs() -> None:
    inputs = operands()
    call(inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call(inputs)
    for given, fresh in zip(inputs, operands(), strict=True):
        given.copy_(fresh)
    graph.replay()
    assert torch.equal(found, call(inputs))
