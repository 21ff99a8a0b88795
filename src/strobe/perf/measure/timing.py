"""Recorder of a timed run: host clock on a CPU, CUDA events on a GPU, resolved once after the clip."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from strobe.core import spans
from strobe.core.device import resolve_device
from strobe.perf.records.record import Clip, Clock, Regions, Span

if TYPE_CHECKING:
    import torch

FINE: Final = frozenset(
    {spans.DIT_FORWARD, spans.ATTENTION, spans.ATTENTION_KERNEL, spans.CROSS_ATTENTION, spans.FFN, spans.DECODE_WAIT}
)
"""Regions inside a pass, and waits of the host. On a GPU they and `spans.PIECES` are left to the traced run, so that timing does
not change what it times; on a CPU the clip's own thread adds up what it spends in them."""

_NULL: Final[AbstractContextManager[None]] = nullcontext()
_PROBES: Final = 201


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """One finished region.

    Args:
        parent: index of the nearest enclosing region that has one, on the same thread.
        thread: number of the thread by first use; 0 is the clip's own.
        start_ns: from the start of the clip.
    """

    name: str
    index: int | None
    parent: int | None
    thread: int
    start_ns: int
    value_ns: int
    clock: Clock


@dataclass(frozen=True, kw_only=True, slots=True)
class Inside:
    """Sum of all regions with one path inside one frame block.

    Args:
        block: index of the frame block.
        path: names of the regions from the outermost below the frame block to this one.
        calls: how often it was entered.
        value_ns: time between entering and leaving, regions inside it included.
    """

    block: int
    path: tuple[str, ...]
    calls: int
    value_ns: int


class TimingRecorder:
    """Recorder that measures the regions of one clip at a time.

    On a CPU every region is read from `time.perf_counter_ns`. On a GPU a region is a pair of CUDA events on the current stream,
    with no synchronisation; only `e2e` is wall time, synchronised at its two edges.

    Args:
        device: where the regions run: a device, or auto, cpu, cuda or cuda:N.
        fine: record the regions in `FINE` too. They change what they time; how much is the difference to a clip without them.
        inside: on a CPU, add up what the clip's own thread spends in every region of a frame block, `FINE` and `spans.PIECES`
            included. A region takes one or two microseconds then; `region_ns` measures it.
    """

    def __init__(self, device: str | torch.device, *, fine: bool = False, inside: bool = False) -> None:
        self._device = resolve_device(device)
        self._fine = fine
        self._inside = inside and self._device.type == "cpu"
        self._sums: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        self._events: list[torch.cuda.Event] = []
        self._done: list[_HostRegion | _CudaRegion] = []
        self._threads: dict[int, int] = {}
        self._lock = threading.Lock()
        self._open = threading.local()
        self._start_ns = 0
        self._start_event: torch.cuda.Event | None = None

    def region(self, name: str, index: int | None) -> AbstractContextManager[object]:
        """Return a context manager that measures the region."""
        piece, fine = name in spans.PIECES, name in FINE
        alone = not piece and (not fine or self._fine)
        if not alone and not self._inside:
            return _NULL
        if self._device.type == "cuda" and name != spans.E2E:
            return _CudaRegion(self, name, index)
        return _HostRegion(self, name, index) if alone else _SummedRegion(self, name, index)

    def start_clip(self) -> None:
        """Discard earlier regions and set the clip's time zero."""
        self._done.clear()
        self._sums.clear()
        self._threads = {threading.get_ident(): 0}
        if self._device.type == "cuda":
            self.synchronize()
            self._start_event = self.mark()
        self._start_ns = time.perf_counter_ns()

    def finish_clip(self) -> tuple[Region, ...]:
        """Wait for the device once and return every finished region in order of start."""
        self.synchronize()
        regions = [region.resolve() for region in self._done]
        if self._start_event is not None:
            self._events += [event for region in self._done if isinstance(region, _CudaRegion) for event in region.events]
            self._events.append(self._start_event)
            self._start_event = None
        return tuple(sorted(regions, key=lambda region: (region.start_ns, -region.value_ns)))

    def inside(self) -> tuple[Inside, ...]:
        """Return the time of the clip's own thread in each region inside the last clip's frame blocks, by block and path."""
        return tuple(
            Inside(block=block, path=path, calls=calls, value_ns=value_ns)
            for (block, path), (calls, value_ns) in sorted(self._sums.items())
        )

    def region_ns(self) -> int:
        """Measure the median overhead of one region that is only added up, ns."""
        if not self._inside:
            return 0
        other, took = TimingRecorder(self._device, inside=True), []
        other.start_clip()
        with other.region(spans.FRAME_BLOCK, 0):
            for _ in range(_PROBES):
                began = time.perf_counter_ns()
                with other.region(spans.FFN, None):
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

    def enter(self, region: _HostRegion | _CudaRegion) -> None:
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

    def leave(self, region: _HostRegion | _CudaRegion) -> None:
        """Close the region and keep it."""
        self._open.stack.pop()
        self._done.append(region)

    def add_up(self, region: _HostRegion, value_ns: int) -> None:
        """Add the region's time to the sum of its path in its frame block."""
        if self._inside and region.path and region.block is not None and region.thread == 0:
            found = self._sums.setdefault((region.block, region.path), [0, 0])
            found[0] += 1
            found[1] += value_ns

    def forget(self) -> None:
        """Close a region that is only added up, without keeping it."""
        self._open.stack.pop()

    def since_start_ns(self, moment: int | torch.cuda.Event) -> int:
        """Return the time from the start of the clip to a reading of the host clock or a resolved event."""
        if isinstance(moment, int):
            return moment - self._start_ns
        assert self._start_event is not None
        elapsed_ms: float = self._start_event.elapsed_time(moment)
        return round(elapsed_ms * 1e6)


