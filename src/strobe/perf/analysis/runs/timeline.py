"""Timeline of a traced run: the label that owns each moment, also inside CUDA graphs and compiled passes."""

from __future__ import annotations

import gzip
import re
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from fractions import Fraction
from itertools import pairwise
from operator import itemgetter
from pathlib import Path as FilePath
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from strobe.core.errors import DataError
from strobe.core.spans import (
    ATTENTION,
    ATTENTION_KERNEL,
    ATTENTION_OPERATOR,
    CROSS_ATTENTION_KERNEL,
    DIT_FORWARD,
    E2E,
    FRAME_BLOCK,
)
from strobe.perf.analysis.device.activity import (
    ACTIVITIES,
    NONE,
    EventView,
    LabelSlices,
    cut_at,
    events_by_device,
    label_slices,
    sums,
    tile_of,
)
from strobe.perf.analysis.device.intervals import Intervals, Ints, column
from strobe.perf.analysis.device.kernels import comparable, full_name, kernel_name, kernel_part
from strobe.perf.analysis.parts import Part
from strobe.perf.analysis.structure.ranges import NOWHERE, Nesting, nest
from strobe.perf.table.rows import gathered
from strobe.perf.trace.events import DEVICE_KINDS, DeviceEvents, HostEvent, HostEvents, Region, Trace

# Timeline of a trace: the label that owns each moment.
#
# On a CPU it is the timeline of the thread that runs the frame blocks: a label is the path of our spans at that moment and
# whether an operator runs. On a GPU it is that of the device: a label is the path of our spans *at the launch* and the kind of
# work, and where nothing runs, why not.

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
        return self.path[-1] if self.path else FRAME_BLOCK

    @property
    def busy(self) -> bool:
        """Whether an operator or the device was working."""
        return self.activity in BUSY

    def __str__(self) -> str:
        return f"{' / '.join(self.path or (FRAME_BLOCK,))}: {self.activity}"


def summed(parts: Iterable[Mapping[Label, int]]) -> Counter[Label]:
    """Add up the times of labels."""
    total: Counter[Label] = Counter()
    for labels in parts:
        total.update(labels)
    return total


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
    duration_ns: int
    exclusive_ns: int


Overlap: TypeAlias = tuple[str, Path, int]
"""Another thread, a path, and how long operators ran there during the frame blocks (such as the decoder's); they own no time."""


_HOST_ACTIVITIES: Final = (GAP, OP)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTimeline:
    """Timeline of the thread that runs the frame blocks, or of the device that they launched most work on.

    Args:
        device: `cpu` or `cuda:N`.
        blocks, tiles: number and time of each frame block.
        paths: paths of regions, all different, `OUTSIDE` first and then `NOT_LINKED`.
        nesting, of: our regions, and the path of each, a position in `paths`.
        operators: those of a CPU.
        work: events of the device; none on a CPU.
        path: path in which each of them was launched, a position in `paths`.
    """

    trace: Trace
    device: str
    blocks: tuple[int, ...]
    tiles: Intervals
    thread: int
    paths: tuple[Path, ...]
    nesting: Nesting
    of: Ints
    operators: Nesting
    work: EventView
    path: Ints

    @property
    def labels(self) -> tuple[Label, ...]:
        activities = ACTIVITIES if len(self.work) else _HOST_ACTIVITIES
        return tuple(Label(path, activity) for path in self.paths for activity in activities)

    def pieces(self) -> LabelSlices:
        """Tile the frame blocks; events are operators, or the device's. Its gaps have the path of the event that ends them."""
        if not len(self.work):
            return self._of_thread(self.thread)
        tiles = self.tiles
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

    def _of_thread(self, thread: int) -> LabelSlices:
        tiles = self.tiles
        begin, stop = int(tiles.start[0]), int(tiles.end[-1])
        none = tiles.start[:0]
        changes = [nesting.cuts.moments.get(thread, none) for nesting in (self.operators, self.nesting)]
        edges = np.unique(np.concatenate((tiles.start, tiles.end, *changes)))
        edges = edges[(edges >= begin) & (edges <= stop)]
        start, end = edges[:-1], edges[1:]
        operator = self.operators.at(thread, start)
        label = self._host_label(thread, start) + (operator != NOWHERE)
        return cut_at(LabelSlices(start, end, np.zeros_like(start), label, operator), tiles)

    def _host_label(self, thread: int, moments: Ints) -> Ints:
        """Return the first label of the path that is open on a thread at each moment, a position in `labels`."""
        return len(_HOST_ACTIVITIES) * np.append(self.of, 0)[self.nesting.at(thread, moments)]  # NOWHERE is the last position

    def calls(self, exclusive: Ints) -> Iterator[RegionCall]:
        """Yield the calls that start in a frame block or own time in one, given the time each owns."""
        work, ops, labels = self.work, self.trace.ops, self.labels
        if len(work):
            names, name, start, end = self.trace.device_events.names, work.name, work.start, work.end
            label, mine = len(ACTIVITIES) * self.path + work.kind, np.bool_(True)
        else:
            names, name, start, end = ops.names, np.asarray(ops.name), column(ops.start_ns), column(ops.end_ns)
            label, mine = self._host_label(self.thread, start) + 1, column(ops.thread) == self.thread
        chosen = np.flatnonzero(mine & ((exclusive > 0) | (tile_of(start, self.tiles) != NONE)))
        columns = (each[chosen].tolist() for each in (name, label, end - start, exclusive))
        for at, number, duration, owned in zip(*columns, strict=True):
            yield RegionCall(names[at], labels[number], duration, owned)

    def overlap(self) -> Iterator[Overlap]:
        """Yield what the other threads of a CPU did during the frame blocks."""
        labels = self.labels
        for thread in () if len(self.work) else sorted(set(self.trace.ops.thread) - {self.thread}):
            busy: Counter[Path] = Counter()
            for start, end, label, operator in _rows(self._of_thread(thread), labels, None):
                if operator != NONE:
                    busy[label.path] += end - start
            for path, busy_ns in sorted(busy.items()):
                yield self.trace.threads[thread], path, busy_ns


