"""The names of others give what their definition says: sparse video attention, `tree_attn_decode` and the guide's timer."""

from __future__ import annotations

import contextlib
import inspect
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import forked
import tree_work as work
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.sparse.video import video_sparse_attention
from strobe.compat import tree_attn_decode, video_sparse_attn
from strobe.compat.assert_tree_attn import Timer, profiled_tree_attn_decode, render, shares
from strobe.core.errors import ImplUnavailableError, ShapeError, StrobeError
from strobe.core.tolerances import tolerance
from tree_ranks import Processes, Runner, threads

ELEMENT = tolerance("element", "float32")


def _draw(rows: int, seed: int) -> Tensor:
    return torch.randn(2, 3, rows, 16, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("block_size", "block"), [(64, 64), ((4, 4, 4), 64), ((2, 8, 8), 128), ((4, 8, 8), 256), (256, 256)])
def test_the_documented_calls(block_size: Any, block: int) -> None:
    """Block by block, with plain softmax."""
    q, k, v, gate = _draw(2 * block, 0), _draw(3 * block, 1), _draw(3 * block, 2), _draw(2 * block, 3)
    found = video_sparse_attn(q, k, v, topk=2, block_size=block_size, compress_attn_weight=gate)
    q_means, k_means, v_means = (tensor.unflatten(2, (-1, block)).mean(dim=3) for tensor in (q, k, v))
    scores = q_means @ k_means.transpose(-1, -2) / 4
    coarse = (torch.softmax(scores, dim=-1) @ v_means).repeat_interleave(block, dim=2)
    seen = torch.zeros(2, 3, 2, 3, dtype=torch.bool).scatter(-1, scores.topk(2).indices, True)
    mask = seen.repeat_interleave(block, dim=2).repeat_interleave(block, dim=3)
    fine = torch.softmax((q @ k.transpose(-1, -2) / 4).masked_fill(~mask, float("-inf")), dim=-1) @ v
    torch.testing.assert_close(found, coarse * gate + fine, atol=ELEMENT, rtol=ELEMENT)
    plain = video_sparse_attn(q, k, v, topk=2, block_size=block_size)
    torch.testing.assert_close(plain, coarse + fine, atol=ELEMENT, rtol=ELEMENT)


def test_fastvideo_s_documented_calls_bind_as_they_are_written() -> None:
    """The public signature of fastvideo-kernel 0.3, by position and by name, and the older one without sizes."""
    named = ["q", "k", "v", "variable_block_sizes", "q_variable_block_sizes", "topk", "block_size", "compress_attn_weight"]
    parameters = inspect.signature(video_sparse_attn).parameters
    positional = [name for name, each in parameters.items() if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert positional == named
    q, k, v, gate = (_draw(192, seed) for seed in range(4))
    sizes = torch.tensor([64, 20, 64], dtype=torch.int32)
    for tensor in (q, k, v):
        tensor[:, :, 84:128] = 0  # padding rows are zeros
    by_position = video_sparse_attn(q, k, v, sizes, sizes, 2, (4, 4, 4), gate)
    by_name = video_sparse_attn(
        q, k, v, variable_block_sizes=sizes, q_variable_block_sizes=sizes, topk=2, block_size=(4, 4, 4), compress_attn_weight=gate
    )
    assert torch.equal(by_position, by_name)
    assert torch.equal(video_sparse_attn(q, k, v, sizes, sizes, topk=2), video_sparse_attn(q, k, v, sizes, sizes, 2, 64))
    older = video_sparse_attn(q, k, v, topk=2, block_size=64)
    whole = torch.full((3,), 64, dtype=torch.int32)
    torch.testing.assert_close(older, video_sparse_attn(q, k, v, whole, whole, topk=2))
    reference = video_sparse_attn(q, k, v, sizes, sizes, 2, (4, 4, 4), gate, impl="reference")
    torch.testing.assert_close(by_name, reference, atol=ELEMENT, rtol=ELEMENT)
    assert not by_name[:, :, 84:128].any()


def test_ragged_tiles_are_those_of_our_own_operator() -> None:
    layout = tile_layout((3, 5, 6), 64)
    raster = [torch.randn(1, layout.num_tokens, 2, 8) for _ in range(3)]
    ours = video_sparse_attention(*raster, grid=(3, 5, 6), topk=2, coarse=True).out
    tiled = [layout.to_tiles(tensor).transpose(1, 2) for tensor in raster]
    theirs = video_sparse_attn(*tiled, layout.sizes(), layout.sizes(), topk=2, block_size=(4, 4, 4))
    torch.testing.assert_close(layout.to_raster(theirs.transpose(1, 2)), ours)
    assert torch.equal(video_sparse_attn(*tiled, layout.sizes(), topk=2), theirs)  # one kind of sizes serves both
    every = video_sparse_attn(*tiled, layout.sizes(), topk=99)
    assert torch.equal(every, video_sparse_attn(*tiled, layout.sizes(), topk=layout.num_tiles))


SIZES, GATE = "variable_block_sizes", "compress_attn_weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 32}, "block: got 32 tokens, expected one of 64, 128, 256"),
        ({"block_size": 128}, "got 64 and 192 rows, expected multiples of the block's 128"),
        ({SIZES: torch.ones(2)}, rf"{SIZES}: got shape \(2,\), expected \(3,\)"),
        ({SIZES: torch.tensor([64, 65, 0])}, f"{SIZES}: got 0 to 65 tokens in a block, expected 0 to 64"),
        ({SIZES: [64, 64, 64]}, rf"{SIZES}: got a list, expected a tensor of shape \(3,\)"),
        ({"q": torch.ones(2, 3)}, r"q: got shape \(2, 3\), expected \[B, H, S, D\]"),
        ({"k": _draw(192, 1)[:, :2]}, r"\(2, 2, 192, 16\).*, expected \[B, H, S, D\] with one batch, number of heads"),
        ({"topk": 0}, "topk: got 0, expected 1 to 3"),
        ({GATE: 0.5}, rf"{GATE}: got 0.5, expected a tensor of what broadcasts to q's \(2, 3, 64, 16\)"),
        ({GATE: torch.ones(2, 64, 3, 16)}, rf"{GATE}: got shape .*\(2, 3, 64, 16\), \[B, H, S, D\]"),
        ({"impl": "cudnn"}, "impl 'cudnn' cannot run: it runs on a GPU"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(StrobeError, match=message):
        video_sparse_attn(**({"q": _draw(64, 0), "k": _draw(192, 1), "v": _draw(192, 2)} | change))


ELEMENT_BF16 = tolerance("element", "bfloat16")
ROUNDING = tolerance("rounding", "float32")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Runner]:
    with threads() as run:
        yield run


def draw(length: int, heads: int, dim: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(2, heads, length, dim, generator=torch.Generator().manual_seed(seed)).to(dtype)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1).double() for each in (k, v))
    return torch.softmax(q.double() @ k.transpose(-1, -2) * q.shape[3] ** -0.5, dim=-1) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("length", [1, 5, 31])  # 5 keys on 4 ranks: chunks of 2, 2, 1 and none
