"""The grid of `strobe bench attention`: the oracle against a plain computation, gates that can be red, records, resumption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import strobe
from strobe.attention.dense.api import dense_attention
from strobe.attention.impls import GateRun
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.impls import IMPLS
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.sparse.selection import BlockSelection
from strobe.bench import gate
from strobe.bench.attention import peers
from strobe.bench.attention import run as running
from strobe.bench.attention.contestant import (
    CHECKED_ROWS,
    BoundContestant,
    CellTensors,
    Found,
    GridCell,
    Shape,
    captured_cells,
    cells,
    draw,
    parsed,
    shape_named,
)
from strobe.bench.attention.run import METHODS, SHARES, Request, contestants, run_grid
from strobe.bench.cells import CellsOutcome
from strobe.compat.video_sparse import video_sparse_attn
from strobe.core.device import Card
from strobe.core.errors import ConfigError, ImplUnavailableError, StrobeError
from strobe.core.tolerances import tolerance
from strobe.models.captured import CapturedCall, write_calls
from strobe.perf.measure.machine import ClockSampler
from strobe.perf.records.record import COSINE, L1, RELATIVE, RMSE, Clocks
from strobe.perf.records.store import RunRecords, read_run
from strobe.perf.report.bench_pages import read_cells
from strobe.perf.report.blocks.grid import judge_methods
from terminal import quiet

CHECKED, CLOSE = tolerance("checked query", "float64"), tolerance("call", "float32")
ELEMENT = tolerance("element", "float32")
ROUNDING = tolerance("rounding", "float32")

SHAPE = Shape(name="tiny", grid=(3, 5, 7), num_heads=2, head_dim=32)
CPU = torch.device("cpu")


def drawn(**changed: object) -> CellTensors:
    cell = GridCell(**({"shape": SHAPE, "sparsity": 0.5, "block": 64} | changed))  # type: ignore[arg-type]
    return draw(cell, tile="cube", dtype=torch.float32, device=CPU, seed=3)


def plain(inputs: CellTensors, contestant: BoundContestant) -> tuple[Tensor, Tensor]:
    """Every query against every key in one matrix, float64: out `[S, H, D]` and lse `[H, S]`."""
    q, k, v, gate = (tensor[0].double().transpose(0, 1) for tensor in (inputs.q, inputs.k, inputs.v, inputs.gate))
    if contestant.kind == "raster":
        turn = torch.complex(inputs.cos.double(), inputs.sin.double())
        q, k = (
            torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2) for x in (q, k)
        )
    tiles, rows = inputs.tiles, inputs.tiles.rows()
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5  # [H, S, S]
    sums = torch.zeros(tiles.num_tiles, len(rows), dtype=torch.float64)
    sums[rows // tiles.block, torch.arange(len(rows))] = 1
    mean = sums / sums.sum(1, keepdim=True)
    coarse = (mean @ q) @ (mean @ k).transpose(1, 2) / q.shape[-1] ** 0.5  # [H, N, N]
    if contestant.kind != "dense":
        best = coarse.topk(inputs.cell.selected(tiles), dim=-1).indices
        seen = torch.zeros_like(coarse).scatter_(-1, best, 1)
        scores = scores.masked_fill(sums.T @ seen @ sums == 0, float("-inf"))
    out = torch.softmax(scores, -1) @ v
    if contestant.coarse:
        spread = sums.T @ (torch.softmax(coarse, -1) @ (mean @ v))
        out = out + (spread * gate if contestant.kind == "raster" else spread)
    return out.transpose(0, 1), torch.logsumexp(scores, -1)


@pytest.mark.parametrize("name", ["dense:sdpa", "fine:cpu", "tiled:cpu", "raster:cpu"])
def test_the_oracle_is_the_plain_computation(name: str) -> None:
    inputs = drawn(backward=True)
    contestant = running.build_ours(name, inputs)
    with torch.no_grad():
        found = contestant.call(*contestant.leaves, lse=True)
    expected = running.expect(inputs, contestant, found, gradients=True)
    leaves = [tensor.clone().requires_grad_() for tensor in (inputs.q, inputs.k, inputs.v)]
    q, k, v = leaves
    out, lse = plain(replace(inputs, q=q, k=k, v=v), contestant)
    torch.testing.assert_close(expected.out[0], out[inputs.checked], rtol=CHECKED, atol=CHECKED)
    torch.testing.assert_close(expected.lse[0], lse[:, inputs.checked], rtol=CHECKED, atol=CHECKED)
    upstream = inputs.upstream[0, inputs.checked].double()
    gradients = torch.autograd.grad(out[inputs.checked], leaves, upstream)
    for given, wanted in zip(expected.gradients, gradients, strict=True):
        torch.testing.assert_close(given.float(), wanted, rtol=ELEMENT, atol=ROUNDING)


def test_precision_is_what_it_says() -> None:
    expected = torch.tensor([3.0, -4.0])
    found = running.precision(torch.tensor([3.0, -2.0]), expected)
    assert found[L1] == pytest.approx(2 / 7)
    assert found[RMSE] == pytest.approx(2**0.5)
    assert found[RELATIVE] == pytest.approx(2**0.5 / 12.5**0.5)
    assert found[COSINE] == pytest.approx(17 / (13**0.5 * 5))
    assert running.precision(torch.tensor([float("nan"), 1.0]), expected)[RELATIVE] == float("inf")


# ----------------------------------------------------------------------------------------------------------------- grid


def test_a_grid_is_every_combination_and_names_are_unique() -> None:
    found = cells([SHAPE, shape_named("16k")], (0.8, 0.9), (64, 128), topks=(8,), directions=(False, True))
    assert len(found) == 2 * 3 * 2 * 2 == len({cell.name for cell in found})
    assert found[0].name == "tiny_s0.8_b64_forward" and all(cell.name.count("_") == 3 for cell in found)


def test_the_budget_is_the_operators_own() -> None:
    inputs = drawn(sparsity=0.7)
    contestant = running.build_ours("tiled:cpu", inputs)
    with torch.no_grad():
        selection = contestant.call(*contestant.leaves, lse=False).selection
    assert selection is not None and int(selection.counts.max()) == inputs.cell.selected(inputs.tiles) == 2
    topk = GridCell(shape=SHAPE, sparsity=None, topk=500, block=64)
    assert topk.selected(tile_layout(SHAPE.grid, 64, 64)) == 4


def test_contestants_are_named_by_kind_impl_or_both() -> None:
    assert contestants(["fine:cpu"], CPU) == ("fine:cpu",)
    assert contestants(["cpu"], CPU) == ("dense:cpu", "fine:cpu", "tiled:cpu", "raster:cpu")
    assert not any(name.endswith(":flex") for name in contestants([], CPU))  # it forms all pairs of tokens on a CPU
    assert "fine:flex" in contestants([], torch.device("cuda"))
    assert {name.partition(":")[0] for name in contestants(["dense"], CPU)} == {"dense"}
    assert set(contestants(["peers"], CPU)) == {f"peer:{name}" for name in peers.PEERS}
    assert not any(name.endswith(":reference") for chosen in ([], ["raster"], ["dense"]) for name in contestants(chosen, CPU))
    assert contestants(["raster:reference"], CPU) == ("raster:reference",)
    with pytest.raises(ConfigError, match="did you mean 'triton'"):
        contestants(["tritn"], CPU)


# ----------------------------------------------------------------------------------------------------------------- laps


def test_laps_follow_the_budget() -> None:
    both, even, most = {"a": (500_000_000, 1), "b": (1_000_000, 2_000_000)}, {"a": (1_000_000_000, 1)}, running.MAX_ROUNDS
    assert running.plan_interleave(both, 0.1) == (running.MIN_ROUNDS, {"a": 1, "b": 1})
    assert running.plan_interleave(both, 5.1)[0] == 5 and running.plan_interleave(both, 5.1)[1]["a"] == 1
    rounds, calls = running.plan_interleave(both, 100.0)
    assert (rounds, calls["b"]) == (most, running.MAX_CALLS)
    for number in range(1, running.MAX_CALLS):  # what the rounds leave is spent on more calls
        assert running.plan_interleave(even, (2 + (number - 0.5) * 2) * most) == (most, {"a": number})


# ------------------------------------------------------------------------------------------------------------------ run

REQUEST = Request(contestants=("dense:sdpa", "fine:cpu", "raster:cpu"), device="cpu", seconds=1e-6)
GRID = (GridCell(shape=SHAPE, sparsity=0.5, block=64), GridCell(shape=SHAPE, sparsity=0.5, block=64, backward=True))


def run_of(root: Path, cell: GridCell = GRID[0], request: Request = REQUEST) -> RunRecords:
    """Measure one cell; return its records."""
    run_grid([cell], request, root, quiet)
    return read_run(root / "cells" / cell.name)


def test_a_cell_is_gated_timed_and_written(tmp_path: Path) -> None:
    outcome = run_grid(GRID, REQUEST, tmp_path, quiet)
    assert outcome == CellsOutcome(measured=("tiny_s0.5_b64_forward", "tiny_s0.5_b64_backward"), kept=(), failed=())
    forward, backward = (read_run(tmp_path / "cells" / name) for name in outcome.measured)
    for run in (forward, backward):
        assert run.end is not None and run.end.status == "complete"
        assert [gate.passed for gate in run.gates] == [True] * 3
        timed = [clip for clip in run.clips if clip.palindrome is not None]
        first = [clip.variant for clip in timed if clip.palindrome == 0]
        assert first == first[::-1] and first[:4] == [*REQUEST.contestants, "matmul"]
        assert {clip.palindrome for clip in timed} == set(range(running.MIN_ROUNDS))
    dense, fine, whole, product = forward.variants
    tokens = 3 * 5 * 7
    assert dense.costs[0].flops == 4 * 32 * 2 * tokens**2 == fine.costs[0].dense_flops
    assert backward.variants[0].costs[0].flops == 2.5 * dense.costs[0].flops
    assert (
        fine.costs[0].flops == whole.costs[0].flops < fine.sizes["padded_flops"] == 4 * 32 * 64**2 * fine.sizes["selected_blocks"]
    )
    assert product.costs[0].flops == 2 * 512**3
    metrics = {(line.variant, line.metric, line.against) for line in forward.quality}
    for metric in ("cosine similarity", "L1 relative error", "RMSE", "LSE error"):
        assert {("fine:cpu", metric, "selection"), ("fine:cpu", metric, "dense")} <= metrics
    assert {(span.name, span.part) for span in forward.spans if span.variant == "raster:cpu"} >= {
        ("attention", ""),
        ("stage", "attention_kernel"),
        ("stage", "whole call"),
    }
    gradients = {line.tensor for line in backward.quality if line.variant == "fine:cpu" and line.metric == "RMSE"}
    assert {"dq", "dk", "dv"} <= gradients


def test_each_lap_of_a_contestant_has_its_own_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second lap is not sampled: it has what was read at the end of its round."""
    clocks = iter(range(1000, 2000))

    class Sampler(ClockSampler):
        def sampled(self) -> Clocks | None:
            mhz = next(clocks)
            return None if mhz % 2 else Clocks(source="nvml", sm_mhz=mhz, samples=1)

    monkeypatch.setattr(running, "ClockSampler", Sampler)
    monkeypatch.setattr(running, "read_clocks", lambda device: Clocks(source="none"))
    run = run_of(tmp_path)
    first = [(clip.variant, clip.clocks) for clip in run.clips if clip.palindrome == 0]
    assert [name for name, _ in first] == [*REQUEST.contestants, "matmul", "matmul", *reversed(REQUEST.contestants)]
    assert [found and found.sm_mhz for _, found in first] == [1000, None, 1002, None, 1004, None, 1006, None]


