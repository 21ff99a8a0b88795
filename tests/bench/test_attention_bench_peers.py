"""The adapters of `strobe bench attention` to other packages, with stand-ins that speak the packages' layouts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strobe.attention.dense.api import dense_attention
from strobe.attention.impls import GateRun
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.impls import IMPLS
from strobe.bench import gate
from strobe.bench.attention import peers
from strobe.bench.attention import run as oracle
from strobe.bench.attention.contestant import CellTensors, GridCell, Shape, draw
from strobe.compat.video_sparse import video_sparse_attn
from strobe.core.device import Card
from strobe.core.errors import ImplUnavailableError
from strobe.core.tolerances import tolerance
from strobe.perf.records.record import RELATIVE

ELEMENT, CALL = tolerance("element", "float32"), tolerance("call", "float32")


def drawn(*, backward: bool = False) -> CellTensors:
    shape = Shape(name="tiny", grid=(3, 5, 7), num_heads=2, head_dim=32)
    cell = GridCell(shape=shape, sparsity=0.5, block=64, backward=backward)
    return draw(cell, tile="cube", dtype=torch.float32, device=torch.device("cpu"), seed=3)


class Library:
    """A stand-in for other packages: the functions the adapters call, by the reference impl, in the packages' layouts."""

    def __init__(self, inputs: CellTensors) -> None:
        self.inputs, self.BSA = inputs, self

    def _fine(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        tensors = (tensor.transpose(1, 2) for tensor in (q, k, v))
        found = block_sparse_attention(*tensors, self.inputs.selection, impl="reference", return_lse=True)
        assert found.lse is not None
        return found.out.transpose(1, 2), found.lse

    def block_sparse_attn_from_indices(self, q: Tensor, k: Tensor, v: Tensor, *lists: Tensor) -> tuple[Tensor, Tensor]:
        indices, counts, sizes = lists
        assert indices is self.inputs.selection.indices and counts is self.inputs.selection.counts
        assert sizes.tolist() == self.inputs.tiles.sizes().tolist()
        return self._fine(q, k, v)

    def video_sparse_attn(
        self, q: Tensor, k: Tensor, v: Tensor, sizes: Tensor, q_sizes: Tensor, topk: int, block_size: tuple[int, ...]
    ) -> Tensor:
        return video_sparse_attn(q, k, v, sizes, q_sizes, topk, block_size)

    def block_sparse_attention_forward(
        self, q: Tensor, k: Tensor, v: Tensor, *lists: object, **options: object
    ) -> dict[str, Tensor]:
        out, lse = self._fine(q, k, v)
        return {"o_tensor": out, "lse_tensor": lse}

    def block_sparse_attention_backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *lists: object, **options: object
    ) -> dict[str, Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        with torch.enable_grad():
            grads = torch.autograd.grad(self._fine(*leaves)[0], leaves, grad)
        return dict(zip(("dq_tensor", "dk_tensor", "dv_tensor"), grads, strict=True))

    def flash_attn_func(self, q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool) -> tuple[Tensor, Tensor | None]:
        found = dense_attention(q, k, v, impl="reference", return_lse=True)
        return found.out, found.lse


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", ["fastvideo-fine", "fastvideo", "cudnn-bsa", "fa4-dense"])
def test_an_adapter_speaks_the_peers_layout(name: str, backward: bool) -> None:
    inputs = drawn(backward=backward)
    contestant = peers.PEERS[name].build(f"peer:{name}", inputs, Library(inputs))
    with torch.no_grad():
        found = contestant.call(*contestant.leaves, lse=True)
    expected = oracle.expect(inputs, contestant, found, gradients=backward)
    out = contestant.as_raster(found.out, inputs)[:, inputs.checked]
    assert oracle.precision(out, expected.out)[RELATIVE] < CALL
    if found.lse is not None:
        rows = inputs.tiles.rows(inputs.device)[inputs.checked] if contestant.tiled else inputs.checked
        torch.testing.assert_close(found.lse[:, :, rows].double(), expected.lse, rtol=ELEMENT, atol=ELEMENT)
    if backward:
        upstream = torch.zeros_like(inputs.upstream)
        upstream[:, inputs.checked] = inputs.upstream[:, inputs.checked]
        for given, wanted in zip(contestant.backward(inputs, upstream)(), expected.gradients, strict=True):
            assert oracle.precision(contestant.as_raster(given, inputs), wanted)[RELATIVE] < CALL


def test_the_packed_rows_of_a_peer_without_padding_come_back() -> None:
    """It takes and gives `[H, tokens, D]` in tile order without padding rows; the adapter puts them in their places."""
    inputs = drawn()

    class Wrapper:
        def __init__(self, workspace: Tensor) -> None: ...

        def plan(self, *, block_mask_map: Tensor, block_row_sz: Tensor, block_col_sz: Tensor, **sizes: object) -> None:
            assert block_mask_map.shape == (2, 4, 4) and block_row_sz.tolist() == [inputs.tiles.sizes().tolist()] * 2
            self.mask = block_mask_map.repeat_interleave(block_row_sz[0], 1).repeat_interleave(block_col_sz[0], 2)

        def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            assert q.shape == (2, 3 * 5 * 7, 32)
            return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=self.mask[None])[0]

    module = type("Module", (), {"sparse": type("Sparse", (), {"VariableBlockSparseAttentionWrapper": Wrapper})})
    contestant = peers.PEERS["flashinfer"].build("peer:flashinfer", inputs, module)
    found = contestant.call(*contestant.leaves, lse=True)
    expected = oracle.expect(inputs, contestant, found)
    assert oracle.precision(contestant.as_raster(found.out, inputs)[:, inputs.checked], expected.out)[RELATIVE] < CALL


