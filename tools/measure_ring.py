"""Video-sparse attention of one sequence on one device and on several: held to one device first, then timed.

`NCCL_NVLS_ENABLE=0 torchrun --nproc-per-node 2 tools/measure_ring.py` on GPUs; `--device cpu` over gloo, with a small grid.
Rank 0 prints, and writes `ring.json` into `--out`: errors against one device, medians of alternating
calls, forward and with the backward, every message alone against what `measure_links` predicts, and the regions of one call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import strobe
from strobe.attention.sparse import ring as module
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.sparse.video import _call_of
from strobe.attention.sparse.video_plan import VideoOptions
from strobe.attention.tree import measure_links
from strobe.attention.tree.placement import split
from strobe.attention.tree.plan import _slowest, _time
from strobe.attention.tree.redistribute import pass_on
from strobe.bench.tree.rank import MarkRecorder
from strobe.core.tolerances import tolerance

MOST_OTHER_TILES = 1e-4
"""Share of tiles that may be others than one device's: scores that are equal up to their last bits."""


def say(line: str) -> None:
    """Write a line, on rank 0."""
    if dist.get_rank() == 0:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


class Call:
    """One call on one device and on all, of the same tensors."""

    def __init__(self, grid: Sequence[int], heads: int, dim: int, sparsity: float, device: torch.device) -> None:
        self.device, self.tiles = device, tile_layout(grid, (4, 4, 4))
        self.shards = [stop - start for start, stop in split(self.tiles.num_tiles, dist.get_world_size())]
        self.options: dict[str, Any] = {"grid": self.tiles.grid, "tile": (4, 4, 4), "sparsity": sparsity}
        start, stop = list(accumulate(self.shards, initial=0))[dist.get_rank() :][:2]
        self.rows = self.tiles.tokens_of(start, stop).to(device)
        self.of_rank = slice(start, stop)
        generator = torch.Generator(device).manual_seed(0)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        size = (1, self.tiles.num_tokens, heads, dim)
        self.whole = [torch.randn(size, generator=generator, device=device).to(dtype) for _ in range(5)]  # q, k, v, gate, d_out
        self.share = [each.index_select(1, self.rows) for each in self.whole]

    def run(self, tensors: Sequence[Tensor], *, shared: bool) -> Any:
        """Call forward."""
        q, k, v, gate, _ = tensors
        beside = {"group": dist.group.WORLD, "shards": self.shards} if shared else {}
        return strobe.video_sparse_attention(q, k, v, gate=gate, **self.options, **beside)

    def train(self, tensors: Sequence[Tensor], *, shared: bool) -> list[Tensor]:
        """Call forward and backward; return the gradients."""
        leaves = [each.detach().requires_grad_() for each in tensors[:4]]
        found = self.run([*leaves, tensors[4]], shared=shared)
        return list(torch.autograd.grad(found.out, leaves, tensors[4]))