class _Open:
    """A region that is still running."""

    __slots__ = ("block", "index", "name", "parent", "path", "recorder", "thread")

    def __init__(self, recorder: TimingRecorder, name: str, index: int | None) -> None:
        self.recorder = recorder
        self.name = name
        self.index = index
        self.parent: int | None = None
        self.thread = 0
        self.block: int | None = None
        self.path: tuple[str, ...] = ()

    def finished(self, start_ns: int, value_ns: int, clock: Clock) -> Region:
        return Region(
            name=self.name,
            index=self.index,
            parent=self.parent,
            thread=self.thread,
            start_ns=start_ns,
            value_ns=value_ns,
            clock=clock,
        )


class _HostRegion(_Open):
    __slots__ = ("start_ns", "stop_ns")

    def __enter__(self) -> Self:
        self.recorder.enter(self)
        if self.name == spans.E2E:
            self.recorder.synchronize()
        self.start_ns = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        if self.name == spans.E2E:
            self.recorder.synchronize()
        self.stop_ns = time.perf_counter_ns()
        self.recorder.add_up(self, self.stop_ns - self.start_ns)
        self.recorder.leave(self)

    def resolve(self) -> Region:
        start_ns = self.recorder.since_start_ns(self.start_ns)
        return self.finished(start_ns, self.stop_ns - self.start_ns, "perf_counter")


class _SummedRegion(_HostRegion):
    __slots__ = ()

    def __exit__(self, *_: object) -> None:
        self.recorder.add_up(self, time.perf_counter_ns() - self.start_ns)
        self.recorder.forget()


class _CudaRegion(_Open):
    __slots__ = ("first", "last")

    def __enter__(self) -> Self:
        self.recorder.enter(self)
        self.first = self.recorder.mark()
        return self

    def __exit__(self, *_: object) -> None:
        self.last = self.recorder.mark()
        self.recorder.leave(self)

    @property
    def events(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        return self.first, self.last

    def resolve(self) -> Region:
        start_ns = self.recorder.since_start_ns(self.first)
        return self.finished(start_ns, round(self.first.elapsed_time(self.last) * 1e6), "cuda_event")


def span_records(clip: Clip, regions: Iterable[Region]) -> tuple[Span, ...]:
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


def region_records(clip: Clip, found: Iterable[Inside], region_ns: int) -> tuple[Regions, ...]:
    """Return the line with the sums inside a clip's frame blocks, or nothing if there are none."""
    listed = list(found)
    if not listed:
        return ()
    paths = sorted({each.path for each in listed})
    blocks = sorted({each.block for each in listed})
    at = {(each.path, each.block): each for each in listed}
    table = [[at.get((path, block)) for block in blocks] for path in paths]
    return (
        Regions(
            variant=clip.variant,
            clip=clip.clip,
            order=clip.order,
            blocks=tuple(blocks),
            paths=tuple(paths),
            calls=tuple(tuple(each.calls if each else 0 for each in row) for row in table),
            value_ns=tuple(tuple(each.value_ns if each else 0 for each in row) for row in table),
            region_ns=region_ns,
        ),
    )