def test_whole_keys_are_shared_out(ranks: Runner, length: int, dtype: torch.dtype) -> None:
    q, k, v = draw(1, 8, 16, dtype, 0), draw(length, 2, 16, dtype, 1), draw(length, 2, 12, dtype, 2)
    tolerance = 1e-5 if dtype.itemsize > 2 else 2e-2
    for out in ranks(4, lambda rank: tree_attn_decode(q, k, v)):
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), plain(q, k, v), atol=tolerance, rtol=tolerance)


def test_keys_that_are_spread_already(ranks: Runner) -> None:
    q, k, v = draw(3, 4, 8, torch.bfloat16, 0), draw(9, 1, 8, torch.bfloat16, 1), draw(9, 1, 8, torch.bfloat16, 2)
    spans = [slice(0, 4), slice(4, 4), slice(4, 9)]

    def work(rank: int) -> Tensor:
        if rank == 1:
            return tree_attn_decode(q, None, None, shard_kv_seq=False)
        return tree_attn_decode(q, k[:, :, spans[rank]], v[:, :, spans[rank]], 1e-6, False, False)

    for out in ranks(3, work):
        torch.testing.assert_close(out.double(), plain(q, k, v), atol=ELEMENT_BF16, rtol=ELEMENT_BF16)


def test_one_process_without_a_group() -> None:
    q, k, v = draw(2, 4, 8, torch.float32, 0), draw(6, 2, 8, torch.float32, 1), draw(6, 2, 5, torch.float32, 2)
    torch.testing.assert_close(tree_attn_decode(q, k, v).double(), plain(q, k, v), atol=ROUNDING, rtol=ROUNDING)


def test_what_cannot_run_says_so() -> None:
    q, k = draw(1, 4, 8, torch.float32, 0), draw(3, 2, 8, torch.float32, 1)
    with pytest.raises(ShapeError, match="got None, expected the whole keys"):
        tree_attn_decode(q)
    with pytest.raises(ShapeError, match="without other ranks"):
        tree_attn_decode(q, shard_kv_seq=False)
    with pytest.raises(ImplUnavailableError, match="tensors are on cpu"):
        tree_attn_decode(q, k, k, use_triton=True)
    with pytest.raises(ShapeError, match=r"q: got shape \(4, 1, 8\)"):
        tree_attn_decode(q[0], k, k)


LEAVES = [
    "comp_shard_kv", "comp_local_attention", "comm_max_lse", "comp_num_den", "comm_sum_den", "comm_sum_num", "comp_final_output",
]  # fmt: skip
SAMPLE = {  # the guide's own printout
    "comp_shard_kv": 0.102, "comp_local_attention": 23.851, "comp_num_den": 0.074, "comp_final_output": 0.101,
    "comm_max_lse": 14.262, "comm_sum_den": 3.486, "comm_sum_num": 1.637, "total_tree_attn": 43.673,
}  # fmt: skip


