"""Timeline of a trace: the label that owns each moment.

On a CPU it is the timeline of the thread that runs the frame blocks: a label is the path of our spans at that moment and whether
an operator runs. On a GPU it is that of the device: a label is the path of our spans *at the launch* and the kind of work, and
where nothing runs, why not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strobe.core.errors import DataError
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, DIT_FORWARD, E2E, FRAME_BLOCK
from strobe.perf.analysis.device.device_work import NONE, EventView, events_by_device
from strobe.perf.analysis.device.intervals import Intervals, Ints, column
from strobe.perf.analysis.device.owners import ACTIVITIES, LabelSlices, cut_at, label_slices, tile_of
from strobe.perf.analysis.structure.scopes import NOWHERE, Nesting, nest
from strobe.perf.trace.events import DEVICE_KINDS, HostEvent, HostEvents, Region, Trace

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
_LATE: Final = 1 << 62


class Label(NamedTuple):
    """Owner of a nanosecond: a path of spans and an activity.

    `path` names our spans from the outermost below the frame block to the innermost; `()` is the frame block itself, `OUTSIDE` no
    span at all. `activity` is `op` (an operator runs) or `gap` (Python and framework) in a trace of a CPU, `timed` in a timed
    clip of one; `kernel`, `memset`, `comm`, `memcpy` or one of `idle.IDLE` on a GPU.
    """

    path: tuple[str, ...]
    activity: str

    @property
    def region(self) -> str:
        """Name of the innermost span."""
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


class RegionCall(NamedTuple):
    """One operator call or device event; `exclusive_ns` is the time it owns inside the frame blocks."""

    name: str
    label: Label
    start_ns: int
    duration_ns: int
    exclusive_ns: int


class Overlap(NamedTuple):
    """Operators on another thread during the frame blocks (such as the decoder's worker); they own no time."""

    thread: str
    path: tuple[str, ...]
    busy_ns: int


class Window(NamedTuple):
    """A frame block on the timeline."""

    block: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionPaths:
    """Our regions with their paths, and lookup of the path that is open on a thread at a moment.

    Args:
        regions: regions of the trace.
        texts: the paths, `OUTSIDE` first and then `NOT_LINKED`; all others are different.
        of: the path of each region, a position in `texts`.
        nesting: how the regions contain each other.
    """

    regions: Sequence[Region]
    texts: tuple[Path, ...]
    of: Ints
    nesting: Nesting

    def at(self, thread: int, moments: Ints) -> Ints:
        """Return the path that is open on the thread at each moment."""
        return self._path_of(self.nesting.at(thread, moments))

    def of_calls(self, hosts: HostEvents, host: NDArray[np.integer]) -> Ints:
        """Return the path that each launch call starts in; `NOT_LINKED` for negative numbers, which are no calls."""
        return np.where(host < 0, 1, self._path_of(self.nesting.of_calls(hosts, host)))

    def _path_of(self, region: Ints) -> Ints:
        return np.append(self.of, 0)[region]  # NOWHERE is the last position

    def __iter__(self) -> Iterator[tuple[Region, Path]]:
        """Yield every region with its path, thread by thread."""
        on_thread: dict[int, list[int]] = {}
        for position, region in enumerate(self.regions):
            on_thread.setdefault(region.thread, []).append(position)
        for positions in on_thread.values():
            for position in positions:
                yield self.regions[position], self.texts[self.of[position]]


def region_paths(regions: Sequence[Region], *, layers: bool) -> RegionPaths:
    """Find the path of each region; the regions are in order of start.

    Every layer of a pass begins with its attention section, so a section's number in its pass is that of the layer.

    Args:
        layers: a path names the layer too, `layer 3` right behind `dit_forward`.
    """
    rows = (HostEvent(region.name, region.start_ns, region.end_ns, region.thread) for region in regions)
    nesting = nest(HostEvents.from_rows(rows))
    paths: list[Path] = []
    begun: Counter[int] = Counter()
    for region, parent in zip(regions, nesting.parent.tolist(), strict=True):
        above = OUTSIDE if parent == NOWHERE else paths[parent]
        if region.name == FRAME_BLOCK:
            path: Path = ()
        elif region.name == E2E:
            path = OUTSIDE
        else:
            path = (*(above if above != OUTSIDE else ()), region.name)
        if layers and parent != NOWHERE and regions[parent].name == DIT_FORWARD:
            begun[parent] += region.name == ATTENTION
            path = (*path[:-1], f"layer {max(0, begun[parent] - 1)}", region.name)
        paths.append(path)
    numbers: dict[Path, int] = {OUTSIDE: 0, NOT_LINKED: 1}
    of = np.array([numbers.setdefault(path, len(numbers)) for path in paths], np.int64)
    return RegionPaths(regions=regions, texts=tuple(numbers), of=of, nesting=nesting)


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
    regions, thread = region_paths(trace.regions, layers=layers), threads.pop()
    if len(trace.device_events):
        return _device_timeline(trace, regions, windows, thread, device)
    return HostTimeline(trace=trace, regions=regions, windows=windows, thread=thread, operators=nest(trace.ops))


def _tiles(indices: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> tuple[Window, ...]:
    """Cut frame blocks: each lasts until the next one starts; the last, and one without successor, until its own end."""
    windows = []
    for position, index in enumerate(indices):
        end = ends[position]
        if position + 1 < len(indices):
            following = starts[position + 1]
            end = following if indices[position + 1] == index + 1 else min(end, following)
        windows.append(Window(index, starts[position], end))
    return tuple(windows)


def bounds(windows: Sequence[Window]) -> Intervals:
    """Return the frame blocks as columns."""
    columns = np.array([window[1:] for window in windows], np.int64)
    return Intervals(columns[:, 0], columns[:, 1])


_HOST_ACTIVITIES: Final = (GAP, OP)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostTimeline:
    """Timeline of the thread that runs the frame blocks; other threads lie beside it. `operators`: nesting of operators."""

    trace: Trace
    regions: RegionPaths
    windows: tuple[Window, ...]
    thread: int
    operators: Nesting

    @property
    def device(self) -> str:
        """Device name, always `cpu`."""
        return "cpu"

    @property
    def num_events(self) -> int:
        """Number of operators."""
        return len(self.trace.ops)

    @property
    def labels(self) -> tuple[Label, ...]:
        """Labels by number."""
        return tuple(Label(path, activity) for path in self.regions.texts for activity in _HOST_ACTIVITIES)

    def pieces(self) -> LabelSlices:
        """Tile the frame blocks; events are operators."""
        return self._of_thread(self.thread)

    def _of_thread(self, thread: int) -> LabelSlices:
        tiles = bounds(self.windows)
        begin, stop = int(tiles.start[0]), int(tiles.end[-1])
        none = tiles.start[:0]
        changes = [nesting.bounds.get(thread, none) for nesting in (self.operators, self.regions.nesting)]
        edges = np.unique(np.concatenate((tiles.start, tiles.end, *changes)))
        edges = edges[(edges >= begin) & (edges <= stop)]
        start, end = edges[:-1], edges[1:]
        operator = self.operators.at(thread, start)
        label = len(_HOST_ACTIVITIES) * self.regions.at(thread, start) + (operator != NOWHERE)
        return cut_at(LabelSlices(start, end, np.zeros_like(start), label, operator), tiles)

    def slices(self, window: int | None = None) -> Iterator[Slice]:
        """Yield the slices that tile the frame blocks in order, or one of them by its position."""
        ops = self.trace.ops
        for start, end, label, operator in _rows(self.pieces(), self.labels, window):
            if operator == NONE:
                yield Slice(start, end, label, None, None)
            else:
                yield Slice(start, end, label, ops.names[ops.name[operator]], operator)

    def calls(self, exclusive: Ints) -> Iterator[RegionCall]:
        """Yield the calls that start in a frame block or own time in one, given the time each owns."""
        ops = self.trace.ops
        start, mine = column(ops.start_ns), column(ops.thread) == self.thread
        chosen = np.flatnonzero(mine & ((exclusive > 0) | (tile_of(start, bounds(self.windows)) != NONE)))
        paths = self.regions.at(self.thread, start[chosen]).tolist()
        for i, path in zip(chosen.tolist(), paths, strict=True):
            op = ops[i]
            label = Label(self.regions.texts[path], OP)
            yield RegionCall(op.name, label, op.start_ns, op.end_ns - op.start_ns, int(exclusive[i]))

    def overlap(self) -> Iterator[Overlap]:
        """Yield what the other threads did during the frame blocks."""
        labels = self.labels
        for thread in sorted(set(self.trace.ops.thread) - {self.thread}):
            busy: Counter[Path] = Counter()
            for start, end, label, operator in _rows(self._of_thread(thread), labels, None):
                if operator != NONE:
                    busy[label.path] += end - start
            for path, busy_ns in sorted(busy.items()):
                yield Overlap(self.trace.threads[thread], path, busy_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceTimeline:
    """Timeline of one device.

    Args:
        work: its events.
        paths: paths of regions, all different.
        path: path in which each of its events was launched, a position in `paths`.
    """

    trace: Trace
    regions: RegionPaths
    windows: tuple[Window, ...]
    number: int
    work: EventView
    paths: tuple[Path, ...]
    path: Ints

    @property
    def device(self) -> str:
        """Device name, `cuda:N`."""
        return f"cuda:{self.number}"

    @property
    def num_events(self) -> int:
        """Number of events of the device."""
        return len(self.work)

    @property
    def labels(self) -> tuple[Label, ...]:
        """Labels by number."""
        return tuple(Label(path, activity) for path in self.paths for activity in ACTIVITIES)

    def pieces(self) -> LabelSlices:
        """Tile the frame blocks; events count into the device's. A gap has the path of the event that ends it."""
        tiles = bounds(self.windows)
        slices = self.work.tile(self.trace, self._rank(), int(tiles.start[0]), int(tiles.end[-1]))
        place = np.where(slices.event == NONE, self.paths.index(NOT_LINKED), self.path[slices.event])
        return label_slices(self.work, slices, place, tiles)

    def _rank(self) -> NDArray[np.integer]:
        """Return each event's rank for overlaps: attention kernel, attention section, other compute, memset, comm, copy."""
        of_kind = np.array([_PRIORITY[kind] for kind in DEVICE_KINDS], np.int8)
        of_path = np.array([0 if ATTENTION_KERNEL in path else 1 for path in self.paths], np.int8)
        attention = np.array([ATTENTION in path for path in self.paths])
        first = (self.work.kind == DEVICE_KINDS.index(KERNEL)) & attention[self.path]
        return np.where(first, of_path[self.path], of_kind[self.work.kind])

    def slices(self, window: int | None = None) -> Iterator[Slice]:
        """Yield the slices that tile the frame blocks in order, or one of them by its position."""
        events, position = self.trace.device_events, self.work.position.tolist()
        for start, end, label, row in _rows(self.pieces(), self.labels, window):
            if row == NONE:
                yield Slice(start, end, label, None, None)
            else:
                yield Slice(start, end, label, events.names[events.name[position[row]]], position[row])

    def calls(self, exclusive: Ints) -> Iterator[RegionCall]:
        """Yield the calls that start in a frame block or own time in one, given the time each owns."""
        chosen = np.flatnonzero((exclusive > 0) | (tile_of(self.work.start, bounds(self.windows)) != NONE))
        own, names, labels = self.work.at(chosen), self.trace.device_events.names, self.labels
        label = (self.path[chosen] * len(ACTIVITIES) + own.kind).tolist()
        rows = zip(own.name.tolist(), label, own.start.tolist(), own.end.tolist(), exclusive[chosen].tolist(), strict=True)
        for name, number, start, end, owned in rows:
            yield RegionCall(names[name], labels[number], start, end - start, owned)

    def overlap(self) -> Iterator[Overlap]:
        """Yield nothing: the device's timeline includes all of its streams."""
        return iter(())


def _rows(pieces: LabelSlices, labels: Sequence[Label], window: int | None) -> Iterable[tuple[int, int, Label, int]]:
    """Yield start, end, label and event of each piece, of all windows or of one."""
    some = slice(None) if window is None else pieces.tile == window
    start, end, _, number, event = (values[some].tolist() for values in pieces)
    return zip(start, end, map(labels.__getitem__, number), event, strict=True)


def _device_timeline(
    trace: Trace, regions: RegionPaths, windows: Sequence[Window], thread: int, number: int | None
) -> DeviceTimeline:
    """Move the frame blocks from the host to a device: each starts with the first device event that it launched."""
    events, host = trace.device_events, np.asarray(trace.device_events.host)
    launched = np.flatnonzero(host >= 0)
    block = tile_of(column(events.hosts.start_ns)[host[launched]], bounds(windows))
    inside = (block != NONE) & (column(events.hosts.thread)[host[launched]] == thread)
    launched, block = launched[inside], block[inside]
    device = np.asarray(events.device)[launched]
    devices, counts = np.unique(device, return_counts=True)
    if number is None and len(devices):
        number = int(devices[np.argmax(counts)])
    if number is None or number not in devices:
        where = "any device" if number is None else f"cuda:{number}"
        raise DataError(f"{trace.path}: the frame blocks launched no work on {where}")
    own, block = launched[device == number], block[device == number]
    indices = [window.block for window in windows]
    first, last = np.full(len(indices), _LATE), np.full(len(indices), -_LATE)
    np.minimum.at(first, block, column(events.start_ns)[own])
    np.maximum.at(last, block, column(events.end_ns)[own])
    idle = [index for index, start in zip(indices, first.tolist(), strict=True) if start == _LATE]
    if idle:
        raise DataError(f"{trace.path}: frame blocks {idle} launched no work on cuda:{number}; trace whole frame blocks")
    # a frame block may be overtaken by the one before: then it is empty, never negative
    starts = np.maximum.accumulate(first)
    work = dict(events_by_device(trace))[number]
    return DeviceTimeline(
        trace=trace,
        regions=regions,
        windows=_tiles(indices, starts.tolist(), np.maximum(starts, last).tolist()),
        number=number,
        work=work,
        paths=regions.texts,
        path=regions.of_calls(events.hosts, work.host),
    )
