"""Measured costs of this machine: latency and bandwidth of each kind of message, the roofline of a rank.

On a GPU all of it is twofold: what the host takes to start it, and what the device then takes. A loop of calls shows the larger
of the two: on two H200 the host's 57 to 144 us a message hid every bandwidth up to 32 MB, so they are timed apart.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import torch
from torch import Tensor

from strobe.attention.tree.comm import CollectiveCall, Comm
from strobe.attention.tree.local import Shard, local_attention, merge_messages, pack_state, row_bytes
from strobe.attention.tree.placement import Mask, Segment
from strobe.attention.types import AttentionOutput
from strobe.core.errors import ConfigError

Kind = Literal["gather", "exchange", "reduce"]

KINDS: tuple[Kind, ...] = ("gather", "exchange", "reduce")

RUNS: Final = 4
"""Runs on a GPU that are timed as one."""
ASLEEP_CYCLES: Final = 8_000_000
"""About 4 ms at 2 GHz: more than a host takes to start 5 runs of at most 0.7 ms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Rate of one kind of message: `n` bytes take `alpha_s + n / bytes_per_s`, once a GPU's host has started it in `host_s`.

    Where the host itself does the work, on a CPU, `host_s` is 0 and all is in the other two.
    """

    alpha_s: float
    bytes_per_s: float
    host_s: float = 0.0

    def seconds(self, num_bytes: float) -> float:
        """Return the seconds of one message, without the host's time to start it."""
        return self.alpha_s + num_bytes / self.bytes_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """Rates of the machine for the cost model.

    Args:
        gather: every rank sends its message to every other.
        exchange: every rank sends every other a message of its own.
        reduce: a sum over the ranks.
        merge: parts made messages and merged, by the bytes of the parts, of one rank while all work.
        flops_per_s: dense attention with many queries, of one rank while all work.
        memory_bytes_per_s: keys and values read by one query, of one rank while all work.
        launch_s: what a GPU's host takes to start a local pass; 0 on a CPU.
        source: where the numbers come from, as `explain` shows it.
    """

    gather: Rate
    exchange: Rate
    reduce: Rate
    merge: Rate
    flops_per_s: float
    memory_bytes_per_s: float
    source: str
    launch_s: float = 0.0

    def in_a_graph(self) -> Links:
        """Return the same rates without the host's times, as in a replayed CUDA graph."""
        free = {name: replace(getattr(self, name), host_s=0.0) for name in (*KINDS, "merge")}
        return replace(self, launch_s=0.0, source=f"{self.source}, in a CUDA graph", **free)

    def rate(self, kind: Kind) -> Rate:
        """Return the rate of one kind of message."""
        return {"gather": self.gather, "exchange": self.exchange, "reduce": self.reduce}[kind]


def assumed_links(backend: str, num_ranks: int) -> Links:
    """Return assumed rates for a group that was not measured: GPUs of one NVLink node, or processes of one machine.

    For GPUs rounded from what two and four H200 gave: the host started a message in 57 to 144 us on one
    machine and in 109 to 301 on another, a pack with its merge in 66 and 191, a local pass in 120 to 230. Messages have 228 to
    277 GB/s of the 450 of an NVLink 4 device, attention 778 TFLOP/s in one pass of 0.2 ms.
    """
    if backend == "nccl":
        rate = Rate(alpha_s=1e-5, bytes_per_s=230e9, host_s=2e-4)
        return Links(
            gather=rate,
            exchange=rate,
            reduce=rate,
            merge=Rate(alpha_s=4e-6, bytes_per_s=1e12, host_s=1e-4),
            flops_per_s=7e14,
            memory_bytes_per_s=3e12,
            launch_s=2e-4,
            source="assumed: one NVLink node",
        )
    rate = Rate(alpha_s=1e-4 * num_ranks, bytes_per_s=1e9)
    return Links(
        gather=rate,
        exchange=rate,
        reduce=rate,
        merge=Rate(alpha_s=1e-4, bytes_per_s=1e9),
        flops_per_s=2e10,
        memory_bytes_per_s=4e9,
        source="assumed: processes of one machine",
    )