def one(heads: int, length: int, seed: int) -> Tensor:
    return draw(length, heads, 8, torch.float32, seed)[:1]


@pytest.mark.parametrize("serialised", [False, True])
def test_the_blocks_and_the_values(serialised: bool, capsys: pytest.CaptureFixture[str]) -> None:
    q, k, v = one(4, 1, 0), one(2, 9, 1), one(2, 9, 2)  # 9 keys on 4 ranks: 3, 3, 3, 0
    timers = [Timer(serialised=serialised) for _ in range(4)]

    def work(rank: int) -> Tensor:
        profiled_tree_attn_decode(q, k, v, timers[rank], warmup=True)
        for _ in range(3):
            out = profiled_tree_attn_decode(q, k, v, timers[rank])
        return out

    with threads() as run:
        for out in run(4, work):
            torch.testing.assert_close(out, tree_attn_decode(q, k, v))
    for rank, timer in enumerate(timers):
        local = "comp_edge_case" if rank == 3 else "comp_local_attention"
        leaves = [local if name == "comp_local_attention" else name for name in LEAVES]
        waits = ["wait_max_lse", "wait_sum_den", "wait_sum_num"] if serialised else []
        assert sorted(timer.times) == sorted([*leaves, *waits, "total_tree_attn"])
        assert all(len(times) == 3 for times in timer.times.values()) and timer.parents == {"total_tree_attn"}
        totals = shares(timer.get_stats(), timer.parents)
        assert sum(totals.values()) <= timer.get_stats()["total_tree_attn"]["total"]
    timers[0].print_stats(rank=0)
    printed = capsys.readouterr().out
    assert printed.startswith("[Rank 0] Profiling Results (all times in ms; ")
    assert re.search(r"AROUND OTHERS \(not summed\):\n  total_tree_attn +: ", printed)


def test_ranks_in_processes_of_their_own_add_what_belongs_together() -> None:
    with Processes(2) as two:
        for out, value in two.run(work.profiled_decode):
            torch.testing.assert_close(out, value.expand(1, 4, 8, 8))


def test_tensors_that_do_not_fit_are_named_in_the_layout_of_the_guide() -> None:
    with pytest.raises(ShapeError, match=r"k: got 3 heads, .*\[B, H, S, D\]"):
        profiled_tree_attn_decode(one(4, 1, 0), one(3, 9, 1), one(3, 9, 2), Timer())


def test_a_parent_is_not_summed_with_its_children() -> None:
    stats = {name: dict.fromkeys(("mean", "spread", "total", "p50", "p90", "count"), total) for name, total in SAMPLE.items()}
    printed = render(stats, frozenset({"total_tree_attn"}), 0, False)
    assert "Total Computation   :   24.128 ms ( 55.5%)" in printed  # the guide printed 77.8 %
    assert "Total Communication :   19.385 ms ( 44.5%)" in printed
    timer = Timer()
    with timer.time_block("my_attention"), timer.time_block("outer"), timer.time_block("comp_inner"):
        time.sleep(0.001)
    assert timer.parents == {"my_attention", "outer"}
    assert shares(timer.get_stats(), timer.parents) == {"computation": timer.get_stats()["comp_inner"]["total"]}


def run_script(folder: Path, *arguments: str) -> forked.Done:
    code = "import runpy; runpy.run_module('strobe.compat.assert_tree_attn', run_name='__main__', alter_sys=True)"
    with contextlib.chdir(folder):
        return forked.run(code, *arguments)


def test_the_guide_s_script_prints_its_blocks_and_their_sums(tmp_path: Path) -> None:
    small = ("--world-size", "1", "--seq-len", "64", "--profile-iterations", "1", "--strategies", "allreduce3")
    done = run_script(tmp_path, *small, "--enable-profiling", "--output", "there")
    assert done.returncode == 0 and "1 cells measured, 0 were there, 0 failed" in done.stdout + done.stderr
    for mode in ("free-running", "serialised"):
        assert f"blocks of the guide, {mode}." in done.stdout
    leaves = [line for line in done.stdout.splitlines() if line.startswith("* Leaves: ")]
    assert all(abs(sum(map(float, re.findall(r"([\d.]+) %", line))) - 100) < 0.3 for line in leaves) and len(leaves) == 2
    assert all(f"\n{block} " in done.stdout for block in ("comp_local_attention", "comm_max_lse", "total_tree_attn"))
    assert (tmp_path / "there" / "report.html").is_file()
    none = run_script(tmp_path, *small, "--use-cuda")
    assert torch.cuda.is_available() or (none.returncode == 3 and "torch sees no CUDA device here" in none.stderr)
