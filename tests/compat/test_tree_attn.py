"""`tree_attn_decode` as its users know it; the guide's timer: its names, leaves that add up without their parents."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import forked
import tree_work as work
from strobe.compat import tree_attn_decode
from strobe.compat.assert_tree_attn import Timer, profiled_tree_attn_decode, render, shares
from strobe.core.errors import ImplUnavailableError, ShapeError
from strobe.core.tolerances import tolerance
from tree_ranks import Processes, Runner, threads

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