def measure(comm: Comm, device: torch.device, dtype: torch.dtype, timeout_s: float) -> Links:
    """Time messages of several sizes, merges and two local passes, all ranks together; every rank gets the same numbers.

    A time is the largest over the ranks of the medians of each; latency and bandwidth are the line through the times.

    Raises:
        ConfigError: the group sends no tensors of that device.
    """
    if comm.size > 1 and comm.backend(device.type) == "none":
        raise ConfigError(f"device {device.type}: the group sends no tensors of it; give a device of the group, or another group")
    call = comm.begin("measure_links", 0, timeout_s)
    sizes = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, *((1 << 25,) if device.type == "cuda" else ()))
    elements = [max(1, size // 4 // call.size) * call.size for size in sizes]
    runs: list[tuple[Kind, int, Callable[[], object]]] = []
    for number in elements:
        tensor = torch.zeros(number, device=device)
        parts, others = list(tensor.chunk(call.size)), call.size - 1
        shapes = [tuple(part.shape) for part in parts]
        runs.append(("gather", others * number * 4, partial(call.gather, tensor)))
        runs.append(("exchange", others * number * 4 // call.size, partial(_exchanged, call, parts, shapes)))
        runs.append(("reduce", 2 * others * number * 4 // call.size, partial(call.all_reduce, tensor)))
    merges = _merge_cases(device, dtype)
    many, few = _local_cases(device, dtype)
    local = [case.run for case in (many, few, *merges)]
    pairs = [_time(run, device) for run in (*(run for _, _, run in runs), *local)]
    device_s = _slowest(call, [pair[0] for pair in pairs], device)
    host_s = _slowest(call, [pair[1] for pair in pairs], device)
    rates = {}
    for kind in KINDS:
        chosen = [index for index, run in enumerate(runs) if run[0] == kind]
        rates[kind] = fit([(runs[index][1], device_s[index]) for index in chosen], statistics.median(host_s[i] for i in chosen))
    (flop_s, byte_s, *merge_s), (launch_s, _, *merge_host_s) = device_s[len(runs) :], host_s[len(runs) :]
    return Links(
        gather=rates["gather"],
        exchange=rates["exchange"],
        reduce=rates["reduce"],
        merge=fit([(case.amount, took) for case, took in zip(merges, merge_s, strict=True)], statistics.median(merge_host_s)),
        flops_per_s=many.amount / flop_s,
        memory_bytes_per_s=few.amount / byte_s,
        launch_s=launch_s,
        source=f"measured: {comm.backend(device.type)}, {call.size} ranks, {device.type}",
    )


def _exchanged(call: CollectiveCall, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> None:
    call.exchange(parts, shapes).wait()


def fit(points: Sequence[tuple[float, float]], host_s: float = 0.0) -> Rate:
    """Fit the line `alpha + bytes / beta` through `(bytes, seconds)` with the least relative errors; neither may be negative."""
    weights = [1 / took**2 for _, took in points]
    total = sum(weights)
    mean_x = sum(weight * sent for weight, (sent, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(weight * took for weight, (_, took) in zip(weights, points, strict=True)) / total
    across = sum(weight * (sent - mean_x) * (took - mean_y) for weight, (sent, took) in zip(weights, points, strict=True))
    spread = sum(weight * (sent - mean_x) ** 2 for weight, (sent, _) in zip(weights, points, strict=True))
    slope = across / spread if spread else 0.0
    if slope <= 0:  # no bandwidth to be seen in the noise: latency alone
        return Rate(alpha_s=mean_y, bytes_per_s=float("inf"), host_s=host_s)
    alpha = mean_y - slope * mean_x
    if alpha < 0:
        slope, alpha = (
            sum(w * x * y for w, (x, y) in zip(weights, points, strict=True))
            / sum(w * x * x for w, (x, _) in zip(weights, points, strict=True)),
            0.0,
        )
    return Rate(alpha_s=alpha, bytes_per_s=1 / slope, host_s=host_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    amount: float
    run: Callable[[], object]


def _merge_cases(device: torch.device, dtype: torch.dtype) -> list[_Case]:
    """List merges to time: two parts of few rows and of many, one of which is packed here."""
    heads, dim, cases = 8, 64, []
    for rows in (1, 256, 2048 if device.type == "cpu" else 16384):
        part = AttentionOutput(
            out=torch.ones(1, rows, heads, dim, dtype=dtype, device=device), lse=torch.zeros(1, heads, rows, device=device)
        )
        cases.append(_Case(amount=2 * rows * heads * row_bytes(dim, dtype), run=partial(_merged, part)))
    return cases


def _merged(part: AttentionOutput) -> None:
    packed = pack_state(part)
    merge_messages([packed] * 2, part.out.shape[3])


def _local_cases(device: torch.device, dtype: torch.dtype) -> tuple[_Case, _Case]:
    """List local passes to time: many queries (FLOPs count) and one query (bytes count)."""
    heads, dim = 8, 64 if device.type == "cpu" else 128
    small, large = (256, 8192) if device.type == "cpu" else (4096, 262144)

    def draw(rows: int) -> Tensor:
        return torch.ones(1, rows, heads, dim, dtype=dtype, device=device)

    q, k, one, long = draw(small), draw(2 * small), draw(1), draw(large)

    def attend(queries: Tensor, keys: Tensor) -> Callable[[], object]:
        shard = Shard(k=keys, v=keys, segments=(Segment(start=0, length=keys.shape[1]),))
        return partial(local_attention, queries, shard, Mask(), (0, queries.shape[1]), dim**-0.5)

    return (
        _Case(amount=4 * heads * dim * small * 2 * small, run=attend(q, k)),
        _Case(amount=2 * heads * dim * large * dtype.itemsize, run=attend(one, long)),
    )


def _time(run: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Measure seconds of one run on the device, and of the host to start it (0 on a CPU): medians of 7, after 2 to warm up."""
    turns = [_on_gpu(run) if device.type == "cuda" else _on_cpu(run) for _ in range(9)][2:]
    return statistics.median(took for took, _ in turns), statistics.median(started for _, started in turns)


def _on_cpu(run: Callable[[], object]) -> tuple[float, float]:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start, 0.0


def _on_gpu(run: Callable[[], object]) -> tuple[float, float]:
    """Measure 4 runs that the host starts while the device sleeps, so that they run back to back; one before lets ranks meet."""
    torch.cuda.synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(ASLEEP_CYCLES)
    run()
    first.record()
    start = time.perf_counter()
    for _ in range(RUNS):
        run()
    started = time.perf_counter() - start
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3 / RUNS, started / RUNS


def _slowest(call: CollectiveCall, seconds: Sequence[float], device: torch.device) -> list[float]:
    slowest: list[float] = call.all_reduce(torch.tensor(seconds, device=device), largest=True).tolist()
    return slowest