def checked(call: Call) -> dict[str, float]:
    """Compare this rank's share with one device: share of other tiles, largest error of the output, errors of the gradients.

    Raises:
        SystemExit: an error is larger than that of attention in the dtype.
    """
    with torch.no_grad():
        one, mine = call.run(call.whole, shared=False), call.run(call.share, shared=True)
    other = (one.selection.indices[:, :, call.of_rank] != mine.selection.indices).float().mean().item()
    expected = one.out.index_select(1, call.rows).float()
    found = {"other tiles": other, "out": ((mine.out.float() - expected).abs().max() / expected.abs().max()).item()}
    names = ("dq", "dk", "dv", "dgate")
    for name, each, whole in zip(names, call.train(call.share, shared=True), call.train(call.whole, shared=False), strict=True):
        expected = whole.index_select(1, call.rows).float()  # a tile that ties with another may be that one: one row among all
        found[name] = ((each.float() - expected).square().mean() / expected.square().mean()).sqrt().item()
    limit = tolerance("video of a GPU", "bfloat16") if call.device.type == "cuda" else tolerance("sparse element", "float32")
    worst = torch.tensor(list(found.values()), dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    found = dict(zip(found, worst.tolist(), strict=True))
    say(f"against one device (allowed {limit:g}): " + ", ".join(f"{name} {value:.2g}" for name, value in found.items()))
    if max(found.values()) > limit or found["other tiles"] > MOST_OTHER_TILES:
        raise SystemExit("wrong: no time is taken")
    return found


def timed(call: Call, runs: dict[str, Callable[[], object]], rounds: int, queued: int = 1) -> dict[str, float]:
    """Median ms of each, one or so many queued; the largest over the ranks, which meet before each; the runs take turns."""
    taken: defaultdict[str, list[float]] = defaultdict(list)
    for turn in range(rounds + 3):
        for name in (*runs, *reversed(runs)) if turn % 2 else (*reversed(runs), *runs):
            dist.barrier()
            elapsed = _milliseconds(call.device, runs[name], queued)
            if turn >= 3:
                taken[name].append(elapsed)
    medians = torch.tensor([statistics.median(taken[name]) for name in runs], dtype=torch.float64)
    dist.all_reduce(medians, op=dist.ReduceOp.MAX)
    return dict(zip(runs, medians.tolist(), strict=True))


def _milliseconds(device: torch.device, run: Callable[[], object], queued: int) -> float:
    if device.type == "cpu":
        start = time.perf_counter()
        for _ in range(queued):
            run()
        return (time.perf_counter() - start) * 1e3 / queued
    torch.cuda.synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(queued):
        run()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / queued


def messages(call: Call) -> list[dict[str, Any]]:
    """Time every message of a forward pass alone on the device, as `measure_links` times its own, and predict it."""
    q, k, v, gate, _ = call.share
    ring, comm = module.planned(_call_of(q, k, v, gate, None, VideoOptions(**call.options)), dist.group.WORLD, call.shards)
    links, flow = measure_links(device=call.device, timeout=20), ring.begin(comm)
    held = q.new_zeros(ring.shapes[ring.rank])
    means = torch.zeros(1, q.shape[2], ring.numbers[ring.rank], 2, q.shape[3], device=call.device)
    shapes = [(*means.shape[:2], number, *means.shape[3:]) for number in ring.numbers]
    runs: dict[str, Callable[[], object]] = {
        "gather": lambda: flow.gather(means, shapes),
        "exchange": lambda: pass_on(flow, held, ring.shapes, ring.rank).wait(),
    }
    measured = dict(zip(runs, _slowest(flow, [_time(run, call.device)[0] for run in runs.values()], call.device), strict=True))
    found = []
    for what, kind, size in ring.sent():
        predicted, took = links.rate(kind).seconds(size) * 1e3, measured[kind] * 1e3
        found.append({"what": what, "bytes": size, "predicted ms": predicted, "measured ms": took})
        say(f"{what}: {size / 1e6:.2f} MB, predicted {predicted:.3f} ms, measured {took:.3f} ({predicted / took - 1:+.0%})")
    say(f"links: {links}")
    return found


def regions(call: Call, rounds: int) -> dict[str, float]:
    """Median ms of each region of a call; a message lasts until its result is there, and a wait is what is not hidden of it."""
    recorder, taken = MarkRecorder(call.device), defaultdict(list)
    for turn in range(rounds + 2):
        dist.barrier()
        with torch.no_grad():
            whole, *found = recorder.take(lambda: call.run(call.share, shared=True))
        sums: defaultdict[str, float] = defaultdict(float)
        for mark in found:
            sums[f"{mark.name} {mark.part}".strip()] += mark.value_ns / 1e6
        for name, value in {**sums, "whole call": whole.value_ns / 1e6}.items():
            if turn >= 2:
                taken[name].append(value)
    account = {name: statistics.median(values) for name, values in taken.items()}
    say("regions of a call, ms: " + ", ".join(f"{name} {value:.3f}" for name, value in account.items()))
    return account


def main() -> int:
    """Check, then measure."""
    parser = argparse.ArgumentParser(description="Video-sparse attention on one device and on several.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default cuda")
    parser.add_argument("--grid", type=int, nargs=3, default=None, help="tokens in time, height and width; 21 45 80 on GPUs")
    parser.add_argument("--sparsity", type=float, default=0.9, help="share of key tiles that is skipped, default 0.9")
    parser.add_argument("--rounds", type=int, default=15, help="calls timed of each kind, times two; default 15")
    parser.add_argument("--out", type=Path, default=None, help="folder for ring.json")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=timedelta(seconds=30))
    device = torch.device("cuda", dist.get_rank()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    heads, dim = (12, 128) if on_gpu else (2, 32)
    call = Call(options.grid or ((21, 45, 80) if on_gpu else (8, 12, 12)), heads, dim, options.sparsity, device)
    said = strobe.explain(*call.share[:3], gate=call.share[3], **call.options, group=dist.group.WORLD, shards=call.shards)
    size = f"{call.tiles.num_tokens} tokens, {call.tiles.num_tiles} tiles, {call.shards} by rank"
    say(f"{torch.cuda.get_device_name() if on_gpu else 'cpu'}, {size}: {said.impl.name}; {said.note}")
    errors = checked(call)
    forward = {"one": lambda: call.run(call.whole, shared=False), "all": lambda: call.run(call.share, shared=True)}
    both = {"one": lambda: call.train(call.whole, shared=False), "all": lambda: call.train(call.share, shared=True)}
    with torch.no_grad():
        times = {
            "forward": timed(call, forward, options.rounds),
            "forward, eight queued": timed(call, forward, options.rounds // 2, queued=8),
        }
    times["forward and backward"] = timed(call, both, options.rounds // 3)
    for what, taken in times.items():
        ranks = dist.get_world_size()
        say(
            f"{what}: one device {taken['one']:.2f} ms, {ranks} devices {taken['all']:.2f} ms: {taken['one'] / taken['all']:.2f}x"
        )
    found = {"size": size, "errors": errors, "ms": times}
    found |= {"messages": messages(call), "regions ms": regions(call, options.rounds)}
    if options.out is not None and dist.get_rank() == 0:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "ring.json").write_text(json.dumps(found, indent=1) + "\n")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