def test_a_rerun_goes_on_where_the_run_stopped(tmp_path: Path) -> None:
    def stop(done: int, total: int, what: str) -> None:
        if "backward: timing, round 2" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(GRID, REQUEST, tmp_path, stop)
    first = (tmp_path / "cells" / GRID[0].name / "records.jsonl").read_bytes()
    cut = read_run(tmp_path / "cells" / GRID[1].name)
    assert cut.end is not None and cut.end.status == "interrupted" and cut.gates
    outcome = run_grid(GRID, REQUEST, tmp_path, quiet)
    assert (outcome.kept, outcome.measured) == ((GRID[0].name,), (GRID[1].name,))
    assert (tmp_path / "cells" / GRID[0].name / "records.jsonl").read_bytes() == first
    assert read_run(tmp_path / "cells" / f"{GRID[1].name}.1").end == cut.end
    assert run_grid(GRID, REQUEST, tmp_path, quiet).measured == ()


def test_another_request_is_refused_by_name(tmp_path: Path) -> None:
    run_grid(GRID[:1], REQUEST, tmp_path, quiet)
    other = Request(contestants=REQUEST.contestants, device="cpu", seconds=1e-6, seed=1)
    with pytest.raises(ConfigError, match="that differ in seed; give the same, or name another folder"):
        run_grid(GRID[:1], other, tmp_path, quiet)
    (tmp_path / "request.json").write_text("{")
    with pytest.raises(ConfigError, match="is not a request"):
        run_grid(GRID[:1], REQUEST, tmp_path, quiet)
    with pytest.raises(StrobeError):
        run_grid((), REQUEST, tmp_path / "request.json", quiet)


