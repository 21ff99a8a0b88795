"""Cuts the device time of any framework's trace into steps and labels, exactly.

Where work overlaps, the first of `PRIORITY` owns the time: focal kernel, other work of its section, other kernels, memsets,
communication, copies. Where nothing runs, the cause of the gap does. So the labels of a step add up to its length. The order is a
convention: a label is exposed only with respect to those before it, which is why the time that each label covers by itself is
there too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strobe.core.errors import ConfigError, DataError, nearest
from strobe.perf.analysis.device.device_work import BUSY, NONE, EventView, Slices, events_by_device
from strobe.perf.analysis.device.intervals import Intervals, Ints, complement, overlaps, union
from strobe.perf.analysis.device.kernel_kinds import KernelKind, kernel_kind
from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.analysis.device.owners import ACTIVITIES, LabelSlices, label_slices, sums, tile_of
from strobe.perf.analysis.runs.partition import Tile
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.analysis.structure.sections import SectionDefinition, Sections, matching, sections_of
from strobe.perf.analysis.structure.steps import LAST, NoSteps, Steps, find_steps
from strobe.perf.trace.events import DEVICE_KINDS, Trace

PRIORITY: Final = ("focal", "section", "compute", "memset", "comm", "memcpy")
FOCAL_NAME: Final = "focal kernel"
"""Common name of the focal kernels of both sides, so that they are compared with each other."""
_PLACES: Final = ("focal", "section", "step")
OTHER_KERNELS: Final = Label(("step",), "kernel")
"""The label of kernels that are neither focal nor of a section."""
LABELS: Final = tuple(Label((place,), activity) for place in _PLACES for activity in ACTIVITIES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelling:
    """Settings for cutting the time of a trace.

    Args:
        focal: regular expression searched in the names of device events; `None`: nothing is focal.
        section: the section around the focal events, if one is asked for.
        priority: who owns overlapped time: each word of `PRIORITY` once.
        steps: regular expression of the range or kernel that starts a step; found by itself if not given.
    """

    focal: str | None = None
    section: SectionDefinition | None = None
    priority: tuple[str, ...] = PRIORITY
    steps: str | None = None

    def __post_init__(self) -> None:
        if sorted(self.priority) != sorted(PRIORITY):
            hints = "".join(nearest(each, PRIORITY) for each in self.priority if each not in PRIORITY)
            raise ConfigError(f"priority {', '.join(self.priority)}{hints}: name each of {', '.join(PRIORITY)} once")


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedSide:
    """One device of one trace, cut into steps and labels.

    Args:
        label: name of the trace, e.g. `rank 0`.
        device: its number.
        steps: steps found; without any the only tile is the time from the first device event to the end of the last.
        tiles: the compared steps. Their labels add up to their lengths.
        calls: number of calls and exclusive time of every kernel by its group's name, over all tiles.
        inclusive: time that each label covers by itself, whatever else ran, over all tiles.
        kinds: time of `OTHER_KERNELS` by kind of kernel, over all tiles; the kinds add up to it.
        focal_names: normalised names of the focal kernels, those with most calls first.
        focal: duration of every focal call that starts in a tile, by tile.
        counted: duration of every focal call of the trace, but for those in steps that are left out with a cause.
        sections: those of the counted calls; `None` if none were asked for.
        pieces: pieces that tile the tiles; labels count into `LABELS`, events into the trace's device events.
    """

    label: str
    device: int
    steps: Steps | NoSteps
    tiles: tuple[Tile, ...]
    calls: Mapping[str, tuple[int, int]]
    inclusive: Mapping[Label, int]
    kinds: Mapping[KernelKind, int]
    focal_names: tuple[str, ...]
    focal: tuple[tuple[int, ...], ...]
    counted: tuple[int, ...]
    sections: Sections | None
    pieces: LabelSlices

    @property
    def total_ns(self) -> int:
        """Length of all tiles together, ns."""
        return sum(tile.end_ns - tile.start_ns for tile in self.tiles)

    @property
    def owned(self) -> Counter[Label]:
        """Time of each label over all tiles."""
        total: Counter[Label] = Counter()
        for tile in self.tiles:
            total.update(tile.owned)
        return total

    @property
    def num_focal(self) -> int:
        """Number of focal calls that start in the tiles."""
        return sum(map(len, self.focal))

    @property
    def mean_ns(self) -> Fraction:
        """Mean length of a tile."""
        return Fraction(self.total_ns, len(self.tiles))

    @property
    def own_ns(self) -> Fraction:
        """Mean tile without exposed communication, ns: that communication may wait for another rank."""
        communication = sum(ns for label, ns in self.owned.items() if label.activity == "comm")
        return Fraction(self.total_ns - communication, len(self.tiles))


def label_trace(trace: Trace, label: str, cut: Labelling) -> TracedSide:
    """Cut the time of the device that spends most time in focal kernels; in any kernels, if nothing is focal.

    Raises:
        DataError: the trace has no device events, or no focal one.
        ConfigError: a pattern is not a regular expression.
    """
    devices = list(events_by_device(trace))
    if not devices:
        raise DataError(f"{trace.path}: no device events; capture the trace with the accelerator's activities")
    focal = [np.zeros(len(work), np.bool_) if cut.focal is None else matching(trace, work, cut.focal) for _, work in devices]
    if cut.focal is not None and not any(mask.any() for mask in focal):
        raise DataError(f"{trace.path}: no device event matches {cut.focal!r}; {_longest_names(trace)}")
    spent = [
        int((work.end - work.start)[mask if cut.focal is not None else slice(None)].sum())
        for (_, work), mask in zip(devices, focal, strict=True)
    ]
    chosen = max(range(len(devices)), key=lambda at: (spent[at], -at))
    return _cut_device(trace, label, devices[chosen], focal[chosen], cut)


def _longest_names(trace: Trace) -> str:
    """List the longest-running kernels, for a message about a name that was not found."""
    total: Counter[str] = Counter()
    events = trace.device_events
    for name, start, end in zip(events.name, events.start_ns, events.end_ns, strict=True):
        total[kernel_name(events.names[name]).group] += end - start
    return f"its longest: {', '.join(repr(name) for name, _ in total.most_common(5))}"


def _cut_device(trace: Trace, label: str, own: tuple[int, EventView], focal: NDArray[np.bool_], cut: Labelling) -> TracedSide:
    device, work = own
    steps = next(found for found in find_steps(trace, cut.steps) if found.device == device)
    tiles = _tiles(work, steps)
    within = tile_of(work.start, tiles)
    counted = tile_of(work.start, _left_out(steps)) < 0
    sections = None if cut.section is None else sections_of(trace, device, work, cut.section, counted)
    member = np.zeros(len(work), np.bool_)
    areas = Intervals(tiles.start[:0], tiles.end[:0])
    if sections is not None and sections.found:
        positions = np.array([number for section in sections.found for number in section.members], np.int64)
        member[np.searchsorted(work.position, positions)] = True
        bounds = np.array(sorted(section[:2] for section in sections.found), np.int64)
        areas = union(bounds[:, 0], bounds[:, 1])
    pieces = _pieces(trace, work, _Marks(focal, member & ~focal), areas, tiles, cut.priority)
    owned, exclusive = sums(pieces, tiles, LABELS, len(work))
    inside = np.flatnonzero((within >= 0) | (exclusive > 0))
    calls: dict[str, tuple[int, int]] = {}
    for (name, is_focal), ns in zip(_names(trace, work, focal, inside), exclusive[inside].tolist(), strict=True):
        group = FOCAL_NAME if is_focal else kernel_name(name).group
        count, took = calls.get(group, (0, 0))
        calls[group] = count + 1, took + ns
    return TracedSide(
        label=label,
        device=device,
        steps=steps,
        tiles=tuple(
            Tile(index=number, start_ns=start, end_ns=end, owned=labels)
            for number, (start, end, labels) in enumerate(zip(tiles.start.tolist(), tiles.end.tolist(), owned, strict=True))
        ),
        calls=calls,
        inclusive=_inclusive(work, _Marks(focal, member & ~focal), areas, tiles),
        kinds=_kinds(trace, work, pieces),
        focal_names=_focal_names(trace, work, focal),
        focal=tuple(tuple((work.end - work.start)[focal & (within == number)].tolist()) for number in range(len(tiles.start))),
        counted=tuple((work.end - work.start)[focal & counted].tolist()),
        sections=sections,
        pieces=pieces._replace(event=np.where(pieces.event == NONE, NONE, work.position[pieces.event])),
    )


def _focal_names(trace: Trace, work: EventView, focal: NDArray[np.bool_]) -> tuple[str, ...]:
    calls: Counter[str] = Counter()
    ids, counts = np.unique(work.name[focal], return_counts=True)
    for name, count in zip(ids.tolist(), counts.tolist(), strict=True):
        calls[kernel_name(trace.device_events.names[name]).group] += count
    return tuple(name for name, _ in calls.most_common())


def _tiles(work: EventView, steps: Steps | NoSteps) -> Intervals:
    if isinstance(steps, NoSteps):
        return Intervals(work.start[:1], np.array([work.end.max()], np.int64))
    kept = np.array([(step.start_ns, step.end_ns) for step in steps.kept() or steps.steps], np.int64)
    return Intervals(kept[:, 0], kept[:, 1])


def _left_out(steps: Steps | NoSteps) -> Intervals:
    """Return the steps that are left out with a cause. The last step is kept: only its end is unknown."""
    excluded = () if isinstance(steps, NoSteps) or not steps.kept() else steps.steady.excluded
    found = [steps.steps[each.index] for each in excluded if each.cause != LAST and isinstance(steps, Steps)]
    bounds = np.array([(step.start_ns, step.end_ns) for step in found], np.int64).reshape(-1, 2)
    return Intervals(bounds[:, 0], bounds[:, 1])


def _names(trace: Trace, work: EventView, focal: NDArray[np.bool_], chosen: Ints) -> list[tuple[str, bool]]:
    names = trace.device_events.names
    return [(names[name], own) for name, own in zip(work.name[chosen].tolist(), focal[chosen].tolist(), strict=True)]


class _Marks(NamedTuple):
    """Masks of a device's focal events, and of its other events in sections."""

    focal: NDArray[np.bool_]
    section: NDArray[np.bool_]


