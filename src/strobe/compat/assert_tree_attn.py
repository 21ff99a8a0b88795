"""`Timer` and `profiled_tree_attn_decode` of the tree-attention profiling guide: its block names, with sums that hold.

Two ways to time, and both are needed. Free-running (the default): nothing is synchronised inside the call, so its total is the
truth; a block around a collective then holds the wait for the other ranks as well. Serialised: the device is drained around every
block and the ranks meet before every collective (blocks `wait_*`), so `comm_*` is transfer alone, and the whole takes longer.

The script of the guide, by its name and with its flags, is `strobe bench tree`, which checks every rank and prints the blocks:

    python -m strobe.compat.assert_tree_attn --world-size 4 --seq-len 1024 --enable-profiling
"""

from __future__ import annotations

import runpy
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from strobe.attention.tree.comm import Agreement, CollectiveCall, Comm, comm_of
from strobe.attention.tree.local import Shard, empty_state, local_attention
from strobe.attention.tree.placement import Mask, Segment
from strobe.attention.tree.spec import check_heads, check_tensors
from strobe.compat.tree_attn import LAYOUT, shard_keys
from strobe.core.device import synchronize
from strobe.perf.measure.stats import percentile, tail

TOTAL = "total_tree_attn"
"""The block around a whole call."""


class Timer:
    """Timer of named blocks, which may be nested.

    Args:
        use_cuda: blocks are pairs of events on the current stream, read only when the times are; else the wall clock.
        serialised: drain the device around every block, and let the ranks meet before every collective.
    """

    def __init__(self, use_cuda: bool = False, *, serialised: bool = False) -> None:
        self.use_cuda = use_cuda
        self.serialised = serialised
        self._times: dict[str, list[float]] = {}
        self._pending: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._parents: set[str] = set()
        self._open: list[str] = []

    @contextmanager
    def time_block(self, name: str) -> Iterator[None]:
        """Time the block. A block with others inside is their parent, and is not summed with them."""
        self._parents.update(self._open)
        self._open.append(name)
        try:
            yield from self._timed(name)
        finally:
            self._open.pop()

    def _timed(self, name: str) -> Iterator[None]:
        if not self.use_cuda:
            start = time.perf_counter()
            yield
            self._times.setdefault(name, []).append((time.perf_counter() - start) * 1e3)
            return
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if self.serialised:
            torch.cuda.synchronize()
        first.record()
        yield
        last.record()
        if self.serialised:
            torch.cuda.synchronize()
        self._pending.append((name, first, last))

    @property
    def times(self) -> dict[str, list[float]]:
        """Milliseconds of every block, in the order it ran; reading them waits for the device."""
        for name, first, last in self._pending:
            last.synchronize()
            self._times.setdefault(name, []).append(first.elapsed_time(last))
        self._pending.clear()
        return self._times

    @property
    def parents(self) -> frozenset[str]:
        """Names of blocks that contain others."""
        return frozenset(self._parents)

    def get_stats(self) -> dict[str, dict[str, float]]:
        """Return statistics of every block, ms: mean, min, max, total, count, p50, p90, spread (max - min), tail (p99 or max)."""
        return {
            name: {
                "mean": sum(times) / len(times),
                "min": min(times),
                "max": max(times),
                "total": sum(times),
                "count": len(times),
                "p50": percentile(times, 0.5),
                "p90": percentile(times, 0.9),
                "tail": tail(times)[1],
                "spread": max(times) - min(times),
            }
            for name, times in self.times.items()
        }

    def print_stats(self, rank: int | None = None) -> None:
        """Write the table of this rank to stdout: leaves by kind, their sums and shares, and apart from them the parents."""
        sys.stdout.write(render(self.get_stats(), self.parents, rank, self.serialised))


def kind_of(name: str) -> str:
    """Return `communication`, `waiting` or `computation`, by the start of a name."""
    return {"comm": "communication", "wait": "waiting"}.get(name.partition("_")[0], "computation")


def shares(stats: Mapping[str, Mapping[str, float]], parents: frozenset[str]) -> dict[str, float]:
    """Return the total ms of each kind, without parents."""
    totals: dict[str, float] = {}
    for name, each in stats.items():
        if name not in parents:
            totals[kind_of(name)] = totals.get(kind_of(name), 0.0) + each["total"]
    return totals


def render(stats: Mapping[str, Mapping[str, float]], parents: frozenset[str], rank: int | None, serialised: bool) -> str:
    """Format the table that `print_stats` writes."""
    mode = "serialised" if serialised else "free-running"
    lines = [f"{'' if rank is None else f'[Rank {rank}] '}Profiling Results (all times in ms; {mode}; ± is max - min):", "=" * 60]
    for kind in ("computation", "communication", "waiting"):
        names = [name for name in stats if name not in parents and kind_of(name) == kind]
        if names:
            lines += [f"{kind.upper()}:", *(_line(name, stats[name]) for name in names), ""]
    around = [name for name in stats if name in parents]
    if around:
        lines += ["AROUND OTHERS (not summed):", *(_line(name, stats[name]) for name in around), ""]
    totals = shares(stats, parents)
    whole = sum(totals.values())
    lines.append("SUMMARY:")
    for kind, total in totals.items():
        lines.append(f"  {f'Total {kind.capitalize()}':<20}: {total:8.3f} ms ({100 * total / whole if whole else 0.0:5.1f}%)")
    lines.append(f"  {'Total Time':<20}: {whole:8.3f} ms")
    return "\n".join(lines) + "\n"