def damaged(monkeypatch: pytest.MonkeyPatch, change: Callable[[Found, CellTensors], Found]) -> None:
    """Let `fine:cpu` compute something else."""
    right = running.build_ours

    def build(asked: str, inputs: CellTensors) -> BoundContestant:
        made = right(asked, inputs)
        wrong = replace(made, call=lambda *leaves, lse: change(made.call(*leaves, lse=lse), inputs))
        return wrong if asked == "fine:cpu" else made

    monkeypatch.setattr(running, "build_ours", build)


def another_selection(found: Found, inputs: CellTensors) -> Found:
    """The output of the tiles of least score, said to be that of the best."""
    worst, chosen = ~inputs.selection.mask(inputs.tiles.num_tiles), inputs.selection
    selection = BlockSelection.from_mask(worst, block=64, q_sizes=chosen.q_sizes, kv_sizes=chosen.kv_sizes)
    return replace(found, out=block_sparse_attention(*inputs.tiled, selection, impl="cpu").out)


ONE_HEAD = torch.tensor([0, 0.01])[:, None]
WRONG = {
    "scaled": lambda found, _: replace(found, out=found.out * 1.001),
    "one wrong head": lambda found, _: replace(found, out=found.out + ONE_HEAD),
    "lse of base 2": lambda found, _: found if found.lse is None else replace(found, lse=found.lse * 1.4427),
    "another selection": another_selection,
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_wrong_kernel_is_red_and_has_no_number(change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged(monkeypatch, change)
    run = run_of(tmp_path)
    assert {gate.variant: gate.passed for gate in run.gates} == {"dense:sdpa": True, "fine:cpu": False, "raster:cpu": True}
    assert not [span for span in run.spans if span.variant == "fine:cpu"]


def test_a_wrong_gradient_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged(monkeypatch, lambda found, _: replace(found, out=1.01 * found.out - 0.01 * found.out.detach()))
    gates = {gate.variant: gate for gate in run_of(tmp_path, GRID[1]).gates}
    assert not gates["fine:cpu"].passed and gates["raster:cpu"].passed and "dq: relative error" in gates["fine:cpu"].rule


def test_a_contestant_that_fails_is_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(found: Found, inputs: CellTensors) -> Found:
        raise AssertionError("block size is not what\nthe kernel wants")

    damaged(monkeypatch, fail)
    request = Request(contestants=("dense:sdpa", "fine:cpu", "fine:triton", "peer:fastvideo"), device="cpu", seconds=1e-6)
    run = run_of(tmp_path, request=request)
    found = {line.variant: (line.kind, line.cause) for line in run.excluded}
    assert found["fine:cpu"] == ("failed", "failed: AssertionError: block size is not what the kernel wants")
    assert all(found[name][0] == "refused" and found[name][1].startswith("refused: ") for name in request.contestants[2:])
    assert {gate.variant for gate in run.gates} == {"dense:sdpa"}


@pytest.mark.gpu
@pytest.mark.alone
def test_a_cell_on_a_gpu_has_host_times_and_a_cold_cache(tmp_path: Path) -> None:
    cell = GridCell(shape=Shape(name="gpu", grid=(8, 16, 16), num_heads=4), sparsity=0.8, block=64)
    request = Request(contestants=("dense:sdpa", "fine:triton"), device="cuda", seconds=0.2)
    run = run_of(tmp_path, cell, request)
    assert all(gate.passed for gate in run.gates)
    assert {span.clock for span in run.spans if span.name == "attention_kernel"} == {"cuda_event"}
    assert {span.clock for span in run.spans if span.name == "host_call"} == {"perf_counter"}


def test_a_query_sees_the_keys_of_the_tiles_that_count() -> None:
    """What stands behind the count of a row is not a selection."""
    tile_of = torch.tensor([0, 0, 1, 1, 2, 2])
    given = SimpleNamespace(tile_of=tile_of, checked=torch.tensor([0, 5]), tiles=SimpleNamespace(num_tiles=3))
    indices = torch.tensor([[[[0, 2, 1], [1, 2, 0], [2, 0, 1]]]], dtype=torch.int32)
    counts = torch.tensor([[[2, 1, 1]]], dtype=torch.int32)
    seen = running._seen(given, SimpleNamespace(indices=indices, counts=counts), 0, 0)
    assert seen.int().tolist() == [[1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1]]


class Library:
    """A stand-in for other packages: the functions the adapters call, by the reference impl, in the packages' layouts."""

    def __init__(self, inputs: CellTensors) -> None:
        self.inputs, self.BSA = inputs, self

    def _fine(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        found = block_sparse_attention(q, k, v, self.inputs.selection, impl="reference", return_lse=True)
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
    expected = running.expect(inputs, contestant, found, gradients=backward)
    pairs = [(contestant.as_raster(found.out, inputs)[:, inputs.checked], expected.out)]
    if found.lse is not None:
        rows = inputs.tiles.rows(inputs.device)[inputs.checked] if contestant.tiled else inputs.checked
        torch.testing.assert_close(found.lse[:, :, rows].double(), expected.lse, rtol=ELEMENT, atol=ELEMENT)
    if backward:
        upstream = torch.zeros_like(inputs.upstream)
        upstream[:, inputs.checked] = inputs.upstream[:, inputs.checked]
        given = (contestant.as_raster(each, inputs) for each in contestant.backward(inputs, upstream)())
        pairs += zip(given, expected.gradients, strict=True)
    assert all(running.precision(one, other)[RELATIVE] < CLOSE for one, other in pairs)


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
SMALL = GridCell(shape=Shape(name="small", grid=(2, 8, 8), num_heads=2), sparsity=0.5, block=64)


def test_no_number_without_a_gate_on_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw(SMALL, tile="auto", dtype=torch.float32, device=CPU, seed=0)
    assert running.build_ours("fine:flex", inputs).impl == "flex"
    monkeypatch.setattr(gate, "card_of", lambda _: A100)
    for name in ("fine:flex", "tiled:flex"):
        with pytest.raises(ImplUnavailableError, match="no number is taken of it here: its gate has not been run on compute cap"):
            running.build_ours(name, inputs)
    assert running.build_ours("fine:cpu", inputs).impl == "cpu"  # it has no gate
    flex = next(impl for impl in IMPLS if impl.name == "flex")
    green = GateRun(
        operator="sparse", impl="flex", vendor="nvidia", architecture="sm_80", device="A100", versions={}, date="", tests=1,
        kernel=flex.kernel,
    )  # fmt: skip
    monkeypatch.setattr(gate, "GATES", (green,))
    assert running.build_ours("fine:flex", inputs).impl == "flex"


def test_peers_name_the_cards_that_they_run_on() -> None:
    mi250, b200 = Card(vendor="amd", architecture="gfx90a"), Card(vendor="nvidia", architecture="sm_100", capability=(10, 0))
    assert peers.PEERS["cudnn-bsa"].no_card(b200) == "it runs on compute capability 9.x, not on compute capability 10.0"
    assert peers.PEERS["fa4-dense"].no_card(A100) is peers.PEERS["fa4-sparse"].no_card(b200) is None
    assert peers.PEERS["fa4-sparse"].no_card(A100) is not None
    assert all(str(peer.no_card(mi250)).endswith("not on gfx90a") for peer in peers.PEERS.values())


TOKENS, TEXT, HEADS, WIDTH = 3 * 5 * 7, 4, 2, 32
"""Of captured calls: the tokens, heads and channels of `SHAPE`, and text after the video."""


def captured(file: Path, block: int = 64) -> tuple[GridCell, tuple[Tensor, Tensor, Tensor]]:
    """The cell of one call, and its tensors."""
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, TOKENS + TEXT, HEADS, WIDTH, generator=generator) for _ in "qkv")
    call = CapturedCall(model="Some_Model", layer="blocks.7.attn1", step=0, grid=SHAPE.grid, text_tokens=TEXT)
    write_calls(file, [(call, (q, k, v))])
    (cell,) = captured_cells(file, (0.5,), (block,))
    return cell, (q, k, v)


def measured(cells: Sequence[GridCell], names: tuple[str, ...], root: Path) -> RunRecords:
    """Measure cells; return the run of the first."""
    request = Request(contestants=names, tile="cube", seconds=0.01, device="cpu")
    run_grid(cells, request, root, quiet)
    return read_run(root / "cells" / cells[0].name)


def test_every_method_is_measured_at_every_level_on_the_calls_own_numbers(tmp_path: Path) -> None:
    cell, given = captured(tmp_path / "qkv.safetensors")
    assert cell.name == "Some-Model-3x5x7_call000_b64_forward"
    inputs = draw(cell, tile="cube", dtype=torch.float32, device=CPU, seed=0)
    assert all(torch.equal(ours, each[:, :TOKENS]) for ours, each in zip((inputs.q, inputs.k, inputs.v), given, strict=True))
    names = contestants(("dense:sdpa", "vsa"), CPU, (0.25, 0.5))
    levels = {method: SHARES if method == "share" else (0.25, 0.5) for method in METHODS}
    assert names == ("dense:sdpa", *(f"vsa:{method}@{level}" for method, own in levels.items() for level in own))
    run = measured([cell], names, tmp_path / "b")
    assert run.cell is not None
    assert (run.cell.layer, run.cell.step, run.cell.text_tokens, run.cell.topk) == ("blocks.7.attn1", 0, TEXT, None)
    assert [gate.passed for gate in run.gates] == [True] * len(names)


def test_the_words_of_methods_and_levels() -> None:
    usual = contestants((), CPU, (0.9,))
    sparse = ("vsa:count@0.9", "vsa:sub-block@0.9", "vsa:corrected@0.9", *(f"vsa:share@{share}" for share in SHARES))
    assert usual[-7:] == sparse and all(name.startswith("dense:") for name in usual[:-7])
    assert contestants(("share", "corrected"), CPU, (0.5,)) == ("vsa:corrected@0.5", *sparse[3:])
    assert contestants(("count", "fa4-dense", "fa4-sparse"), CPU, (0.5, 0.9)) == (
        "peer:fa4-dense", "vsa:count@0.5", "vsa:count@0.9", "peer:fa4-sparse@0.5", "peer:fa4-sparse@0.9",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="did you mean 'count'"):
        contestants(("cuont",), CPU, (0.5,))
    assert (parsed("vsa:count@0.95"), parsed("dense:sdpa")) == (("vsa", "count", 0.95), ("dense", "sdpa", None))


def test_a_peer_at_a_level_is_given_the_selection_of_that_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell, _), seen = captured(tmp_path / "qkv.safetensors"), {}

    def build(name: str, inputs: object) -> object:
        made = running.build_ours("fine:cpu", inputs)  # type: ignore[arg-type]
        seen[name] = inputs.selection.indices.shape[-1], inputs.tiles.num_tiles  # type: ignore[attr-defined]
        return running.BoundContestant(
            name=name, kind="fine", impl="theirs", leaves=made.leaves, call=made.call, tiled=True, reason=""
        )

    monkeypatch.setattr(running.peers, "build", build)
    names = ("dense:sdpa", "peer:cudnn-bsa@0.25", "peer:cudnn-bsa@0.75")
    assert [gate.passed for gate in measured([cell], names, tmp_path / "b").gates] == [True] * 3
    tiles = next(iter(seen.values()))[1]
    assert seen == {names[1]: (-(-tiles * 3 // 4), tiles), names[2]: (-(-tiles // 4), tiles)}


def by_hand(q: Tensor, k: Tensor, v: Tensor, grid: tuple[int, int, int], name: str) -> dict[str, Any]:
    """Compute one head of count, corrected or share on cubes of 4, in float64: its error, dense attention and the weight kept."""
    _, method, level = parsed(name)
    places = torch.cartesian_prod(*(torch.arange(size) // 4 for size in grid))
    tile_of = torch.unique(places, dim=0, return_inverse=True)[1]
    member = torch.nn.functional.one_hot(tile_of).double()  # [S, N]
    sizes, (q, k, v) = member.sum(0), (each.double() for each in (q, k, v))
    qm, km, vm = (member.T @ each / sizes[:, None] for each in (q, k, v))
    coarse, tiles, scale = qm @ km.T / WIDTH**0.5, len(sizes), WIDTH**-0.5
    sums = coarse.softmax(-1).sort(-1, descending=True).values.cumsum(-1)
    count = (sums < level).sum(-1) + 1 if method == "share" else torch.tensor([ceil((1 - level) * tiles)] * tiles)
    chosen = coarse.argsort(-1, descending=True).argsort(-1) < count[:, None]
    seen = chosen[tile_of][:, tile_of]
    weights = (q @ k.T * scale).exp()
    kept, means = weights * seen, (q @ km.T * scale).exp() * sizes * ~chosen[tile_of] * (method == "corrected")
    out = (kept @ v + means @ vm) / (kept.sum(-1) + means.sum(-1))[:, None]
    dense = weights @ v / weights.sum(-1, keepdim=True)
    return {"off": out - dense, "dense": dense, "kept": kept.sum(-1) / weights.sum(-1), "density": seen.double().mean().item()}


@pytest.mark.parametrize("layers", [1, 2])
def test_share_and_correction_have_the_numbers_of_a_calculation_by_hand(tmp_path: Path, layers: int) -> None:
    grid, file, generator = (5, 9, 6), tmp_path / "qkv.safetensors", torch.Generator().manual_seed(3)
    tokens, names = prod(grid), ("vsa:count@0.75", "vsa:corrected@0.75", "vsa:share@0.5", "vsa:share@0.9")
    given = [[1.5 * torch.randn(1, tokens, HEADS, WIDTH, generator=generator) for _ in "qkv"] for _ in range(layers)]
    for three in given:
        for each in three:
            each += torch.randn(1, 1, HEADS, WIDTH, generator=generator) * torch.linspace(-1, 1, tokens)[:, None, None]
    calls = (CapturedCall(model="M", layer=f"l{at}", step=0, grid=grid) for at in range(layers))
    write_calls(file, [(call, (q, k, v)) for call, (q, k, v) in zip(calls, given, strict=True)])
    measured(captured_cells(file, (0.75,), (64,)), ("dense:sdpa", *names), tmp_path / "b")
    judged = {each.entry.name: each for each in judge_methods(read_cells(tmp_path / "b", "attention")[0])[1]}
    rows = torch.linspace(0, tokens - 1, CHECKED_ROWS).round().long()
    for name in names:
        errors, heads, kept, density = [], [], [], []
        for q, k, v in given:
            found = [by_hand(q[0, :, head], k[0, :, head], v[0, :, head], grid, name) for head in range(HEADS)]
            off, dense = (torch.stack([each[which][rows] for each in found]) for which in ("off", "dense"))
            errors.append((off.square().mean() / dense.square().mean()).sqrt().item())
            heads.append((off.square().mean((1, 2)) / dense.square().mean((1, 2))).sqrt().max().item())
            kept.append(torch.stack([each["kept"][rows] for each in found]).mean().item())
            density += [each["density"] for each in found]
        row, worst = judged[name], max(range(layers), key=errors.__getitem__)
        assert row.error == pytest.approx(sum(errors) / layers, rel=1e-3)
        assert (row.worst_head, row.kept) == pytest.approx((max(heads), sum(kept) / layers), rel=1e-3)
        assert row.worst_layer == (f"l{worst}", pytest.approx(errors[worst], rel=1e-3))
        assert row.density == pytest.approx(sum(density) / len(density))
        assert row.entry.median_ns > 0
    assert judged["vsa:corrected@0.75"].error < judged["vsa:count@0.75"].error
    assert judged["vsa:corrected@0.75"].kept == judged["vsa:count@0.75"].kept


def test_a_call_that_leaves_the_correction_out_gets_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell, _), real = captured(tmp_path / "qkv.safetensors"), strobe.video_sparse_attention
    monkeypatch.setattr(
        running, "video_sparse_attention", lambda *three, **given: real(*three, **{**given, "pool_skipped": False})
    )
    names = ("dense:sdpa", "vsa:count@0.5", "vsa:corrected@0.5")
    assert [gate.passed for gate in measured([cell], names, tmp_path / "b").gates] == [True, True, False]


def test_the_impl_that_is_named_is_that_of_the_methods_own_call(tmp_path: Path) -> None:
    cell, _ = captured(tmp_path / "qkv.safetensors", 128)
    inputs = draw(cell, tile="auto", dtype=torch.float32, device=CPU, seed=0)
    count, share = (running.build_ours(f"vsa:{name}@0.9", inputs.at(0.9)).reason for name in ("count", "share"))
    assert count.startswith("cudnn: ") and share.startswith("triton: "), "counts of tiles differ by row"
