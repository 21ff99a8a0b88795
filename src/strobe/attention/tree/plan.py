"""Measured costs of this machine, the cost of each strategy by them, and the choice of `auto`; the model is in the README.

Launches are counted in the code that runs: `redistribute.py`.
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final, Literal

import torch
from torch import Tensor

from strobe.attention.tree.comm import CollectiveCall, Comm
from strobe.attention.tree.local import Shard, local_attention, merge_messages, pack_state, row_bytes
from strobe.attention.tree.placement import Mask, Segment, split
from strobe.attention.tree.spec import MOVES_KEYS, STRATEGIES, Strategy, TreeSpec
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
    """Rate of one kind of message: `n` bytes take about `alpha_s + n / bytes_per_s`, once the host started it in `host_s`.

    Where the host itself does the work, on a CPU, `host_s` is 0 and all is in the other two.

    Args:
        alpha_s, bytes_per_s: the line through the times of all sizes.
        beside: bytes that were measured, in order, and the seconds that they took beyond the line. A library changes its protocol
            with the size, so the line alone is up to 40 % off.
        host_s: what a GPU's host takes to start it.
    """

    alpha_s: float
    bytes_per_s: float
    beside: tuple[tuple[float, float], ...] = ()
    host_s: float = 0.0

    def seconds(self, num_bytes: float) -> float:
        """Return the seconds of one message, without the host's time to start it.

        Between two measured sizes they are interpolated; a message above all of them has the bandwidth of the largest.
        """
        line = self.alpha_s + num_bytes / self.bytes_per_s
        after = bisect_left(self.beside, (num_bytes,))
        if not self.beside or after == 0:
            return line + (self.beside[0][1] if self.beside else 0.0)
        low, first = self.beside[after - 1]
        if after == len(self.beside):
            return max(line + first * num_bytes / low, self.seconds(low))
        high, second = self.beside[after]
        return line + first + (num_bytes - low) / (high - low) * (second - first)


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
        found: Rate = getattr(self, kind)
        return found


def assumed_links(backend: str, num_ranks: int) -> Links:
    """Return assumed rates for a group that was not measured: GPUs of one NVLink node, or processes of one machine.

    For GPUs rounded from what two and four H200 gave: the host started a message in 57 to 144 us on one
    machine and in 109 to 301 on another, a pack with its merge in 66 and 191, a local pass in 120 to 230. Messages have 228 to
    277 GB/s of the 450 of an NVLink 4 device, attention 778 TFLOP/s in one pass of 0.2 ms.
    """
    rate, merge = Rate(alpha_s=1e-4 * num_ranks, bytes_per_s=1e9), Rate(alpha_s=1e-4, bytes_per_s=1e9)
    speeds = {"flops_per_s": 2e10, "memory_bytes_per_s": 4e9}
    source = "assumed: processes of one machine"
    if backend == "nccl":
        rate = Rate(alpha_s=1e-5, bytes_per_s=230e9, host_s=2e-4)
        merge = Rate(alpha_s=4e-6, bytes_per_s=1e12, host_s=1e-4)
        speeds = {"flops_per_s": 7e14, "memory_bytes_per_s": 3e12, "launch_s": 2e-4}
        source = "assumed: one NVLink node"
    return Links(gather=rate, exchange=rate, reduce=rate, merge=merge, source=source, **speeds)


def measure(comm: Comm, device: torch.device, dtype: torch.dtype, timeout_s: float) -> Links:
    """Time messages of several sizes, merges and two local passes, all ranks together; every rank gets the same numbers.

    A time is the largest over the ranks of the medians of each; between the sizes, times are interpolated.

    Raises:
        ConfigError: the group sends no tensors of that device.
    """
    if comm.size > 1 and comm.backend(device.type) == "none":
        raise ConfigError(f"device {device.type}: the group sends no tensors of it; give a device of the group, or another group")
    call = comm.begin("measure_links", 0, timeout_s)
    sizes = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, *((1 << 25, 1 << 28) if device.type == "cuda" else ()))
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
    (flops, many), (read, few) = _local_cases(device, dtype)
    local = [many, few, *(run for _, run in merges)]
    pairs = [_time(run, device) for run in (*(run for _, _, run in runs), *local)]
    device_s, host_s = (_slowest(call, each, device) for each in zip(*pairs, strict=True))
    rates: dict[str, Rate] = {}
    for kind in KINDS:
        chosen = [i for i, run in enumerate(runs) if run[0] == kind]
        rates[kind] = fit([(runs[i][1], device_s[i]) for i in chosen], statistics.median(host_s[i] for i in chosen))
    (flop_s, byte_s, *merge_s), (launch_s, _, *merge_host_s) = device_s[len(runs) :], host_s[len(runs) :]
    return Links(
        **rates,
        merge=fit([(amount, took) for (amount, _), took in zip(merges, merge_s, strict=True)], statistics.median(merge_host_s)),
        flops_per_s=flops / flop_s,
        memory_bytes_per_s=read / byte_s,
        launch_s=launch_s,
        source=f"measured: {comm.backend(device.type)}, {call.size} ranks, {device.type}",
    )


def _exchanged(call: CollectiveCall, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> None:
    call.exchange(parts, shapes).wait()


def fit(points: Sequence[tuple[float, float]], host_s: float = 0.0) -> Rate:
    """Return the rate of `(bytes, seconds)`: the line of least relative errors, never negative, and what is beside it."""
    weights = [1 / took**2 for _, took in points]
    weighed = [(weight, sent, took) for weight, (sent, took) in zip(weights, points, strict=True)]
    mean_x, mean_y = sum(w * x for w, x, _ in weighed) / sum(weights), sum(w * y for w, _, y in weighed) / sum(weights)
    across = sum(w * (x - mean_x) * (y - mean_y) for w, x, y in weighed)
    spread = sum(w * (x - mean_x) ** 2 for w, x, _ in weighed)
    slope = max(across / spread, 0.0) if spread else 0.0  # 0: no bandwidth to be seen in the noise, latency alone
    alpha = mean_y - slope * mean_x
    if alpha < 0:
        slope, alpha = sum(w * x * y for w, x, y in weighed) / sum(w * x * x for w, x, _ in weighed), 0.0
    beside = tuple((sent, took - alpha - sent * slope) for sent, took in sorted(points))
    return Rate(alpha_s=alpha, bytes_per_s=1 / slope if slope else float("inf"), beside=beside, host_s=host_s)


_Case = tuple[float, Callable[[], object]]
"""Bytes or FLOPs of a run, and what runs."""


def _merge_cases(device: torch.device, dtype: torch.dtype) -> list[_Case]:
    """List merges to time: two parts of few rows and of many, one of which is packed here."""
    heads, dim = 8, 64
    cases: list[_Case] = []
    for rows in (1, 256, 2048 if device.type == "cpu" else 16384):
        part = AttentionOutput(
            out=torch.ones(1, rows, heads, dim, dtype=dtype, device=device), lse=torch.zeros(1, heads, rows, device=device)
        )
        cases.append((2 * rows * heads * row_bytes(dim, dtype), partial(_merged, part)))
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

    return ((4 * heads * dim * small * 2 * small, attend(q, k)), (2 * heads * dim * large * dtype.itemsize, attend(one, long)))


def _time(run: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Measure seconds of one run on the device, and of the host to start it (0 on a CPU): medians of 7, after 2 to warm up."""
    turns = [(_on_gpu if device.type == "cuda" else _on_cpu)(run) for _ in range(9)][2:]
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