def _pieces(
    trace: Trace, work: EventView, marks: _Marks, areas: Intervals, tiles: Intervals, priority: Sequence[str]
) -> LabelSlices:
    """Cut the tiles into pieces with one label each; `event` counts into `work`."""
    of_kind = np.array([priority.index("compute" if kind == "kernel" else kind) for kind in DEVICE_KINDS])
    rank = np.where(marks.section, priority.index("section"), of_kind[work.kind])
    rank = np.where(marks.focal, priority.index("focal"), rank)
    begin, stop = int(work.start[0]), int(work.end.max())
    slices, inside = _split(work.tile(trace, rank, begin, stop), areas, complement(areas, begin, stop))
    busy = slices.cause == BUSY
    owner = np.where(busy, slices.event, NONE)
    in_section = inside & (~busy | marks.section[owner])
    place = np.where(busy & marks.focal[owner], 0, np.where(in_section, 1, 2))
    return label_slices(work, slices, place, tiles)


def _split(slices: Slices, areas: Intervals, outside: Intervals) -> tuple[Slices, NDArray[np.bool_]]:
    """Cut slices at the edges of areas; return the pieces and a mask of those inside an area."""
    found = [overlaps(Intervals(slices.start, slices.end), part) for part in (areas, outside)]
    which, start, end = (
        np.concatenate(columns) for columns in zip(*((part.a, part.start, part.end) for part in found), strict=True)
    )
    order = np.argsort(start, kind="stable")
    inside = np.repeat(np.array([True, False]), [len(part.a) for part in found])[order]
    which = which[order]
    return Slices(start[order], end[order], slices.event[which], slices.cause[which]), inside


