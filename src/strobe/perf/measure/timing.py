"""The recorder of a timed run: host clock on a CPU, CUDA events on a GPU, resolved once when the clip has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from strobe.core import spans
from strobe.perf.records.record import Clip, Clock, Span

if TYPE_CHECKING:
    import torch

FINE: Final = frozenset({spans.DIT_FORWARD, spans.ATTENTION, spans.ATTENTION_KERNEL, spans.CROSS_ATTENTION, spans.FFN})
"""Regions inside a pass: left to the traced run, so that timing does not change what it times. `spans.PIECES` are never timed."""

_NULL: Final[AbstractContextManager[None]] = nullcontext()


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


class TimingRecorder:
    """Measures the regions of one clip at a time.

    On a CPU every region is read from `time.perf_counter_ns`. On a GPU a region is a pair of CUDA events on the current stream,
    with no synchronisation; only `e2e` is wall time, synchronised at its two edges.

    Args:
        device: where the regions run.
        fine: record the regions in `FINE` too. They change what they time; how much is the difference to a clip without them.
    """

    def __init__(self, device: torch.device, *, fine: bool = False) -> None:
        self._device = device
        self._fine = fine
        self._events: list[torch.cuda.Event] = []
        self._done: list[_HostRegion | _CudaRegion] = []
        self._threads: dict[int, int] = {}
        self._lock = threading.Lock()
        self._open = threading.local()
        self._start_ns = 0
        self._start_event: torch.cuda.Event | None = None

    def region(self, name: str, index: int | None) -> AbstractContextManager[object]:
        """Return a context manager that measures the region."""
        if name in spans.PIECES or (name in FINE and not self._fine):
            return _NULL
        if self._device.type == "cuda" and name != spans.E2E:
            return _CudaRegion(self, name, index)
        return _HostRegion(self, name, index)

    def start_clip(self) -> None:
        """Forget everything and take the clip's zero of time."""
        self._done.clear()
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

    # What a region needs from its recorder.

    def synchronize(self) -> None:
        """Wait for the device; nothing on a CPU."""
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)

    def mark(self) -> torch.cuda.Event:
        """Record an event of the pool on the current stream."""
        import torch

        event = self._events.pop() if self._events else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def enter(self, region: _HostRegion | _CudaRegion) -> None:
        """Note the region's thread and parent."""
        stack = self._open.__dict__.setdefault("stack", [])
        region.parent = next((outer for outer in reversed(stack) if outer is not None), None)
        stack.append(region.index)
        with self._lock:
            region.thread = self._threads.setdefault(threading.get_ident(), len(self._threads))

    def leave(self, region: _HostRegion | _CudaRegion) -> None:
        """Keep the region."""
        self._open.stack.pop()
        self._done.append(region)

    def since_start_ns(self, moment: int | torch.cuda.Event) -> int:
        """Return the time from the start of the clip to a reading of the host clock or a resolved event."""
        if isinstance(moment, int):
            return moment - self._start_ns
        assert self._start_event is not None
        elapsed_ms: float = self._start_event.elapsed_time(moment)
        return round(elapsed_ms * 1e6)


class _Open:
    """A region while it runs."""

    __slots__ = ("index", "name", "parent", "recorder", "thread")

    def __init__(self, recorder: TimingRecorder, name: str, index: int | None) -> None:
        self.recorder = recorder
        self.name = name
        self.index = index
        self.parent: int | None = None
        self.thread = 0

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
        self.recorder.leave(self)

    def resolve(self) -> Region:
        start_ns = self.recorder.since_start_ns(self.start_ns)
        return self.finished(start_ns, self.stop_ns - self.start_ns, "perf_counter")


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


@contextmanager
def recording(recorder: spans.Recorder | None) -> Iterator[None]:
    """Put a recorder into the span slot for the length of a `with` block."""
    previous = spans.set_recorder(recorder)
    try:
        yield
    finally:
        spans.set_recorder(previous)


def span_records(clip: Clip, regions: Iterable[Region]) -> tuple[Span, ...]:
    """Return the lines that belong above a `clip` line."""
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