RING_LAUNCHES: Final = 4
"""Of a ring before its first hop: keys packed with values, and an empty state of three tensors."""
SUM_LAUNCHES: Final = 15
"""Of the arithmetic around all-reduces (17 or 18), but for the two that a pack and a merge count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One collective of a call, with its bytes and predicted seconds.

    Args:
        what: what travels.
        kind: which rate it has.
        sent_bytes: by the rank that sends most.
        seconds: predicted, without what the host takes to start it.
    """

    what: str
    kind: Kind
    sent_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyCost:
    """The predicted cost of one strategy, for the slowest rank.

    Args:
        strategy: its name.
        messages: what travels, in order.
        local_s: attention and merge.
        hidden_s: communication that runs while attention does.
        host_s: how long a GPU waits for its host to start things.
    """

    strategy: Strategy
    messages: tuple[Message, ...]
    local_s: float
    hidden_s: float = 0.0
    host_s: float = 0.0

    @property
    def comm_s(self) -> float:
        """Predicted time of all messages, s."""
        return sum(message.seconds for message in self.messages)

    @property
    def sent_bytes(self) -> int:
        """Bytes of all messages."""
        return sum(message.sent_bytes for message in self.messages)

    @property
    def seconds(self) -> float:
        """Predicted time of the whole call, s."""
        return self.local_s + self.comm_s - self.hidden_s + self.host_s


