"""Labels for kernels of CUDA graphs: those of the same kernels without graphs, matched by order.

A replay is one launch call: no region lies inside it. But each stream of a graph runs its nodes in the order of the capture, and
that is the order in which a pass without the graph launches its kernels. So the n-th kernel of a replay on one stream is the n-th
kernel of such a pass, as long as the names agree, and belongs to the piece that launched that one. In a graph with
branches, each stream is matched with the kernels of the pass that longer streams have left.
"""

from __future__ import annotations

import gzip
import re
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from fractions import Fraction
from pathlib import Path as FilePath
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from strobe.core.errors import DataError
from strobe.core.spans import ATTENTION_OPERATOR, CROSS_ATTENTION_KERNEL, DIT_FORWARD
from strobe.perf.analysis.device.device_work import EventView
from strobe.perf.analysis.device.kernel_kinds import KernelKind, kernel_kind
from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.analysis.runs.timeline import NOT_LINKED, OUTSIDE, DeviceTimeline, Path, timeline_of
from strobe.perf.trace.events import Region, Trace

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


class Pass(msgspec.Struct, frozen=True):
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


Passes: TypeAlias = tuple[Pass, ...]
_decoder: Final = msgspec.json.Decoder(tuple[Pass, ...])


def encode_passes(passes: Passes) -> bytes:
    """Write passes as gzipped JSON; equal bytes for equal passes."""
    return gzip.compress(msgspec.json.encode(passes), 6, mtime=0)


def read_passes(path: FilePath) -> Passes:
    """Read what `encode_passes` wrote.

    Raises:
        DataError: the file cannot be read, or is something else.
    """
    try:
        return _decoder.decode(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path} holds no passes launched kernel by kernel: {error}; measure the run again") from error


_Streams = tuple[tuple[str, ...], ...]
"""Names of a replay's kernels in order, stream by stream: the longest stream first, then by the first kernel."""


class _Match(NamedTuple):
    """For each kernel of a replay, stream by stream, its number in a pass (None if it is not there), and the matched share."""

    of: Pass
    places: Sequence[int | None]
    share: Fraction

    @property
    def entered(self) -> Counter[Path]:
        """Regions of the pass that hold kernels of the replay; others lie outside of the graph and are marked beside it."""
        matched = {self.of.paths[place] for place in self.places if place is not None}
        around = {path[:size] for path in matched for size in range(1, len(path) + 1)}
        return Counter({path: number for path, number in self.of.entered if path in around})


def relabelled(timeline: DeviceTimeline, passes: Passes, *, layers: bool) -> tuple[DeviceTimeline, Replays | None]:
    """Give the kernels of graph launches the paths that they have without graphs.

    Args:
        timeline: timeline of the run with graphs.
        passes: the same passes without graphs; without any, nothing can be attributed.
        layers: the new paths name the layer too.
    """
    launches = _graph_launches(timeline)
    if not launches:
        return timeline, None
    of_stage: defaultdict[Path, list[Pass]] = defaultdict(list)
    for one in passes:
        of_stage[one.stage,].append(one)
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
            known[stage, streams] = max((_matched(streams, one) for one in of_stage[stage]), key=lambda match: match.share)
        found = known[stage, streams]
        if found.share < 1 and len(streams) > 1:
            starts = _starts(timeline.work, rows, streams)
            walks = (_walked(streams, starts, one) for one in of_stage[stage])
            found = max((found, *walks), key=lambda match: match.share)
        best = max(best, found.share)
        if found.share < LEAST:
            unlabelled.update(stage)
            continue
        attributed += 1
        for row, place in zip(rows, found.places, strict=True):
            text = (*stage, UNMATCHED) if place is None else found.of.paths[place]
            path[row] = numbers.setdefault(text if layers else without_layers(text), len(numbers))
            matched += place is not None
        entered += found.entered
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


def _graph_launches(timeline: DeviceTimeline) -> list[list[int]]:
    """Return the device events of each graph launch inside the frame blocks, in order of start."""
    work = timeline.work
    unstaged = np.array([text in ((), OUTSIDE, NOT_LINKED) for text in timeline.paths])
    inside = (work.start >= timeline.windows[0].start_ns) & (work.start < timeline.windows[-1].end_ns)
    rows = np.flatnonzero((work.host >= 0) & inside & ~unstaged[timeline.path])
    ordinal = work.ordinal
    of_call: defaultdict[int, list[int]] = defaultdict(list)
    for row, host in zip(rows.tolist(), work.host[rows].tolist(), strict=True):
        of_call[host].append(row)
    return [sorted(found, key=lambda row: int(ordinal[row])) for found in of_call.values() if len(found) >= _FEWEST]


