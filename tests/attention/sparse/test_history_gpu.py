"""Attention over a history on a GPU: nothing waits for the device, and a captured graph follows the slots that are open."""

from __future__ import annotations

import pytest
import torch

from history_on_cpu import Case, Drawn, draw, open_slots
from strobe.attention.sparse import history as operator
from strobe.attention.sparse import tiled
from strobe.attention.sparse.history import history_attention
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.types import AttentionOutput

pytestmark = pytest.mark.gpu
CASE = Case(size=(18, 22), slots=9, held=(0, 1, 2, 3, 4, 5), heads=(4, 4), width=128, frames=3, dtype=torch.bfloat16)


def call(drawn: Drawn, sparsity: float = 0.8) -> AttentionOutput:
    return history_attention(drawn.q, drawn.dense, drawn.history, q_tiles=drawn.q_tiles, sparsity=sparsity, return_lse=True)


def test_nothing_waits_for_the_device() -> None:
    drawn = draw(CASE, "cuda")
    call(drawn)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = call(drawn), call(drawn, 0.6)  # a number of tiles that was not asked for before
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(each.out.shape == drawn.q.shape and each.out.isfinite().all() for each in found)


def test_a_number_of_tiles_first_seen_in_a_recording_is_right_in_and_outside_of_it() -> None:
    drawn = draw(CASE, "cuda")
    call(drawn, 0.3)  # everything is compiled, and its counts are forgotten
    tiled._FILLED.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call(drawn, 0.3)
    assert not tiled._FILLED
    eager = call(drawn, 0.3)
    graph.replay()
    assert torch.equal(found.out, eager.out)


def test_a_graph_follows_the_slots_that_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other slots, other queries: in the same tensors, without recording again. The plain stages say what is right."""
    drawn = draw(CASE, "cuda")
    call(drawn)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call(drawn)
    layout = tile_layout((1, *CASE.size), "auto", CASE.block)
    for held in ((3, 4, 5, 6, 7, 8), (0, 2, 4, 5, 6, 8)):
        open_slots(drawn.history, layout, held)
        drawn.q.normal_()
        graph.replay()
        eager = call(drawn)
        assert torch.equal(found.out, eager.out) and found.lse is not None and eager.lse is not None
        assert torch.equal(found.lse, eager.lse)
        with monkeypatch.context() as patch:
            patch.setattr(operator, "_fuses", lambda *_: False)
            plain = call(drawn)
        differs = (found.out.float() - plain.out.float()).abs().amax(-1) > 2e-2
        assert differs.float().mean().item() < 5e-3  # a tile whose score ties with another's to the last bit