@dataclass(frozen=True, kw_only=True, slots=True)
class TreePlan:
    """The strategy that runs, the predictions of all, and the reasons why others cannot run.

    Args:
        strategy: that runs.
        predictions: fastest first.
        refused: `(strategy, reason)`.
        call: the call in words.
        links: the machine.
        num_ranks: of the group.
    """

    strategy: Strategy
    predictions: tuple[StrategyCost, ...]
    refused: tuple[tuple[str, str], ...]
    call: str
    links: Links
    num_ranks: int

    def __str__(self) -> str:
        lines = [f"runs: {self.strategy} on {self.num_ranks} ranks, for {self.call}", f"  links: {self.links.source}"]
        for each in self.predictions:
            sent = f"{len(each.messages)} messages {each.comm_s * 1e6:.1f} ({each.sent_bytes / 1e6:.3f} MB sent by a rank)"
            hidden = f" - hidden {each.hidden_s * 1e6:.1f}" if each.hidden_s else ""
            hidden += f" + host {each.host_s * 1e6:.1f}" if each.host_s else ""
            lines.append(
                f"  {each.strategy:<10} {each.seconds * 1e6:>11.1f} us = local {each.local_s * 1e6:.1f} + {sent}{hidden}"
            )
        lines += [f"  not {name}: {reason}" for name, reason in self.refused]
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLengths:
    """The ranks of the group and their keys, as a plan needs them.

    Args:
        num_tree_ranks, num_head_ranks: the grid of the caller; one column for a plain group.
        lengths: owned keys of each buffer, rank by rank (row by row of the grid where keys are placed by heads).
        known: whether every rank knows all lengths.
    """

    num_tree_ranks: int
    num_head_ranks: int
    lengths: tuple[int, ...]
    known: bool

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.num_tree_ranks * self.num_head_ranks


def grid_of(strategy: str, ranks: RankLengths) -> tuple[int, int]:
    """Return the grid `(tree, heads)` that a strategy works on: for `ulysses` a plain group becomes one row."""
    return (1, ranks.num_tree_ranks) if strategy == "ulysses" else (ranks.num_tree_ranks, ranks.num_head_ranks)


@lru_cache(maxsize=512)
def decide(spec: TreeSpec, ranks: RankLengths, requested: str, links: Links) -> TreePlan:
    """Predict every strategy and choose: the fastest, or the one that was asked for.

    Raises:
        ConfigError: the strategy that was asked for cannot do this call.
    """
    refused = [(strategy, reason) for strategy in STRATEGIES if (reason := _refuses(spec, ranks, strategy)) is not None]
    if requested in dict(refused):
        raise ConfigError(f"strategy {requested!r}: {dict(refused)[requested]}")
    able = [strategy for strategy in STRATEGIES if strategy not in dict(refused)]
    predictions = sorted((_predict(spec, ranks, strategy, links) for strategy in able), key=lambda each: each.seconds)
    return TreePlan(
        strategy=predictions[0].strategy if requested == "auto" else next(each for each in able if each == requested),
        predictions=tuple(predictions),
        refused=tuple(refused),
        call=spec.describe(requested),
        links=links,
        num_ranks=ranks.size,
    )