def test_a_peer_says_why_it_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = drawn()
    monkeypatch.setattr(peers.Peer, "installed", lambda peer: False)
    with pytest.raises(ImplUnavailableError, match="is not installed"):
        peers.build("peer:cudnn-bsa", inputs)
    monkeypatch.setattr(peers.Peer, "installed", lambda peer: True)
    with pytest.raises(ImplUnavailableError, match="runs on a GPU"):
        peers.build("peer:cudnn-bsa", inputs)
    reasons = {name: peer.refuses(inputs) for name, peer in peers.PEERS.items() if name != "cudnn-bsa"}
    assert reasons["fastvideo"] == "it computes bfloat16, not float32"
    assert reasons["fa4-dense"] == "it computes bfloat16 and float16, not float32"
    assert "not whole" in str(reasons["fa4-sparse"])


A100 = Card(vendor="nvidia", architecture="sm_80", capability=(8, 0), name="A100")
CELL = GridCell(shape=Shape(name="small", grid=(2, 8, 8), num_heads=2), sparsity=0.5, block=64)


def test_no_number_without_a_gate_on_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw(CELL, tile="auto", dtype=torch.float32, device=torch.device("cpu"), seed=0)
    assert oracle.build_ours("fine:flex", inputs).impl == "flex"
    monkeypatch.setattr(gate, "card_of", lambda _: A100)
    for name in ("fine:flex", "tiled:flex"):
        with pytest.raises(ImplUnavailableError, match="no number is taken of it here: its gate has not been run on compute cap"):
            oracle.build_ours(name, inputs)
    assert oracle.build_ours("fine:cpu", inputs).impl == "cpu"  # it has no gate
    flex = next(impl for impl in IMPLS if impl.name == "flex")
    green = GateRun(
        operator="sparse", impl="flex", vendor="nvidia", architecture="sm_80", device="A100", versions={}, date="", tests=1,
        kernel=flex.kernel,
    )  # fmt: skip
    monkeypatch.setattr(gate, "GATES", (green,))
    assert oracle.build_ours("fine:flex", inputs).impl == "flex"


def test_peers_name_the_cards_that_they_run_on() -> None:
    mi250, b200 = Card(vendor="amd", architecture="gfx90a"), Card(vendor="nvidia", architecture="sm_100", capability=(10, 0))
    assert peers.PEERS["cudnn-bsa"].no_card(b200) == "it runs on compute capability 9.x, not on compute capability 10.0"
    assert peers.PEERS["flashinfer"].no_card(A100) is peers.PEERS["fa4-sparse"].no_card(b200) is None
    assert peers.PEERS["fa4-sparse"].no_card(A100) is not None
    assert all(str(peer.no_card(mi250)).endswith("not on gfx90a") for peer in peers.PEERS.values())