def timeline_of(trace: Trace, *, layers: bool = False) -> RunTimeline:
    """Return the timeline of the busiest device, or of the thread that runs the frame blocks if the trace has no device events.

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
    events, (paths, of, nesting) = trace.device_events, _region_paths(trace.regions, layers=layers)
    on_host = RunTimeline(
        trace=trace,
        device="cpu",
        blocks=tuple(indices),
        tiles=_tiles(indices, [region.start_ns for region in blocks], [region.end_ns for region in blocks]),
        thread=threads.pop(),
        paths=paths,
        nesting=nesting,
        of=of,
        operators=nest(HostEvents.from_rows(()) if len(events) else trace.ops),
        work=EventView(events=events, rows=slice(0, 0)),
        path=of[:0],
    )
    return _on_device(on_host) if len(events) else on_host


def _region_paths(regions: Sequence[Region], *, layers: bool) -> tuple[tuple[Path, ...], Ints, Nesting]:
    """Return all paths of regions, that of each, and how they lie in each other; the regions are in order of start.

    Every layer of a pass begins with its attention section, so a section's number in its pass is that of the layer.
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
    return tuple(numbers), of, nesting


def _tiles(indices: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> Intervals:
    """Cut frame blocks: each lasts until the next one starts; the last, and one without successor, until its own end."""
    found = []
    for position, index in enumerate(indices):
        end = ends[position]
        if position + 1 < len(indices):
            following = starts[position + 1]
            end = following if indices[position + 1] == index + 1 else min(end, following)
        found.append(end)
    return Intervals(np.array(starts, np.int64), np.array(found, np.int64))


def _rows(pieces: LabelSlices, labels: Sequence[Label], window: int | None) -> Iterable[tuple[int, int, Label, int]]:
    """Yield start, end, label and event of each piece, of all windows or of one."""
    some = slice(None) if window is None else pieces.tile == window
    start, end, _, number, event = (values[some].tolist() for values in pieces)
    return zip(start, end, map(labels.__getitem__, number), event, strict=True)


def _on_device(timeline: RunTimeline) -> RunTimeline:
    """Move the frame blocks from the host to a device: each starts with the first device event that it launched."""
    trace, indices = timeline.trace, timeline.blocks
    events, host = trace.device_events, np.asarray(trace.device_events.host)
    launched = np.flatnonzero(host >= 0)
    block = tile_of(column(events.hosts.start_ns)[host[launched]], timeline.tiles)
    inside = (block != NONE) & (column(events.hosts.thread)[host[launched]] == timeline.thread)
    launched, block = launched[inside], block[inside]
    device = np.asarray(events.device)[launched]
    devices, counts = np.unique(device, return_counts=True)
    if not len(devices):
        raise DataError(f"{trace.path}: the frame blocks launched no work on any device")
    number = int(devices[np.argmax(counts)])
    own, block = launched[device == number], block[device == number]
    first, last = np.full(len(indices), _LATE), np.full(len(indices), -_LATE)
    np.minimum.at(first, block, column(events.start_ns)[own])
    np.maximum.at(last, block, column(events.end_ns)[own])
    idle = [index for index, start in zip(indices, first.tolist(), strict=True) if start == _LATE]
    if idle:
        raise DataError(f"{trace.path}: frame blocks {idle} launched no work on cuda:{number}; trace whole frame blocks")
    # a frame block may be overtaken by the one before: then it is empty, never negative
    starts = np.maximum.accumulate(first)
    tiles, work = _tiles(indices, starts.tolist(), np.maximum(starts, last).tolist()), dict(events_by_device(trace))[number]
    region = timeline.nesting.of_calls(events.hosts, work.host)
    path = np.where(work.host < 0, timeline.paths.index(NOT_LINKED), np.append(timeline.of, 0)[region])
    return replace(timeline, device=f"cuda:{number}", tiles=tiles, work=work, path=path)


# Cuts the time of a trace into frame blocks and each frame block into labels, exactly.
#
# Every nanosecond of a frame block belongs to one label, so the labels of a block add up to its length.


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """One frame block with its time by label: the values of `owned` add up to `end_ns - start_ns`."""

    index: int
    start_ns: int
    end_ns: int
    owned: Mapping[Label, int]


def tiles_of(numbers: Iterable[int], tiles: Intervals, owned: Iterable[Mapping[Label, int]]) -> tuple[Tile, ...]:
    """Return frame blocks, or steps, with their times by label."""
    rows = zip(numbers, tiles.start.tolist(), tiles.end.tolist(), owned, strict=True)
    return tuple(Tile(index=number, start_ns=start, end_ns=end, owned=labels) for number, start, end, labels in rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """Frame blocks of one trace, each cut into labels.

    Args:
        device: `cpu` or `cuda:N`.
        tiles: one per frame block. Where blocks follow each other, a tile ends where the next starts.
        calls: operators of the frame blocks' thread, or device events, that start in a tile or own time in one.
        overlap: activity of other host threads meanwhile (CPU only).
    """

    device: str
    tiles: tuple[Tile, ...]
    calls: tuple[RegionCall, ...]
    overlap: tuple[Overlap, ...]

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(tile.index for tile in self.tiles)

    @property
    def total_ns(self) -> int:
        return sum(tile.end_ns - tile.start_ns for tile in self.tiles)

    @property
    def owned(self) -> Counter[Label]:
        return summed(tile.owned for tile in self.tiles)


def partition_of(timeline: RunTimeline) -> Partition:
    """Cut a timeline into its frame blocks and labels."""
    owned, exclusive = sums(timeline.pieces(), timeline.tiles, timeline.labels, len(timeline.work) or len(timeline.trace.ops))
    return Partition(
        device=timeline.device,
        tiles=tiles_of(timeline.blocks, timeline.tiles, owned),
        calls=tuple(timeline.calls(exclusive)),
        overlap=tuple(timeline.overlap()),
    )


def block_slices(timeline: RunTimeline, index: int | None = None) -> Iterator[Slice]:
    """Yield the slices of a timeline that tile its frame blocks in order, or one of them."""
    held, trace, window = timeline.blocks, timeline.trace, None
    if index is not None:
        if index not in held:
            raise DataError(f"{trace.path}: no frame block {index}; the trace holds {', '.join(map(str, held))}")
        window = held.index(index)
    events: HostEvents | DeviceEvents = trace.ops
    position: Sequence[int] = range(len(events))
    if len(timeline.work):
        events, position = trace.device_events, timeline.work.position.tolist()
    for start, end, label, row in _rows(timeline.pieces(), timeline.labels, window):
        at = None if row == NONE else position[row]
        yield Slice(start, end, label, None if at is None else events.names[events.name[at]], at)


# Labels for kernels of CUDA graphs: those of the same kernels without graphs, matched by order.
#
# A replay is one launch call: no region lies inside it. But each stream of a graph runs its nodes in the order of the capture,
# and that is the order in which a pass without the graph launches its kernels. So the n-th kernel of a replay on one stream is
# the n-th kernel of such a pass, as long as the names agree, and belongs to the piece that launched that one. In a graph with
# branches, each stream is matched with the kernels of the pass that longer streams have left.

LEAST: Final = Fraction(9, 10)
"""Least share of a replay's kernels, each stream's in order, that must match a pass without the graph to label any."""
UNMATCHED: Final = "in no piece of the pass without graphs"
ATTENTION_KERNELS: Final = ATTENTION_OPERATOR | {CROSS_ATTENTION_KERNEL}
"""Innermost regions of kernels that torch.compile does not fuse with others."""
_FEWEST: Final = 2
"""Fewest events of one launch call that make it a graph launch."""
_COPIER: Final = re.compile(r"memcpy\d+(?:_\w+)?")
_COPY: Final = "Memcpy DtoD (Device -> Device)"
"""A copy within a device; CUDA makes it a kernel inside a graph, such as `memcpy32_post` and `memcpy128`."""


_LAYER: Final = re.compile(r"layer (\d+)")


def layer_of(name: str) -> int | None:
    """Return the number of a layer in a path, from 0; None if the name is a region's."""
    found = _LAYER.fullmatch(name)
    return None if found is None else int(found[1])


def without_layers(path: Path) -> Path:
    """Return the path without numbers of layers."""
    return tuple(name for name in path if layer_of(name) is None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Replays:
    """Result of labelling the kernels of graph launches.

    Args:
        launches: graph launches in the frame blocks.
        attributed: of these, launches whose kernels were matched.
        kernels: device events of all launches.
        matched: of these, events that have a piece now.
        reason: why the others have none; empty if all have.
        entered: pieces that the attributed launches went through, by path.
        unlabelled: stages with launches whose kernels have no piece.
    """

    launches: int
    attributed: int
    kernels: int
    matched: int
    reason: str
    entered: Counter[Path]
    unlabelled: frozenset[str] = frozenset()


class EagerPass(msgspec.Struct, frozen=True):
    """One pass launched kernel by kernel: the key to the kernels of a graph of that pass.

    Args:
        stage: outermost region of the frame block.
        names: its kernels in order of launch.
        paths: the regions that each was launched in, with numbers of layers.
        entered: the regions it entered, and how often.
        launches: of attention's kernels the full name with grid and block, which tell calls of other sizes apart; else empty.
    """

    stage: str
    names: tuple[str, ...]
    paths: tuple[Path, ...]
    entered: tuple[tuple[Path, int], ...]
    launches: tuple[str, ...] = ()


Passes: TypeAlias = tuple[EagerPass, ...]
_decoder: Final = msgspec.json.Decoder(tuple[EagerPass, ...])


def encode_passes(passes: Passes) -> bytes:
    """Write passes as gzipped JSON; equal bytes for equal passes."""
    return gzip.compress(msgspec.json.encode(passes), 6, mtime=0)


def read_passes(path: FilePath) -> Passes:
    """Read what `encode_passes` wrote."""
    try:
        return _decoder.decode(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path} holds no passes launched kernel by kernel: {error}; measure the run again") from error


_Streams = tuple[tuple[str, ...], ...]
"""Names of a replay's kernels in order, stream by stream: the longest stream first, then by the first kernel."""


_Match: TypeAlias = tuple[Fraction, Sequence[int | None], EagerPass]
"""Share of a replay's kernels that stand in a pass, and of each, stream by stream, its number there (None if it is not)."""


def relabelled(timeline: RunTimeline, passes: Passes, *, layers: bool) -> tuple[RunTimeline, Replays | None]:
    """Give the kernels of graph launches the paths that they have without graphs.

    Args:
        passes: the same passes without graphs; without any, nothing can be attributed.
        layers: the new paths name the layer too.
    """
    launches = _graph_launches(timeline)
    if not launches:
        return timeline, None
    of_stage: dict[Path, list[EagerPass]] = gathered(((one.stage,), one) for one in passes)
    path, entered = timeline.path.copy(), Counter[Path]()
    numbers = {text: number for number, text in enumerate(timeline.paths)}
    attributed, matched, best = 0, 0, Fraction(0)
    unlabelled: set[str] = set()
    known: dict[tuple[Path, _Streams], _Match] = {}
    for launch in launches:
        stage = timeline.paths[timeline.path[launch[0]]][:1]
        if stage not in of_stage:
            unlabelled.update(stage)
            continue
        rows, streams = _streams(timeline, launch)
        if (stage, streams) not in known:
            known[stage, streams] = max((_matched(streams, one) for one in of_stage[stage]), key=itemgetter(0))
        found = known[stage, streams]
        if found[0] < 1 and len(streams) > 1:
            following = iter(timeline.work.start[rows].tolist())
            starts = [[next(following) for _ in names] for names in streams]
            walks = (_walked(streams, starts, one) for one in of_stage[stage])
            found = max((found, *walks), key=itemgetter(0))
        share, places, one = found
        best = max(best, share)
        if share < LEAST:
            unlabelled.update(stage)
            continue
        attributed += 1
        for row, place in zip(rows, places, strict=True):
            text = (*stage, UNMATCHED) if place is None else one.paths[place]
            path[row] = numbers.setdefault(text if layers else without_layers(text), len(numbers))
            matched += place is not None
        # regions that hold kernels of the replay; others lie outside of the graph and are marked beside it
        held = {one.paths[place] for place in places if place is not None}
        around = {inner[:size] for inner in held for size in range(1, len(inner) + 1)}
        entered += Counter({inner: number for inner, number in one.entered if inner in around})
    replays = Replays(
        launches=len(launches),
        attributed=attributed,
        kernels=sum(map(len, launches)),
        matched=matched,
        reason=_reason(not passes, len(launches) - attributed, best),
        entered=entered,
        unlabelled=frozenset(unlabelled),
    )
    return replace(timeline, paths=tuple(numbers), path=path), replays


def _reason(no_passes: bool, left: int, best: Fraction) -> str:
    if not left:
        return ""
    if no_passes:
        return "the run holds no passes of the same configuration launched kernel by kernel"
    return (
        f"at most {float(100 * best):.0f} % of their kernels stand in a pass without graphs, each stream's in order; "
        f"{float(100 * LEAST):.0f} % are asked for"
    )


def _graph_launches(timeline: RunTimeline) -> list[list[int]]:
    """Return the device events of each graph launch inside the frame blocks, in order of start."""
    work = timeline.work
    unstaged = np.array([text in ((), OUTSIDE, NOT_LINKED) for text in timeline.paths])
    inside = (work.start >= timeline.tiles.start[0]) & (work.start < timeline.tiles.end[-1])
    rows = np.flatnonzero((work.host >= 0) & inside & ~unstaged[timeline.path])
    ordinal, of_call = work.ordinal, gathered(zip(work.host[rows].tolist(), rows.tolist(), strict=True))
    return [sorted(found, key=lambda row: int(ordinal[row])) for found in of_call.values() if len(found) >= _FEWEST]


def names_of(timeline: RunTimeline, rows: Sequence[int]) -> tuple[str, ...]:
    """Return the normalised kernel names of some events; a copy has the same name in a graph and without."""
    names, own = timeline.trace.device_events.names, timeline.work.name
    groups = (kernel_name(names[own[row]]) for row in rows)
    return tuple(_COPY if _COPIER.fullmatch(group) else group for group in groups)


def launches_of(timeline: RunTimeline, rows: Sequence[int]) -> tuple[str, ...]:
    """Return the full kernel names of some events, each with grid and block."""
    events, work = timeline.trace.device_events, timeline.work
    return tuple(f"{full_name(events.names[work.name[row]])} {events.shapes[work.shape[row]]}" for row in rows)


def passes_of(trace: Trace) -> Passes:
    """Return all distinct passes of a run without graphs."""
    timeline = timeline_of(trace, layers=True)
    if not len(timeline.work):
        return ()
    stage = list[int]()  # the stage that each region is or lies in
    entered: defaultdict[int, Counter[Path]] = defaultdict(Counter)
    for number, parent in enumerate(timeline.nesting.parent.tolist()):
        path = timeline.paths[timeline.of[number]]
        above = NOWHERE if parent == NOWHERE else stage[parent]
        stage.append(number if len(path) == 1 and path != OUTSIDE else above)
        if len(path) > 1 and path[-1] != DIT_FORWARD:
            entered[stage[number]][path] += 1
    hosts, launched = trace.device_events.hosts, defaultdict[int, list[tuple[int, int]]](list)
    owner = timeline.nesting.of_calls(hosts, timeline.work.host)
    for row, (number, host) in enumerate(
        zip(np.append(stage, NOWHERE)[owner].tolist(), timeline.work.host.tolist(), strict=True)
    ):
        if number != NOWHERE:
            launched[number].append((hosts.start_ns[host], row))
    threads = list(dict.fromkeys(region.thread for region in trace.regions))
    passes: dict[tuple[str, tuple[str, ...]], EagerPass] = {}
    for number in sorted(launched, key=lambda each: (threads.index(trace.regions[each].thread), each)):
        (name,) = timeline.paths[timeline.of[number]]
        order = [row for _, row in sorted(launched[number])]
        names = names_of(timeline, order)
        if (name, names) not in passes:
            paths = tuple(timeline.paths[timeline.path[row]] for row in order)
            of_attention = [
                not ATTENTION_KERNELS.isdisjoint(path[-1:]) or _is_attention(kernel)
                for kernel, path in zip(names, paths, strict=True)
            ]
            launches = launches_of(timeline, order)
            passes[name, names] = EagerPass(
                stage=name,
                names=names,
                paths=paths,
                entered=tuple(sorted(entered[number].items())),
                launches=tuple(text if own else "" for text, own in zip(launches, of_attention, strict=True)),
            )
    return tuple(passes.values())


def _streams(timeline: RunTimeline, launch: Sequence[int]) -> tuple[list[int], _Streams]:
    """Return the events of a replay, and their names, stream by stream."""
    stream = timeline.work.stream
    streams = sorted(gathered((int(stream[row]), row) for row in launch).values(), key=len, reverse=True)
    return [row for rows in streams for row in rows], tuple(names_of(timeline, rows) for rows in streams)


def _walked(streams: _Streams, starts: Sequence[Sequence[int]], one: EagerPass) -> _Match:
    """Walk a pass in order: each kernel matches the next one of a stream of equal name; of several streams the earliest.

    A driver may put the branches of one graph on dozens of streams, of which each alone fits the pass in many places.
    """
    places: list[list[int | None]] = [[None] * len(names) for names in streams]
    at = [0] * len(streams)
    waiting: defaultdict[str, set[int]] = defaultdict(set)
    for stream, names in enumerate(streams):
        waiting[names[0]].add(stream)
    for number, name in enumerate(one.names):
        if not waiting[name]:
            continue
        stream = min(waiting[name], key=lambda each: (starts[each][at[each]], each))
        waiting[name].remove(stream)
        places[stream][at[stream]] = number
        at[stream] += 1
        if at[stream] < len(streams[stream]):
            waiting[streams[stream][at[stream]]].add(stream)
    flat = [place for each in places for place in each]
    return Fraction(sum(place is not None for place in flat), len(flat)), flat, one


def _matched(streams: _Streams, one: EagerPass) -> _Match:
    """Match the kernels of each stream of a replay with the unmatched ones of a pass, both in their order."""
    places: list[int | None] = []
    left = list(range(len(one.names)))
    for names in streams:
        found: list[int | None] = [None] * len(names)
        rest = [one.names[place] for place in left]
        for match in SequenceMatcher(None, names, rest, autojunk=False).get_matching_blocks():
            found[match.a : match.a + match.size] = left[match.b : match.b + match.size]
        places += found
        taken = set(found)
        left = [place for place in left if place not in taken]
    return Fraction(sum(place is not None for place in places), len(places)), places, one


# Labels of attention kernels inside passes compiled by torch.compile, by those of the same pass uncompiled.
#
# No region lies inside what a compiler generated. But attention operators are not fused with anything: a compiled pass launches
# the same attention kernels as the pass uncompiled. It may reorder those that do not depend on each other, such as attention of
# video and audio. So the n-th launch of a kernel over one grid is the n-th of that launch uncompiled, if the pass holds all of
# them as often. What an operator does besides, such as copies to another layout, may be fused with its neighbours; where it is
# launched as often as uncompiled it is labelled in the same way. An operator that marks its regions while it runs says itself
# what its kernels are. All other kernels are labelled by the kind of work in their names.


W = TypeVar("W", int, Path)
_Kernel: TypeAlias = tuple[W, str, str]
"""A kernel of a pass: its row in the timeline, or in the uncompiled pass the regions it was launched in; its normalised name; and
full name with grid and block, without what a compiler may change."""


def named(timeline: RunTimeline, passes: Passes) -> RunTimeline:
    """Label the kernels of attention operators in compiled passes with the regions of the uncompiled pass.

    A pass that does not launch exactly the attention kernels of an uncompiled one is labelled by kernel names alone.

    Args:
        passes: the same passes uncompiled, launched kernel by kernel.
    """
    stood = gathered((name, path[-1]) for one in passes for name, path in zip(one.names, one.paths, strict=True))
    told = frozenset(name for name, regions in stood.items() if ATTENTION_KERNELS.issuperset(regions))  # of attention alone
    path, numbers = timeline.path.copy(), {text: number for number, text in enumerate(timeline.paths)}
    whole = {path[-1]: without_layers(path) for one in passes for path in one.paths if path[-1] in ATTENTION_OPERATOR}
    texts, names_at = timeline.trace.device_events.names, timeline.work.name
    for kernels in _by_pass(timeline):
        innermost = {row: timeline.paths[timeline.path[row]][-1] for row, *_ in kernels}
        marked = {row: region for row, region in innermost.items() if region in ATTENTION_OPERATOR}
        known = {(name, marked[row]) for row, name, _ in kernels if row in marked}
        found = {row: whole[region] for row, region in marked.items() if region in whole}
        own = [each for each in kernels if each[0] not in marked and (each[1] in told or _is_attention(each[1]))]
        for one in passes:
            if matched := _by_launch(own, [each for each in _key(one, told) if (each[1], each[0][-1]) not in known]):
                found |= matched
                break
        for row, *_ in kernels:
            kind, around = kernel_part(texts[names_at[row]]).value, timeline.paths[path[row]]
            text = found.get(row, around)
            at = text.index(DIT_FORWARD) + 1  # so that a side whose passes are told apart by name alone can be met there
            path[row] = numbers.setdefault((*text[:at], kind, *text[at:]), len(numbers))
    return replace(timeline, paths=tuple(numbers), path=path)


def _key(one: EagerPass, names: frozenset[str]) -> list[_Kernel[Path]]:
    """Return the attention kernels of an uncompiled pass in order of launch."""
    kernels = zip(one.paths, one.names, one.launches or ("",) * len(one.names), strict=True)
    return [
        (without_layers(path), name, comparable(launch)) for path, name, launch in kernels if name in names or _is_attention(name)
    ]


def _is_attention(name: str) -> bool:
    return kernel_part(name) is Part.OTHER_ATTENTION


def _by_launch(own: Sequence[_Kernel[int]], key: Sequence[_Kernel[Path]]) -> dict[int, Path]:
    """Match kernels launch by launch; empty unless each launch of a kernel that computes attention is there as often. If the
    uncompiled pass has no such kernel, each launch of any kernel must be there as often."""
    if not all(launch for *_, launch in key):
        return {}
    rows, paths = gathered((launch, row) for row, _, launch in own), gathered((launch, path) for path, _, launch in key)
    needed = {launch for _, name, launch in (*own, *key) if _is_attention(name)} or {*rows, *paths}
    if any(len(rows.get(text, ())) != len(paths.get(text, ())) for text in needed):
        return {}
    alike = {text: found for text, found in rows.items() if len(found) == len(paths.get(text, ()))}
    return {row: path for text, found in alike.items() for row, path in zip(found, paths[text], strict=True)}


def _by_pass(timeline: RunTimeline) -> list[list[_Kernel[int]]]:
    """Return the kernels of each pass in the order in which they ran, frame block by frame block."""
    starts = timeline.tiles.start.tolist()
    whole = np.array([DIT_FORWARD in text for text in timeline.paths])
    rows = np.flatnonzero(whole[timeline.path])
    rows = rows[np.argsort(timeline.work.start[rows], kind="stable")].tolist()
    found: list[list[_Kernel[int]]] = [[] for _ in starts]
    for row, name, launch in zip(rows, names_of(timeline, rows), launches_of(timeline, rows), strict=True):
        at = bisect_right(starts, int(timeline.work.start[row])) - 1
        if at >= 0:
            found[at].append((row, name, comparable(launch)))
    return found
