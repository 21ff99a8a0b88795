"""Timing: stopwatches, regions of a run, fixed orders, and operations by themselves."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from strobe.core import spans
from strobe.core.device import resolve_device, synchronize
from strobe.core.errors import ConfigError
from strobe.perf.records.record import Clip, Clock, Regions, Span

if TYPE_CHECKING:
    import torch


# Stopwatch for single calls: CUDA events around queued calls on a GPU, the host clock around each call on a CPU.

_CYCLES_PER_NS: Final = 2.5
"""GPU cycles per ns, above every GPU's clock, so that a wait counted in cycles is never too short."""
_MARGIN: Final = 2.0
_MAX_CYCLES: Final = 5_000_000_000
_SLOW_NS: Final = 50_000_000
"""Duration above which a call is tried only once, ns."""

Run = Callable[[], object]
Speed = tuple[int, int]
"""Time of one trial call, ns: until the device finished, and until the call returned."""


class Stopwatch:
    """Stopwatch for calls on one device.

    On a GPU the calls of a lap are launched while the GPU is kept busy, so that they run without waiting for the host; each lies
    between two events.

    Args:
        cold: overwrite a GPU's L2 cache before each call, outside of its time. On a CPU nothing is overwritten.
    """

    def __init__(self, device: torch.device, *, cold: bool) -> None:
        import torch

        self._device = device
        self._flush: torch.Tensor | None = None
        if cold and device.type == "cuda":
            size = 2 * torch.cuda.get_device_properties(device).L2_cache_size
            self._flush = torch.empty(size, dtype=torch.int8, device=device)

    def probe(self, run: Run) -> Speed:
        """Time one warmed-up call, and a second one if the first was fast; return the faster."""
        synchronize(self._device)
        device: list[int] = []
        host: list[int] = []
        while len(device) < 2 and sum(device) < _SLOW_NS:
            start = time.perf_counter_ns()
            self._overwrite()
            run()
            host.append(time.perf_counter_ns() - start)
            synchronize(self._device)
            device.append(time.perf_counter_ns() - start)
        return min(device), min(host)

    def hold(self, host_ns: int) -> None:
        """Keep a GPU busy for longer than launching takes, so that the next calls wait in its queue."""
        if self._device.type == "cuda":
            import torch

            with torch.cuda.device(self._device):
                torch.cuda._sleep(min(_MAX_CYCLES, round(host_ns * _CYCLES_PER_NS * _MARGIN)))

    def lap(self, run: Run, calls: int, host_ns: int) -> tuple[tuple[int, ...], tuple[int, ...], Clock]:
        """Time several calls in a row.

        Args:
            host_ns: what launching one takes, for a queue; 0 for calls that wait for the GPU themselves and cannot be queued.

        Returns:
            Times of the calls, between two CUDA events or on a CPU by the host clock; how long each took to return to its caller,
            nothing on a CPU, where a call returns when it is done; and the clock that was read.
        """
        if self._device.type != "cuda":
            return tuple(_timed(run) for _ in range(calls)), (), "perf_counter"
        import torch

        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)]
        with torch.cuda.device(self._device):
            if host_ns:
                self.hold(calls * host_ns)
            hosts = []
            for first, last in events:
                self._overwrite()
                first.record()
                hosts.append(_timed(run))
                last.record()
            torch.cuda.synchronize(self._device)
        times = tuple(max(1, round(first.elapsed_time(last) * 1e6)) for first, last in events)
        return times, tuple(hosts), "cuda_event"

    def _overwrite(self) -> None:
        if self._flush is not None:
            self._flush.zero_()


def _timed(run: Run) -> int:
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start


# Count of torch.compile's compilations, to exclude clips that compilation interrupted.