def _refuses(spec: TreeSpec, ranks: RankLengths, strategy: Strategy) -> str | None:
    if strategy == "ulysses" and ranks.num_head_ranks > 1:
        return "a mesh of (tree, heads) spreads the heads over its second dimension already; name the strategy of the first"
    if strategy == "ulysses" and "heads" in (spec.q_placement, spec.kv_placement):
        return "q and k are placed by heads already; use a mesh of (tree, heads)"
    if strategy == "ulysses" and spec.out_placement == "heads" and spec.num_kv_heads % ranks.size:
        return f"it leaves groups of heads whole, and {spec.num_kv_heads} do not divide by {ranks.size} ranks for the result"
    if strategy in MOVES_KEYS and not ranks.known:
        return "it sends keys, so all ranks must know all lengths; give shards="
    return None


@dataclass(slots=True)
class Bill:
    """The costs of a strategy, added in the order of its steps, and the times until which host and device are busy.

    The host starts one thing after the other, and the device does each when it is started and its turn comes. With few queries a
    call ends when the host has started all of it; with many the device is behind, and the host's time is hidden. If the host
    takes no time, as on a CPU, everything adds up. Times are seconds from the call's start; `idle_s` is how long the device has
    waited for its host.
    """

    links: Links
    messages: list[Message] = field(default_factory=list)
    local_s: float = 0.0
    hidden_s: float = 0.0
    busy_host_s: float = 0.0
    busy_device_s: float = 0.0
    idle_s: float = 0.0

    def run(self, started_s: float, took_s: float) -> None:
        """Add what the host starts in `started_s` and the device does in `took_s`."""
        self.busy_host_s += started_s
        self.idle_s += max(0.0, self.busy_host_s - self.busy_device_s)
        self.busy_device_s = max(self.busy_device_s, self.busy_host_s) + took_s

    def compute(self, started_s: float, took_s: float) -> None:
        """Add work of a rank alone."""
        self.local_s += took_s
        self.run(started_s, took_s)

    def copy(self, num_bytes: float) -> None:
        """Add a copy, which reads and writes `num_bytes`."""
        self.compute(0.0, 2 * num_bytes / self.links.memory_bytes_per_s)

    def launch(self, number: int) -> None:
        """Add small operations at the host's cost to start them; a pack with its merge is two."""
        self.run(number * self.links.merge.host_s / 2, 0.0)

    def merge(self, num_bytes: float) -> None:
        """Add the packing of parts into messages, and their merge."""
        self.compute(self.links.merge.host_s, self.links.merge.seconds(num_bytes))

    def add(self, what: str, kind: Kind, sent_bytes: float, num_ranks: int) -> None:
        """Add a message that the device waits for."""
        if num_ranks > 1:
            self.run(self.links.rate(kind).host_s, self._message(what, kind, sent_bytes))

    def hop(self, what: str, sent_bytes: float) -> tuple[float, float]:
        """Add a message that overlaps the next work; return its time and arrival for `arrive`."""
        took = self._message(what, "exchange", sent_bytes)
        self.busy_host_s += self.links.exchange.host_s
        return took, max(self.busy_device_s, self.busy_host_s) + took

    def arrive(self, hop: tuple[float, float]) -> None:
        """Wait for a hop, and count its overlapped seconds as hidden."""
        took, until = hop
        waited = max(0.0, until - self.busy_device_s)
        self.busy_device_s += waited
        self.hidden_s += took - waited

    def _message(self, what: str, kind: Kind, sent_bytes: float) -> float:
        seconds = self.links.rate(kind).seconds(sent_bytes)
        self.messages.append(Message(what=what, kind=kind, sent_bytes=round(sent_bytes), seconds=seconds))
        return seconds