def _kinds(trace: Trace, work: EventView, pieces: LabelSlices) -> dict[KernelKind, int]:
    """Return the time of the other kernels' line, by kind of kernel."""
    own = pieces.label == LABELS.index(OTHER_KERNELS)
    found: Counter[KernelKind] = Counter()
    ids, place = np.unique(work.name[pieces.event[own]], return_inverse=True)
    took = np.zeros(len(ids), np.int64)
    np.add.at(took, place, (pieces.end - pieces.start)[own])
    for name, ns in zip(ids.tolist(), took.tolist(), strict=True):
        found[kernel_kind(trace.device_events.names[name])] += ns
    return dict(found)


def _inclusive(work: EventView, marks: _Marks, areas: Intervals, tiles: Intervals) -> dict[Label, int]:
    """Return the time in the tiles in which an event of each busy label ran, whatever else ran."""
    outside = complement(areas, int(work.start[0]), int(work.end.max()))
    found: dict[Label, int] = {}
    for number, kind in enumerate(DEVICE_KINDS):
        own = work.kind == number
        focal, member, rest = (
            union(work.start[chosen], work.end[chosen])
            for chosen in (own & marks.focal, own & marks.section, own & ~marks.focal & ~marks.section)
        )
        late = _common(member, outside)
        start, end = np.concatenate((rest.start, late.start)), np.concatenate((rest.end, late.end))
        order = np.argsort(start, kind="stable")
        covered = (focal, _common(member, areas), union(start[order], end[order]))
        for place, intervals in zip(_PLACES, covered, strict=True):
            found[Label((place,), kind)] = _common(intervals, tiles).length_ns
    return {label: ns for label, ns in found.items() if ns}


def _common(a: Intervals, b: Intervals) -> Intervals:
    shared = overlaps(a, b)
    return Intervals(shared.start, shared.end)