def num_compiles() -> int:
    """Return how many graphs torch.compile has compiled in this process so far; 0 if it was never used."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo is not None else 0


# The order in which clips run, so that drift affects every variant equally.


def palindrome(baseline: str, candidates: Sequence[str]) -> tuple[str, ...]:
    """Return the variants of one palindrome: `B C1 C2 C3 C3 C2 C1 B`; for one candidate it is ABBA.

    Every variant runs twice, and the two runs of each lie mirrored about the same middle. A cost that grows linearly in time
    therefore adds the same to the sum of each variant's two runs, and the ratio of those sums is free of it.

    Raises:
        ConfigError: no candidate, or a name twice.
    """
    names = (baseline, *candidates)
    if not candidates:
        raise ConfigError(f"a comparison needs a candidate beside the baseline {baseline!r}; name at least one")
    if len(set(names)) < len(names):
        raise ConfigError(f"variants must differ in name, got: {', '.join(names)}")
    return (*names, *reversed(names))


# Recorder of a timed run: host clock on a CPU, CUDA events on a GPU, resolved once after the clip.

_NULL: Final[AbstractContextManager[None]] = nullcontext()
_PROBES: Final = 201


@dataclass(slots=True, eq=False)
class TimedRegion:
    """One region, a context manager that times it; `keep`: otherwise it is only added up.

    `parent` is the index of the nearest enclosing region that has one, on the same thread; `thread` numbers threads by first use,
    0 is the clip's own; `block` and `path` say where in a frame block it lies. Once it is resolved, `start_ns` counts from the
    start of the clip, and `value_ns` is its length, by `clock`.
    """

    recorder: TimingRecorder
    name: str
    index: int | None
    clock: Clock
    keep: bool
    parent: int | None = None
    thread: int = 0
    block: int | None = None
    path: tuple[str, ...] = ()
    start_ns: int = 0
    value_ns: int = 0
    first: torch.cuda.Event = field(init=False)
    last: torch.cuda.Event = field(init=False)

    def __enter__(self) -> Self:
        self.recorder.enter(self)
        if self.clock == "cuda_event":
            self.first = self.recorder.mark()
            return self
        if self.name == spans.E2E:
            self.recorder.synchronize()
        self.start_ns = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        if self.clock == "cuda_event":
            self.last = self.recorder.mark()
        else:
            if self.name == spans.E2E:
                self.recorder.synchronize()
            self.value_ns = time.perf_counter_ns() - self.start_ns
        self.recorder.leave(self)


class TimingRecorder:
    """Recorder that measures the regions of one clip at a time.

    On a CPU every region is read from `time.perf_counter_ns`. On a GPU a region is a pair of CUDA events on the current stream,
    with no synchronisation; only `e2e` is wall time, synchronised at its two edges.

    Args:
        device: where the regions run: a device, or auto, cpu, cuda or cuda:N.
        fine: record the regions in `FINE` too. They change what they time; how much is the difference to a clip without them.
        inside: on a CPU, add up what the clip's own thread spends in every region of a frame block, `FINE` and `PIECES`
            included. A region takes one or two microseconds then; `region_ns` measures it.
    """

    def __init__(self, device: str | torch.device, *, fine: bool = False, inside: bool = False) -> None:
        self._device = resolve_device(device)
        self._fine = fine
        self._inside = inside and self._device.type == "cpu"
        self._sums: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        self._events: list[torch.cuda.Event] = []
        self._done: list[TimedRegion] = []
        self._threads: dict[int, int] = {}
        self._lock = threading.Lock()
        self._open = threading.local()
        self._start_ns = 0
        self._start_event: torch.cuda.Event | None = None

    def __call__(self, name: str, index: int | None) -> AbstractContextManager[object]:
        alone = name not in spans.PIECES and (name not in spans.FINE or self._fine)
        if not alone and not self._inside:
            return _NULL
        clock: Clock = "cuda_event" if self._device.type == "cuda" and name != spans.E2E else "perf_counter"
        return TimedRegion(self, name, index, clock, alone)

    def start_clip(self) -> None:
        """Discard earlier regions and set the clip's time zero."""
        self._done.clear()
        self._sums.clear()
        self._threads = {threading.get_ident(): 0}
        if self._device.type == "cuda":
            self.synchronize()
            self._start_event = self.mark()
        self._start_ns = time.perf_counter_ns()

    def finish_clip(self) -> tuple[TimedRegion, ...]:
        """Wait for the device once and return every finished region in order of start."""
        self.synchronize()
        if self._start_event is not None:
            for region in self._done:
                if region.clock == "cuda_event":
                    region.start_ns = round(self._start_event.elapsed_time(region.first) * 1e6)
                    region.value_ns = round(region.first.elapsed_time(region.last) * 1e6)
                    self._events += (region.first, region.last)
            self._events.append(self._start_event)
            self._start_event = None
        return tuple(sorted(self._done, key=lambda region: (region.start_ns, -region.value_ns)))

    def inside(self) -> Mapping[tuple[int, tuple[str, ...]], Sequence[int]]:
        """Return calls and time of the clip's own thread in each region inside the last clip's frame blocks, by block and path.

        A path names the regions from the outermost below the frame block to the one whose time it is, with what is inside it.
        """
        return dict(sorted(self._sums.items()))

    def region_ns(self) -> int:
        """Measure the median overhead of one region that is only added up, ns."""
        if not self._inside:
            return 0
        other, took = TimingRecorder(self._device, inside=True), []
        other.start_clip()
        with other(spans.FRAME_BLOCK, 0):
            for _ in range(_PROBES):
                began = time.perf_counter_ns()
                with other(spans.FFN, None):
                    pass
                took.append(time.perf_counter_ns() - began)
        return sorted(took)[_PROBES // 2]

    # Methods that regions call on their recorder.

    def synchronize(self) -> None:
        """Wait for the device; nothing on a CPU."""
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)

    def mark(self) -> torch.cuda.Event:
        """Record a CUDA event from the pool on the current stream."""
        import torch

        event = self._events.pop() if self._events else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def enter(self, region: TimedRegion) -> None:
        """Set the region's thread, its parent and its path inside the frame block."""
        stack = self._open.__dict__.setdefault("stack", [])
        region.parent = next((outer.index for outer in reversed(stack) if outer.index is not None), None)
        with self._lock:
            region.thread = self._threads.setdefault(threading.get_ident(), len(self._threads))
        if region.name == spans.FRAME_BLOCK:
            region.block, region.path = region.index, ()
        elif stack and stack[-1].block is not None:
            region.block, region.path = stack[-1].block, (*stack[-1].path, region.name)
        stack.append(region)

    def leave(self, region: TimedRegion) -> None:
        """Close the region, and keep it unless it is only added up; on the host clock its time goes to the sum of its path."""
        self._open.stack.pop()
        if region.clock == "perf_counter":
            region.start_ns -= self._start_ns
            if self._inside and region.path and region.block is not None and region.thread == 0:
                found = self._sums.setdefault((region.block, region.path), [0, 0])
                found[0] += 1
                found[1] += region.value_ns
        if region.keep:
            self._done.append(region)