def _predict(spec: TreeSpec, ranks: RankLengths, strategy: Strategy, links: Links) -> StrategyCost:
    tree, columns = grid_of(strategy, ranks)
    kv_heads = max(stop - start for start, stop in split(spec.num_kv_heads, columns))
    heads = kv_heads * (spec.num_heads // spec.num_kv_heads)
    buffers = [sum(ranks.lengths[i : i + columns]) for i in range(0, len(ranks.lengths), columns)]
    keys = max(ranks.lengths if spec.kv_placement == "heads" or not ranks.known else buffers)
    total_keys = sum(ranks.lengths) if ranks.known else keys * tree
    rows = spec.batch * spec.q_len * heads  # rows of the result, this column's heads
    row = row_bytes(spec.head_dim_v, spec.dtype)
    key_bytes = spec.batch * kv_heads * (spec.head_dim + spec.head_dim_v) * spec.dtype.itemsize
    flops = 2 * (spec.head_dim + spec.head_dim_v) * rows
    bill = Bill(links)
    outer, inner = (columns - 1) / columns, (tree - 1) / tree
    if spec.kv_placement == "sequence" and columns > 1:  # packed together, cut by heads, put together again
        bill.copy((2 + outer) * max(ranks.lengths) * key_bytes * columns)
        bill.launch(3)
        bill.add("keys to heads", "exchange", outer * max(ranks.lengths) * key_bytes * columns, columns)
    if spec.q_placement == "sequence":
        q_bytes = rows * spec.head_dim * spec.dtype.itemsize
        bill.add("queries to heads", "exchange", outer * q_bytes / tree, columns)
        if strategy != "ring":
            bill.add("queries", "gather", inner * q_bytes, tree)
            bill.launch(1)
    if strategy == "ring":
        step_s = max(flops / tree * total_keys / links.flops_per_s, total_keys * key_bytes / links.memory_bytes_per_s) / tree
        bill.launch(RING_LAUNCHES)
        bill.copy(keys * key_bytes)
        for step in range(tree):
            hop = bill.hop(f"keys, hop {step + 1}", keys * key_bytes) if step + 1 < tree else None
            bill.compute(links.launch_s, step_s)
            bill.merge(2 * rows / tree * row)
            if hop is not None:
                bill.arrive(hop)
        if spec.out_placement != "sequence":
            bill.add("result", "gather", inner * rows * row, tree)
    else:
        bill.compute(links.launch_s, max(flops * keys / links.flops_per_s, keys * key_bytes / links.memory_bytes_per_s))
        if tree > 1:
            _combine(bill, spec, strategy, tree, rows)
    if spec.out_placement == "replicated":
        bill.add("result of heads", "gather", (columns - 1) * rows * row, columns)
    elif spec.out_placement == "sequence":
        bill.add("result to rows", "exchange", outer * rows * row / tree, columns)
    return StrategyCost(
        strategy=strategy, messages=tuple(bill.messages), local_s=bill.local_s, hidden_s=bill.hidden_s, host_s=bill.idle_s
    )


def _combine(bill: Bill, spec: TreeSpec, strategy: Strategy, tree: int, rows: int) -> None:
    """Add the messages of a merge, and the rows that a rank reads for it."""
    row, inner = row_bytes(spec.head_dim_v, spec.dtype), (tree - 1) / tree
    if strategy == "alltoall":
        bill.add("parts", "exchange", inner * rows * row, tree)
        bill.merge(rows * row)
        if spec.out_placement == "replicated":
            bill.merge(rows / tree * row)  # the message of a share of the result, and all shares put together
            bill.add("result", "gather", inner * rows * row, tree)
            bill.copy(rows * row)
        return
    if strategy == "allreduce3":
        sum_bytes = max(4, spec.dtype.itemsize)
        bill.add("max lse", "reduce", 2 * inner * rows * 4, tree)
        bill.add("denominator", "reduce", 2 * inner * rows * sum_bytes, tree)
        bill.add("numerator", "reduce", 2 * inner * rows * spec.head_dim_v * sum_bytes, tree)
        bill.launch(SUM_LAUNCHES)
        bill.merge(3 * rows * row)
        return
    bill.add("parts", "gather", (tree - 1) * rows * row, tree)
    bill.merge(tree * (rows if spec.out_placement == "replicated" else rows // tree + 1) * row)
