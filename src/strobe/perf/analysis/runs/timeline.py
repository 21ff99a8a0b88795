"""The timeline of a trace: which label owns each moment.

On a CPU it is the timeline of the thread that runs the frame blocks: a label is the path of our spans at that moment and whether
an operator runs. On a GPU it is that of the device: a label is the path of our spans *at the launch* and the kind of work, and
where nothing runs, why not.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from strobe.core.errors import DataError
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, DIT_FORWARD, E2E, FRAME_BLOCK
from strobe.perf.analysis.device.idle import CAUSES
from strobe.perf.analysis.device.views import BUSY as RUNS
from strobe.perf.analysis.device.views import NONE, device_work
from strobe.perf.analysis.runs.sweep import Span, sweep
from strobe.perf.trace.events import Region, Trace

OP: Final = "op"
GAP: Final = "gap"
KERNEL: Final = "kernel"
TIMED: Final = "timed"
"""Activity of host time that a region took by itself in a timed clip."""
BUSY: Final = frozenset({OP, KERNEL, TIMED, "comm", "memset", "memcpy"})
OUTSIDE: Final = ("outside spans",)
NOT_LINKED: Final = ("launched before the trace",)
Path: TypeAlias = tuple[str, ...]
_PRIORITY: Final = {KERNEL: 2, "memset": 3, "comm": 4, "memcpy": 5}


class Label(NamedTuple):
    """Who owns a nanosecond.

    `path` names our spans from the outermost below the frame block to the innermost; `()` is the frame block itself, `OUTSIDE` no
    span at all. `activity` is `op` (an operator runs) or `gap` (Python and framework) in a trace of a CPU, `timed` in a timed
    clip of one; `kernel`, `memset`, `comm`, `memcpy` or one of `idle.IDLE` on a GPU.
    """

    path: tuple[str, ...]
    activity: str

    @property
    def region(self) -> str:
        """The innermost span."""
        return self.path[-1] if self.path else FRAME_BLOCK

    @property
    def busy(self) -> bool:
        """Whether an operator or the device was working."""
        return self.activity in BUSY

    def __str__(self) -> str:
        return f"{' / '.join(self.path or (FRAME_BLOCK,))}: {self.activity}"


class Slice(NamedTuple):
    """A stretch of the timeline with one owner: `event` counts into the operators or device events, `None` where none ran."""

    start_ns: int
    end_ns: int
    label: Label
    name: str | None
    event: int | None


class Call(NamedTuple):
    """One operator call or device event; `exclusive_ns` is the time it owns inside the frame blocks."""

    name: str
    label: Label
    start_ns: int
    duration_ns: int
    exclusive_ns: int


class Overlap(NamedTuple):
    """Operators on another thread beside the frame blocks (the decoder's worker): they own nothing."""

    thread: str
    path: tuple[str, ...]
    busy_ns: int


class Window(NamedTuple):
    """A frame block on the timeline."""

    block: int
    start_ns: int
    end_ns: int


class _Paths:
    """The path of our spans on each thread at each moment; with `layers` the number of the layer is part of it."""

    def __init__(self, regions: Iterable[Region], *, layers: bool) -> None:
        self._steps: dict[int, tuple[list[int], list[tuple[str, ...]]]] = {}
        for thread, nested in _by_thread(regions).items():
            paths = nested_paths(nested, layers=layers)
            # the span that starts last is the innermost
            spans = [Span(region.start_ns, region.end_ns, (-i,), i) for i, region in enumerate(nested)]
            end = max(region.end_ns for region in nested)
            bounds, values = [], []
            for left, _, owner in sweep(spans, nested[0].start_ns, end):
                bounds.append(left)
                values.append(OUTSIDE if owner is None else paths[owner])
            self._steps[thread] = ([*bounds, end], [*values, OUTSIDE])

    def at(self, thread: int, moment: int) -> tuple[str, ...]:
        """The path that is open on the thread at that moment."""
        bounds, values = self._steps.get(thread, ([], []))
        position = bisect_right(bounds, moment) - 1
        return values[position] if position >= 0 else OUTSIDE

    def bounds(self, thread: int) -> Sequence[int]:
        """The moments at which the path of the thread changes."""
        return self._steps.get(thread, ([], []))[0]


def _by_thread(regions: Iterable[Region]) -> dict[int, list[Region]]:
    found: dict[int, list[Region]] = {}
    for region in regions:
        found.setdefault(region.thread, []).append(region)
    return found


def region_paths(trace: Trace, *, layers: bool) -> Iterator[tuple[Region, Path]]:
    """Yield every region with its path, thread by thread."""
    for nested in _by_thread(trace.regions).values():
        yield from zip(nested, nested_paths(nested, layers=layers), strict=True)


def nested_paths(regions: Sequence[Region], *, layers: bool) -> list[tuple[str, ...]]:
    """Path of each span of one thread; the spans are in order of start.

    Every layer of a pass begins with its attention section, so a section's number in its pass is that of the layer.
    """
    paths: list[tuple[str, ...]] = []
    enclosing: list[int] = []
    begun: Counter[int] = Counter()
    for position, region in enumerate(regions):
        while enclosing and regions[enclosing[-1]].end_ns <= region.start_ns:
            enclosing.pop()
        above = paths[enclosing[-1]] if enclosing else OUTSIDE
        if region.name == FRAME_BLOCK:
            path: tuple[str, ...] = ()
        elif region.name == E2E:
            path = OUTSIDE
        else:
            path = (*(above if above != OUTSIDE else ()), region.name)
        if layers and enclosing and regions[enclosing[-1]].name == DIT_FORWARD:
            begun[enclosing[-1]] += region.name == ATTENTION
            path = (*path[:-1], f"layer {max(0, begun[enclosing[-1]] - 1)}", region.name)
        paths.append(path)
        enclosing.append(position)
    return paths


_LAYER: Final = re.compile(r"layer (\d+)")


def layer_of(name: str) -> int | None:
    """The number of a layer in a path, from 0; None: the name is a region's."""
    found = _LAYER.fullmatch(name)
    return None if found is None else int(found[1])


def without_layers(path: Path) -> Path:
    """The same path in whichever layer."""
    return tuple(name for name in path if layer_of(name) is None)


def timeline_of(trace: Trace, device: int | None, *, layers: bool = False) -> HostTimeline | DeviceTimeline:
    """Return the timeline of a device if the trace has device events, else that of the thread that runs the frame blocks.

    Args:
        layers: the paths of labels name the layer too, `layer 3` right behind `dit_forward`.

    Raises:
        DataError: no frame blocks, frame blocks of more than one clip, or frame blocks that launched nothing on the device.
    """
    blocks = [region for region in trace.regions if region.name == FRAME_BLOCK]
    if not blocks:
        raise DataError(f"{trace.path}: no strobe::{FRAME_BLOCK} spans; trace a streaming run with its spans recorded")
    threads = {region.thread for region in blocks}
    indices = [position if region.index is None else region.index for position, region in enumerate(blocks)]
    if len(threads) > 1 or any(after <= before for before, after in pairwise(indices)):
        found = f"frame blocks {indices} on {len(threads)} thread(s)"
        raise DataError(f"{trace.path}: {found} are not one clip; trace one clip per file")
    starts = [region.start_ns for region in blocks]
    windows = _tiles(indices, starts, [region.end_ns for region in blocks])
    host = HostTimeline(trace=trace, paths=_Paths(trace.regions, layers=layers), windows=windows, thread=threads.pop())
    return _device_timeline(host, device) if len(trace.device_events) else host


def _tiles(indices: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> tuple[Window, ...]:
    """Let a frame block last until the next one starts; the last one, and one whose successor is missing, until its own end."""
    windows = []
    for position, index in enumerate(indices):
        end = ends[position]
        if position + 1 < len(indices):
            following = starts[position + 1]
            end = following if indices[position + 1] == index + 1 else min(end, following)
        windows.append(Window(index, starts[position], end))
    return tuple(windows)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostTimeline:
    """The thread that runs the frame blocks; every other thread is beside it."""

    trace: Trace
    paths: _Paths
    windows: tuple[Window, ...]
    thread: int

    @property
    def device(self) -> str:
        """`cpu`."""
        return "cpu"

    def slices(self) -> Iterator[Slice]:
        """Tile the timeline from the first frame block to the last."""
        return self._thread_slices(self.thread)

    def _thread_slices(self, thread: int) -> Iterator[Slice]:
        ops = self.trace.ops
        # of two operators that run, the one that started last is the inner one
        spans = (Span(ops.start_ns[i], ops.end_ns[i], (-i,), i) for i in range(len(ops)) if ops.thread[i] == thread)
        cuts = self.paths.bounds(thread)
        for left, right, owner in sweep(spans, self.windows[0].start_ns, self.windows[-1].end_ns, cuts):
            label = Label(self.paths.at(thread, left), GAP if owner is None else OP)
            yield Slice(left, right, label, None if owner is None else ops.names[ops.name[owner]], owner)

    def calls(self, exclusive: Mapping[int, int]) -> Iterator[Call]:
        """Yield the calls that start in a frame block or own time in one, given the time each owns."""
        for i, op in enumerate(self.trace.ops):
            if op.thread == self.thread and (i in exclusive or _in_window(op.start_ns, self.windows)):
                label = Label(self.paths.at(op.thread, op.start_ns), OP)
                yield Call(op.name, label, op.start_ns, op.end_ns - op.start_ns, exclusive.get(i, 0))

    def overlap(self) -> Iterator[Overlap]:
        """Yield what the other threads did during the frame blocks."""
        for thread in sorted(set(self.trace.ops.thread) - {self.thread}):
            busy: Counter[tuple[str, ...]] = Counter()
            for _, piece in clip(self._thread_slices(thread), self.windows):
                if piece.event is not None:
                    busy[piece.label.path] += piece.end_ns - piece.start_ns
            for path, busy_ns in sorted(busy.items()):
                yield Overlap(self.trace.threads[thread], path, busy_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceTimeline:
    """One device. `labels` gives what each of its events would own, by position in the trace's device events."""

    trace: Trace
    windows: tuple[Window, ...]
    number: int
    labels: Mapping[int, Label]

    @property
    def device(self) -> str:
        """`cuda:N`."""
        return f"cuda:{self.number}"

    def slices(self) -> Iterator[Slice]:
        """Tile the timeline from the first frame block to the last; a gap carries the path of the event that ends it."""
        events = self.trace.device_events
        work = dict(device_work(self.trace))[self.number]
        rank = np.array([_priority(label) for label in self.labels.values()], np.int8)
        tiled = work.tile(self.trace, rank, self.windows[0].start_ns, self.windows[-1].end_ns)
        position = work.position.tolist()
        for start, end, found, cause in zip(*(column.tolist() for column in tiled), strict=True):
            if cause == RUNS:
                event = position[found]
                yield Slice(start, end, self.labels[event], events.names[events.name[event]], event)
            else:
                path = NOT_LINKED if found == NONE else self.labels[position[found]].path
                yield Slice(start, end, Label(path, CAUSES[cause]), None, None)

    def calls(self, exclusive: Mapping[int, int]) -> Iterator[Call]:
        """Yield the calls that start in a frame block or own time in one, given the time each owns."""
        for i, label in self.labels.items():
            event = self.trace.device_events[i]
            if i in exclusive or _in_window(event.start_ns, self.windows):
                yield Call(event.name, label, event.start_ns, event.end_ns - event.start_ns, exclusive.get(i, 0))

    def overlap(self) -> Iterator[Overlap]:
        """Nothing: the device's timeline owns what every stream did."""
        return iter(())


def _device_timeline(host: HostTimeline, number: int | None) -> DeviceTimeline:
    """Move the frame blocks from the host to a device: each starts with the first device event it launched."""
    trace, starts = host.trace, [window.start_ns for window in host.windows]
    launched: dict[int, list[list[tuple[int, int]]]] = {}
    for event in trace.device_events:
        if event.host is None or event.host.thread != host.thread or not _in_window(event.host.start_ns, host.windows):
            continue
        block = bisect_right(starts, event.host.start_ns) - 1
        launched.setdefault(event.device, [[] for _ in starts])[block].append((event.start_ns, event.end_ns))
    if number is None and launched:
        number = max(launched, key=lambda device: (sum(map(len, launched[device])), -device))
    if number is None or number not in launched:
        where = "any device" if number is None else f"cuda:{number}"
        raise DataError(f"{trace.path}: the frame blocks launched no work on {where}")
    indices = [window.block for window in host.windows]
    idle = [index for index, work in zip(indices, launched[number], strict=True) if not work]
    if idle:
        raise DataError(f"{trace.path}: frame blocks {idle} launched no work on cuda:{number}; trace whole frame blocks")
    device_starts = list(accumulate((min(work)[0] for work in launched[number]), max))
    # a frame block may be overtaken by the one before: then it is empty, never negative
    device_ends = [max(start, *(end for _, end in work)) for start, work in zip(device_starts, launched[number], strict=True)]
    labels = {
        i: Label(NOT_LINKED if event.host is None else host.paths.at(event.host.thread, event.host.start_ns), event.kind)
        for i, event in enumerate(trace.device_events)
        if event.device == number
    }
    windows = _tiles(indices, device_starts, device_ends)
    return DeviceTimeline(trace=trace, windows=windows, number=number, labels=labels)


def _priority(label: Label) -> int:
    """Where events overlap: attention kernel, attention section, other compute, memset, communication, memory copy."""
    if label.activity == KERNEL and ATTENTION in label.path:
        return 0 if ATTENTION_KERNEL in label.path else 1
    return _PRIORITY[label.activity]


def _in_window(moment: int, windows: Sequence[Window]) -> bool:
    position = bisect_right(windows, moment, key=lambda window: window.start_ns) - 1
    return position >= 0 and moment < windows[position].end_ns


def clip(slices: Iterable[Slice], windows: Sequence[Window]) -> Iterator[tuple[int, Slice]]:
    """Yield the parts of the slices that lie in the windows, each with the position of its window. Both are in order."""
    first = 0
    for piece in slices:
        while first < len(windows) and windows[first].end_ns <= piece.start_ns:
            first += 1
        for position in range(first, len(windows)):
            window = windows[position]
            if window.start_ns >= piece.end_ns:
                break
            start, end = max(piece.start_ns, window.start_ns), min(piece.end_ns, window.end_ns)
            if start < end:
                yield position, piece._replace(start_ns=start, end_ns=end)