def _line(name: str, stats: Mapping[str, float]) -> str:
    return (
        f"  {name:<25}: {stats['mean']:8.3f} ± {stats['spread']:6.3f} (total: {stats['total']:8.3f}; "
        f"p50 {stats['p50']:.3f}, p90 {stats['p90']:.3f}, n {stats['count']:.0f})"
    )


def profiled_tree_attn_decode(q: Tensor, k: Tensor, v: Tensor, timer: Timer, warmup: bool = False) -> Tensor:
    """Run `tree_attn_decode` by the paper's three all-reduces, block by block. All ranks call it; a single process may.

    Blocks: `comp_shard_kv`, `comp_local_attention` (`comp_edge_case` without keys), `comm_max_lse`, `comp_num_den`,
    `comm_sum_den`, `comm_sum_num`, `comp_final_output`, all inside `total_tree_attn`; serialised also `wait_max_lse`,
    `wait_sum_den` and `wait_sum_num`.

    Args:
        q: `[B, H, S_q, D]`, the same on every rank.
        k: `[B, H_kv, S, D]`, whole, the same on every rank.
        v: `[B, H_kv, S, Dv]`.
        timer: gets the times.
        warmup: run without recording.

    Returns:
        `[B, H, S_q, Dv]` in the dtype of q.

    Raises:
        ShapeError: the tensors do not fit together.
        CollectiveError: ranks disagree, or one is gone or does not answer within 30 s.
    """
    check_tensors(q, k, v, LAYOUT)
    check_heads(q.shape[1], k.shape[1], LAYOUT)
    timer = Timer(timer.use_cuda, serialised=timer.serialised) if warmup else timer
    comm = comm_of(None) if dist.is_initialized() else Comm(None)
    text = f"profiled q {list(q.shape)} k {list(k.shape)} v {list(v.shape)} {q.dtype}"
    digest = zlib.crc32(text.encode())
    call = comm.begin(text, digest, 30.0)
    call.first = Agreement(call, digest, q, (k.shape[1], v.shape[3]), q.device).wait
    with torch.no_grad(), timer.time_block(TOTAL):
        return _decode(q, k, v, timer, call)


def _decode(q: Tensor, k: Tensor, v: Tensor, timer: Timer, call: CollectiveCall) -> Tensor:
    wide = torch.promote_types(q.dtype, torch.float32)
    with timer.time_block("comp_shard_kv"):
        k, v = (each.transpose(1, 2) for each in shard_keys(k, v, call.rank, call.size))
        queries, length = q.transpose(1, 2), k.shape[1]
    with timer.time_block("comp_local_attention" if length else "comp_edge_case"):
        shard = Shard(k=k, v=v, segments=(Segment(start=0, length=length),))
        rows = (0, queries.shape[1])
        part = local_attention(queries, shard, Mask(), rows, q.shape[3] ** -0.5) if length else empty_state(queries, v.shape[3])
        assert part.lse is not None
    top = _reduced(timer, call, "max_lse", partial(call.all_reduce, part.lse.clone(), largest=True))
    with timer.time_block("comp_num_den"):
        top = torch.where(top.isneginf(), torch.zeros_like(top), top)
        weight = torch.exp(part.lse - top).transpose(1, 2).unsqueeze(-1).to(wide).contiguous()  # [B, S, H, 1]
        weighted = part.out.to(wide) * weight
    total = _reduced(timer, call, "sum_den", partial(call.all_reduce, weight))
    weighted = _reduced(timer, call, "sum_num", partial(call.all_reduce, weighted))
    with timer.time_block("comp_final_output"):
        divisor = torch.where(total == 0, torch.ones_like(total), total)
        return (weighted / divisor).to(q.dtype).transpose(1, 2)


def _reduced(timer: Timer, call: CollectiveCall, name: str, reduce: Callable[[], Tensor]) -> Tensor:
    """Run one collective; if serialised, the ranks meet first, and that time is the wait for the last rank."""
    if timer.serialised:
        with timer.time_block(f"wait_{name}"):
            device = torch.device("cuda", torch.cuda.current_device()) if timer.use_cuda else torch.device("cpu")
            call.all_reduce(torch.zeros(1, device=device))
            synchronize(device)
    with timer.time_block(f"comm_{name}"):
        return reduce()


if __name__ == "__main__":
    ours = {"--use-cuda": "--device=cuda", "--enable-profiling": "--profile", "--profile-iterations": "--iterations"}
    sys.argv = ["strobe", "bench", "tree", *(ours.get(word, word) for word in sys.argv[1:])]
    runpy.run_module("strobe", run_name="__main__")
