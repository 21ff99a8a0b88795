"""What a message and a local pass cost on this machine: latency and bandwidth of each kind of message, the roofline of a rank."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from strobe.attention.tree.comm import Call, Comm
from strobe.attention.tree.local import Shard, local_attention
from strobe.attention.tree.placement import Mask, Segment
from strobe.attention.tree.wire import merge_messages, pack_state, row_bytes
from strobe.attention.types import AttentionOutput
from strobe.core.device import synchronize
from strobe.core.errors import ConfigError

Kind = Literal["gather", "exchange", "reduce"]

KINDS: tuple[Kind, ...] = ("gather", "exchange", "reduce")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """A message of `n` bytes sent by a rank takes `alpha_s + n / bytes_per_s`."""

    alpha_s: float
    bytes_per_s: float

    def seconds(self, num_bytes: float) -> float:
        """The time of one message."""
        return self.alpha_s + num_bytes / self.bytes_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """The machine as the cost model sees it.

    Args:
        gather: every rank sends its message to every other.
        exchange: every rank sends every other a message of its own.
        reduce: a sum over the ranks.
        merge: parts made messages and merged, by the bytes of the parts, of one rank while all work.
        flops_per_s: dense attention with many queries, of one rank while all work.
        memory_bytes_per_s: keys and values read by one query, of one rank while all work.
        source: where the numbers come from, as `explain` shows it.
    """

    gather: Rate
    exchange: Rate
    reduce: Rate
    merge: Rate
    flops_per_s: float
    memory_bytes_per_s: float
    source: str

    def rate(self, kind: Kind) -> Rate:
        """Of one kind of message."""
        return {"gather": self.gather, "exchange": self.exchange, "reduce": self.reduce}[kind]


def assumed_links(backend: str, num_ranks: int) -> Links:
    """Orders of magnitude for a group that nobody has measured: GPUs of one NVLink node, or processes of one machine."""
    if backend == "nccl":
        rate = Rate(alpha_s=16e-6, bytes_per_s=300e9)
        return Links(
            gather=rate,
            exchange=rate,
            reduce=rate,
            merge=Rate(alpha_s=3e-5, bytes_per_s=1e12),
            flops_per_s=5e14,
            memory_bytes_per_s=3e12,
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
    seconds = _slowest(call, [_median(run, device) for _, _, run in runs], device)
    rates = {
        kind: fit([(sent, took) for (each, sent, _), took in zip(runs, seconds, strict=True) if each == kind]) for kind in KINDS
    }
    merges = _merge_cases(device, dtype)
    many, few = _local_cases(device, dtype)
    flop_s, byte_s, *merge_s = _slowest(call, [_median(case.run, device) for case in (many, few, *merges)], device)
    return Links(
        gather=rates["gather"],
        exchange=rates["exchange"],
        reduce=rates["reduce"],
        merge=fit([(case.amount, took) for case, took in zip(merges, merge_s, strict=True)]),
        flops_per_s=many.amount / flop_s,
        memory_bytes_per_s=few.amount / byte_s,
        source=f"measured: {comm.backend(device.type)}, {call.size} ranks, {device.type}",
    )


def _exchanged(call: Call, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> None:
    call.exchange(parts, shapes).wait()


def fit(points: Sequence[tuple[float, float]]) -> Rate:
    """The line `alpha + bytes / beta` through `(bytes, seconds)` with the smallest relative errors; neither may be negative."""
    weights = [1 / took**2 for _, took in points]
    total = sum(weights)
    mean_x = sum(weight * sent for weight, (sent, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(weight * took for weight, (_, took) in zip(weights, points, strict=True)) / total
    across = sum(weight * (sent - mean_x) * (took - mean_y) for weight, (sent, took) in zip(weights, points, strict=True))
    spread = sum(weight * (sent - mean_x) ** 2 for weight, (sent, _) in zip(weights, points, strict=True))
    slope = across / spread if spread else 0.0
    if slope <= 0:  # no bandwidth to be seen in the noise: latency alone
        return Rate(alpha_s=mean_y, bytes_per_s=float("inf"))
    alpha = mean_y - slope * mean_x
    if alpha < 0:
        slope, alpha = (
            sum(w * x * y for w, (x, y) in zip(weights, points, strict=True))
            / sum(w * x * x for w, (x, _) in zip(weights, points, strict=True)),
            0.0,
        )
    return Rate(alpha_s=alpha, bytes_per_s=1 / slope)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    amount: float
    run: Callable[[], object]


def _merge_cases(device: torch.device, dtype: torch.dtype) -> list[_Case]:
    """Two parts, one of them packed here, of few rows and of many."""
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
    """Many queries (FLOPs count) and one query (bytes count)."""
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


def _median(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one run: the median of 7, after 2 to warm up; on a GPU of 4 in a row: a call does not wait either."""
    times, runs = [], 4 if device.type == "cuda" else 1
    for turn in range(9):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(runs):
            run()
        synchronize(device)
        if turn >= 2:
            times.append((time.perf_counter() - start) / runs)
    return statistics.median(times)


def _slowest(call: Call, seconds: Sequence[float], device: torch.device) -> list[float]:
    slowest: list[float] = call.all_reduce(torch.tensor(seconds, device=device), largest=True).tolist()
    return slowest
