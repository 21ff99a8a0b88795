"""Sparse pipelines on a GPU: what the CPU computes, compiled and offloaded too. The tests beside this one are its twins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers.hooks import apply_group_offloading
from torch import Tensor

from strobe.integrations.diffusers import sparsify
from tiny_pipelines import Case, gates, hunyuan, hunyuan15, ltx2, wan

pytestmark = pytest.mark.gpu

WIDE: dict[str, Callable[[], Case]] = {
    "wan": lambda: wan(head_dim=32),
    "ltx-2": lambda: ltx2(head_dim=32, rope_type="split"),
    "hunyuan": lambda: hunyuan(head_dim=32),
    "hunyuan 1.5": lambda: hunyuan15(head_dim=32),
}
"""Heads as wide as the kernels take them."""
OPTIONS: dict[str, Any] = {"sparsity": 0.7, "tile": (3, 2, 4)}


def apart(found: Tensor, wanted: Tensor) -> float:
    """Norm of the difference over the norm of what is wanted."""
    found, wanted = found.double().cpu(), wanted.double().cpu()
    return ((found - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("name", WIDE)
def test_a_gpu_computes_what_a_cpu_does(name: str) -> None:
    case = WIDE[name]()
    with sparsify(case.model, **OPTIONS):
        wanted = case.run()
    there = case.to(torch.float32, "cuda")
    with sparsify(there.model, **OPTIONS) as handle:
        assert apart(there.run(), wanted) < 2e-3
        assert {row.impl for row in handle.report().layers} == {"triton"}


@pytest.mark.parametrize("name", WIDE)
def test_all_tiles_selected_is_dense_in_bfloat16(name: str) -> None:
    case = WIDE[name]().to(torch.bfloat16, "cuda")
    dense = case.run()
    for sparsity in (1e-12, 0.0):
        with sparsify(case.model, sparsity=sparsity):
            assert apart(case.run(), dense) < 0.03


@pytest.mark.parametrize("name", WIDE)
def test_compiled_layers_compute_the_same(name: str) -> None:
    case = WIDE[name]().to(torch.bfloat16, "cuda")
    with sparsify(case.model, **OPTIONS):
        eager = case.run()
        torch._dynamo.reset()
        case.model.compile_repeated_blocks(fullgraph=True)
        assert apart(case.run(), eager) < 0.05, "a tile may be selected that scores as much as another"
    torch._dynamo.reset()


@pytest.mark.parametrize("name", WIDE)
def test_compiled_layers_in_cuda_graphs_compute_the_same(name: str) -> None:
    """Compiled before anything ran uncompiled: what a layer keeps must not lie in the graphs' pool, and torch checks that."""
    case = WIDE[name]().to(torch.bfloat16, "cuda")
    with sparsify(case.model, **OPTIONS | {"sparsity": 0.6}):
        torch._dynamo.reset()
        case.model.compile_repeated_blocks(fullgraph=True, mode="reduce-overhead")
        found = []
        for _ in range(4):  # warm up, record, replay twice
            torch.compiler.cudagraph_mark_step_begin()
            found.append(case.run().clone())
        torch._dynamo.reset()
    for block in case.model.modules():
        block._compiled_call_impl = None
    with sparsify(case.model, **OPTIONS | {"sparsity": 0.6}):
        eager = case.run()
    assert all(apart(each, eager) < 0.05 for each in found)
    assert torch.equal(found[2], found[3])


def offload(model: Any, kind: str, *, streams: bool) -> None:
    blocks = 1 if kind == "block_level" else None
    apply_group_offloading(model, onload_device="cuda", offload_type=kind, num_blocks_per_group=blocks, use_stream=streams)


@pytest.mark.parametrize("first", ["offload", "sparsify"])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("kind", ["block_level", "leaf_level"])
def test_gates_are_offloaded_with_their_blocks(kind: str, streams: bool, first: str) -> None:
    given = gates(width=64)
    here = wan(1, head_dim=32).to(torch.float32, "cuda")
    with sparsify(here.model, **OPTIONS, gates=given):
        wanted = here.run()
    case = wan(1, head_dim=32)
    if first == "offload":
        offload(case.model, kind, streams=streams)
    handle = sparsify(case.model, **OPTIONS, gates=given)
    if first == "sparsify":
        offload(case.model, kind, streams=streams)
    for _ in range(3):  # the order of the layers is known from the second call on
        assert apart(case.run(**here.arguments), wanted) < 1e-5
    if first == "offload":
        handle.restore()
        case.run(**here.arguments)


def test_gates_move_with_the_model() -> None:
    case = wan(1, head_dim=32)
    with sparsify(case.model, **OPTIONS, gates=gates(width=64)):
        wanted = case.run()
        there = case.to(torch.float32, "cuda")
        assert apart(there.run(), wanted) < 2e-3
        assert case.model.blocks[0].to_gate_compress.weight.is_cuda
