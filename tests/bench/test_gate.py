"""No number of an implementation of attention on a card where its gate was not run."""

from __future__ import annotations

import pytest
import torch

from strobe.attention.impls import GateRun
from strobe.attention.sparse.impls import IMPLS
from strobe.bench import gate
from strobe.bench.attention import peers
from strobe.bench.attention import run as ours
from strobe.bench.attention.contestant import GridCell, Shape, draw
from strobe.core.device import Card
from strobe.core.errors import ImplUnavailableError

A100 = Card(vendor="nvidia", architecture="sm_80", capability=(8, 0), name="A100")
CELL = GridCell(shape=Shape(name="small", grid=(2, 8, 8), num_heads=2), sparsity=0.5, block=64)


def test_no_number_without_a_gate_on_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw(CELL, tile="auto", dtype=torch.float32, device=torch.device("cpu"), seed=0)
    assert ours.build_ours("fine:flex", inputs).impl == "flex"
    monkeypatch.setattr(gate, "card_of", lambda _: A100)
    for name in ("fine:flex", "tiled:flex"):
        with pytest.raises(ImplUnavailableError, match="no number is taken of it here: its gate has not been run on compute cap"):
            ours.build_ours(name, inputs)
    assert ours.build_ours("fine:cpu", inputs).impl == "cpu"  # it has no gate
    flex = next(impl for impl in IMPLS if impl.name == "flex")
    green = GateRun(
        operator="sparse", impl="flex", vendor="nvidia", architecture="sm_80", device="A100", versions={}, date="", tests=1,
        kernel=flex.kernel,
    )  # fmt: skip
    monkeypatch.setattr(gate, "GATES", (green,))
    assert ours.build_ours("fine:flex", inputs).impl == "flex"


def test_peers_name_the_cards_that_they_run_on() -> None:
    mi250, b200 = Card(vendor="amd", architecture="gfx90a"), Card(vendor="nvidia", architecture="sm_100", capability=(10, 0))
    assert peers.PEERS["cudnn-bsa"].no_card(b200) == "it runs on compute capability 9.x, not on compute capability 10.0"
    assert peers.PEERS["flashinfer"].no_card(A100) is peers.PEERS["fa4-sparse"].no_card(b200) is None
    assert peers.PEERS["fa4-sparse"].no_card(A100) is not None
    assert all(str(peer.no_card(mi250)).endswith("not on gfx90a") for peer in peers.PEERS.values())