def names_of(timeline: DeviceTimeline, rows: Sequence[int]) -> tuple[str, ...]:
    """Return the normalised kernel names of some events; a copy has the same name in a graph and without."""
    names, own = timeline.trace.device_events.names, timeline.work.name
    groups = (kernel_name(names[own[row]]).group for row in rows)
    return tuple(_COPY if _COPIER.fullmatch(group) else group for group in groups)


def launches_of(timeline: DeviceTimeline, rows: Sequence[int]) -> tuple[str, ...]:
    """Return the full kernel names of some events, each with grid and block."""
    events, work = timeline.trace.device_events, timeline.work
    return tuple(f"{kernel_name(events.names[work.name[row]]).full} {events.shapes[work.shape[row]]}" for row in rows)


def passes_of(trace: Trace) -> Passes:
    """Return all distinct passes of a run without graphs."""
    timeline = timeline_of(trace, None, layers=True)
    if not isinstance(timeline, DeviceTimeline):
        return ()
    stages = [(region, path) for region, path in timeline.regions if len(path) == 1 and path != OUTSIDE]
    on_thread: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for number, (region, _) in enumerate(stages):
        on_thread[region.thread].append((region.start_ns, region.end_ns, number))
    for found in on_thread.values():
        found.sort()
    hosts, launched = trace.device_events.hosts, defaultdict[int, list[tuple[int, int]]](list)
    for row, host in enumerate(timeline.work.host.tolist()):
        if host < 0:
            continue
        call = hosts[host]
        around = on_thread[call.thread]
        at = bisect_right(around, call.start_ns, key=lambda each: each[0]) - 1
        if at >= 0 and call.start_ns < around[at][1]:
            launched[around[at][2]].append((call.start_ns, row))
    passes: dict[tuple[str, tuple[str, ...]], Pass] = {}
    for number, calls in sorted(launched.items()):
        region, path = stages[number]
        order = [row for _, row in sorted(calls)]
        names = names_of(timeline, order)
        if (path[0], names) not in passes:
            paths = tuple(timeline.paths[timeline.path[row]] for row in order)
            entered = tuple(sorted(_inside(timeline, region).items()))
            of_attention = [
                not ATTENTION_KERNELS.isdisjoint(path[-1:]) or kernel_kind(name) is KernelKind.ATTENTION
                for name, path in zip(names, paths, strict=True)
            ]
            launches = launches_of(timeline, order)
            passes[path[0], names] = Pass(
                stage=path[0],
                names=names,
                paths=paths,
                entered=entered,
                launches=tuple(text if own else "" for text, own in zip(launches, of_attention, strict=True)),
            )
    return tuple(passes.values())


def _inside(timeline: DeviceTimeline, around: Region) -> Counter[Path]:
    """Count the regions inside a stage, by path."""
    return Counter(
        path
        for region, path in timeline.regions
        if region.thread == around.thread
        and around.start_ns <= region.start_ns < around.end_ns
        and len(path) > 1
        and path[-1] != DIT_FORWARD
    )


def _streams(timeline: DeviceTimeline, launch: Sequence[int]) -> tuple[list[int], _Streams]:
    """Return the events of a replay, and their names, stream by stream."""
    stream = timeline.work.stream
    found: defaultdict[int, list[int]] = defaultdict(list)
    for row in launch:
        found[int(stream[row])].append(row)
    streams = sorted(found.values(), key=len, reverse=True)
    return [row for rows in streams for row in rows], tuple(names_of(timeline, rows) for rows in streams)


def _starts(work: EventView, rows: Sequence[int], streams: _Streams) -> list[list[int]]:
    """Return the start of each kernel of a replay, stream by stream."""
    found, at = [], 0
    for names in streams:
        found.append(work.start[rows[at : at + len(names)]].tolist())
        at += len(names)
    return found


def _walked(streams: _Streams, starts: Sequence[Sequence[int]], one: Pass) -> _Match:
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
    return _Match(of=one, places=flat, share=Fraction(sum(place is not None for place in flat), len(flat)))


def _matched(streams: _Streams, one: Pass) -> _Match:
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
    return _Match(of=one, places=places, share=Fraction(sum(place is not None for place in places), len(places)))