def span_records(clip: Clip, regions: Iterable[TimedRegion]) -> tuple[Span, ...]:
    """Return the span lines of a clip, which are written above its `clip` line."""
    return tuple(
        Span(
            variant=clip.variant,
            clip=clip.clip,
            order=clip.order,
            palindrome=clip.palindrome,
            name=region.name,
            index=region.index,
            start_ns=region.start_ns,
            value_ns=region.value_ns,
            clock=region.clock,
            warmup=clip.phase == "warmup",
            parent=region.parent,
            thread=region.thread,
        )
        for region in regions
    )


def region_records(clip: Clip, found: Mapping[tuple[int, tuple[str, ...]], Sequence[int]], region_ns: int) -> tuple[Regions, ...]:
    """Return the line with the sums inside a clip's frame blocks, or nothing if there are none."""
    if not found:
        return ()
    blocks, paths = tuple(sorted({block for block, _ in found})), tuple(sorted({path for _, path in found}))
    calls, value_ns = (tuple(tuple(found.get((block, path), (0, 0))[at] for block in blocks) for path in paths) for at in (0, 1))
    return (
        Regions(
            variant=clip.variant,
            clip=clip.clip,
            order=clip.order,
            blocks=blocks,
            paths=paths,
            calls=calls,
            value_ns=value_ns,
            region_ns=region_ns,
        ),
    )


# Timing of one operation by itself, repeated while nothing else runs; its time inside a pass differs.

_BATCH: Final = 50
"""Calls on a GPU between two synchronisations."""


def time_isolated(
    run: Callable[[], object], *, iterations: int, device: torch.device, warmup: int = 3, cold: bool = False, waits: bool = False
) -> tuple[tuple[int, ...], Clock]:
    """Time repeated calls of one function that runs alone; return their times in order, ns, and the clock that was read.

    On a CPU each call is timed with the host clock. On a GPU each call lies between two CUDA events; the calls of a batch are
    launched while the GPU is kept busy, so that they run one after the other without waiting for the host, and their events are
    read once per batch.

    Args:
        run: called without arguments; its result is dropped.
        iterations: timed calls, at least 1.
        warmup: calls before, at least 1: the first ones compile, choose algorithms and allocate.
        cold: overwrite the GPU's cache before each call, outside of its time. On a CPU nothing is overwritten.
        waits: the function itself waits for the GPU, so that its calls cannot be queued; launch gaps then count.

    Raises:
        ConfigError: fewer than one call.
    """
    if iterations < 1 or warmup < 1:
        raise ConfigError(f"cannot time {iterations} calls after {warmup} of warm-up; at least 1 of each")
    for _ in range(warmup):
        run()
    synchronize(device)
    watch = Stopwatch(device, cold=cold)
    host_ns = watch.probe(run)[1] if device.type == "cuda" and not waits else 0
    laps = [watch.lap(run, min(_BATCH, iterations - done), host_ns) for done in range(0, iterations, _BATCH)]
    return tuple(value for times_ns, _, _ in laps for value in times_ns), laps[0][2]
