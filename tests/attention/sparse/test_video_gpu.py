"""The whole operator on a GPU: nothing waits for the device, and a captured graph follows new inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strobe.attention.sparse.video import video_sparse_attention

pytestmark = pytest.mark.gpu


def operands() -> tuple[Tensor, ...]:
    q, k, v, gate = (torch.randn(2, 5 * 9 * 10, 3, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    angles = torch.rand(5 * 9 * 10, 32, device="cuda") * 6
    return q, k, v, gate, angles.cos(), angles.sin()


def call(inputs: tuple[Tensor, ...]) -> Tensor:
    q, k, v, gate, cos, sin = inputs
    return video_sparse_attention(q, k, v, grid=(5, 9, 10), topk=4, gate=gate, rope=(cos, sin), impl="triton").out


def test_nothing_waits_for_the_device() -> None:
    inputs = operands()
    call(inputs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


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
