"""Ledger of two traces of any framework: labels, paths and calls, to the nanosecond."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Annotated as A
from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from strobe.core.errors import DataError
from strobe.perf.analysis.device.activity import (
    ACTIVITIES,
    BUSY,
    NONE,
    EventView,
    LabelSlices,
    Slices,
    events_by_device,
    label_slices,
    sums,
    tile_of,
)
from strobe.perf.analysis.device.intervals import Intervals, complement, intervals_of, overlaps, totals, union
from strobe.perf.analysis.device.kernels import kernel_name, kernel_part
from strobe.perf.analysis.ledger.account import (
    DILATION,
    KERNEL_LINE,
    LEVEL_WORDS,
    OUTSIDE_WINDOW,
    Anchor,
    BothSides,
    Ledger,
    OwnedTime,
    Spread,
    UnitName,
    both_totals,
    close_ledger,
    step_spread,
)
from strobe.perf.analysis.parts import Part
from strobe.perf.analysis.runs.timeline import Label, Tile, summed, tiles_of
from strobe.perf.analysis.structure.ranges import NOWHERE, base_of, nest, together, without
from strobe.perf.analysis.structure.sections import SectionDefinition, Sections, matching, sections_of
from strobe.perf.analysis.structure.steps import LAST, Steps, find_steps
from strobe.perf.table.model import Code, LevelName
from strobe.perf.table.rows import col, gathered
from strobe.perf.trace.events import DEVICE_KINDS, HostEvents, Trace

# Cuts the device time of any framework's trace into steps and labels, exactly.
#
# Where work overlaps, the first of `PRIORITY` owns the time: focal kernel, other work of its section, other kernels, memsets,
# communication, copies. Where nothing runs, the cause of the gap does. So the labels of a step add up to its length. The order is
# a convention: a label is exposed only with respect to those before it, which is why the time that each label covers by itself is
# there too.

PRIORITY: Final = ("focal", "section", "compute", "memset", "comm", "memcpy")
FOCAL_NAME: Final = "focal kernel"
"""Common name of the focal kernels of both sides, so that they are compared with each other."""
K = TypeVar("K")
_PLACES: Final = ("focal", "section", "step")
OTHER_KERNELS: Final = Label(("step",), "kernel")
"""The label of kernels that are neither focal nor of a section."""
LABELS: Final = tuple(Label((place,), activity) for place in _PLACES for activity in ACTIVITIES)


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedSide:
    """One device of one trace, cut into steps and labels.

    Args:
        label: name of the trace, e.g. `rank 0`.
        steps: steps found; without any the only tile is the time from the first device event to the end of the last.
        tiles: the compared steps. Their labels add up to their lengths.
        calls: number of calls and exclusive time of every kernel by its group's name, over all tiles.
        inclusive: time that each label covers by itself, whatever else ran, over all tiles.
        kinds: time of `OTHER_KERNELS` by part, over all tiles; the parts add up to it.
        focal_names: normalised names of the focal kernels, those with most calls first.
        focal: duration of every focal call that starts in a tile, by tile.
        counted: duration of every focal call of the trace, but for those in steps that are left out with a cause.
        sections: those of the counted calls; `None` if none were asked for.
        pieces: pieces that tile the tiles; labels count into `LABELS`, events into the trace's device events.
    """

    label: str
    device: int
    steps: Steps | str
    tiles: tuple[Tile, ...]
    calls: Mapping[str, tuple[int, int]]
    inclusive: Mapping[Label, int]
    kinds: Mapping[Part, int]
    focal_names: tuple[str, ...]
    focal: tuple[tuple[int, ...], ...]
    counted: tuple[int, ...]
    sections: Sections | None
    pieces: LabelSlices

    @property
    def total_ns(self) -> int:
        return sum(tile.end_ns - tile.start_ns for tile in self.tiles)

    @property
    def owned(self) -> Counter[Label]:
        return summed(tile.owned for tile in self.tiles)

    @property
    def num_focal(self) -> int:
        return sum(map(len, self.focal))

    @property
    def calls_per_step(self) -> Fraction:
        return Fraction(self.num_focal, len(self.tiles))

    @property
    def mean_ns(self) -> Fraction:
        return Fraction(self.total_ns, len(self.tiles))

    @property
    def own_ns(self) -> Fraction:
        """Mean tile without exposed communication, ns: that communication may wait for another rank."""
        communication = sum(ns for label, ns in self.owned.items() if label.activity == "comm")
        return Fraction(self.total_ns - communication, len(self.tiles))


def label_trace(
    trace: Trace, label: str, focal: str | None = None, section: SectionDefinition | None = None, *, steps: str | None = None
) -> TracedSide:
    """Cut the time of the device that spends most time in focal kernels; in any kernels, if nothing is focal.

    Args:
        focal: regular expression searched in the names of device events; `None`: nothing is focal.
        section: the section around the focal events, if one is asked for.
        steps: regular expression of the range or kernel that starts a step; found by itself if not given.

    Raises:
        DataError: the trace has no device events, or no focal one.
    """
    devices = list(events_by_device(trace))
    if not devices:
        raise DataError(f"{trace.path}: no device events; capture the trace with the accelerator's activities")
    masks = [np.zeros(len(work), np.bool_) if focal is None else matching(trace, work, focal) for _, work in devices]
    if focal is not None and not any(mask.any() for mask in masks):
        total: Counter[str] = Counter()
        events = trace.device_events
        for name, start, end in zip(events.name, events.start_ns, events.end_ns, strict=True):
            total[kernel_name(events.names[name])] += end - start
        longest = ", ".join(repr(name) for name, _ in total.most_common(5))
        raise DataError(f"{trace.path}: no device event matches {focal!r}; its longest: {longest}")
    spent = [
        int((work.end - work.start)[mask if focal is not None else slice(None)].sum())
        for (_, work), mask in zip(devices, masks, strict=True)
    ]
    chosen = max(range(len(devices)), key=lambda at: (spent[at], -at))
    device, work = devices[chosen]
    found = find_steps(trace, steps)[device]
    left_out = []  # but never the last step: only its end is unknown
    if isinstance(found, Steps) and found.kept():
        left_out = [found.steps[index] for index, cause in found.steady.excluded.items() if cause != LAST]
    counted = tile_of(work.start, intervals_of((step.start_ns, step.end_ns) for step in left_out)) < 0
    sections = None if section is None else sections_of(trace, device, work, section, counted)
    return _cut_device(trace, label, found, (work, masks[chosen], counted), sections)


def _cut_device(
    trace: Trace,
    label: str,
    steps: Steps | str,
    own: tuple[EventView, NDArray[np.bool_], NDArray[np.bool_]],
    sections: Sections | None,
) -> TracedSide:
    """Cut one device; `own` is its events, with masks of the focal and of the counted ones."""
    work, focal, counted = own
    tiles = _tiles(work, steps)
    within = tile_of(work.start, tiles)
    member = np.zeros(len(work), np.bool_)
    areas = Intervals(tiles.start[:0], tiles.end[:0])
    if sections is not None and sections.found:
        positions = np.array([number for section in sections.found for number in section.members], np.int64)
        member[np.searchsorted(work.position, positions)] = True
        areas = union(*intervals_of(sorted(section.span for section in sections.found)))
    marks = focal, member & ~focal
    pieces = _pieces(trace, work, marks, areas, tiles)
    owned, exclusive = sums(pieces, tiles, LABELS, len(work))
    inside = np.flatnonzero((within >= 0) | (exclusive > 0))
    calls: dict[str, tuple[int, int]] = {}
    columns = (work.name[inside], focal[inside], exclusive[inside])
    for name, is_focal, ns in zip(*(column.tolist() for column in columns), strict=True):
        group = FOCAL_NAME if is_focal else kernel_name(trace.device_events.names[name])
        count, took = calls.get(group, (0, 0))
        calls[group] = count + 1, took + ns
    focal_calls: Counter[str] = Counter()
    for name, count in zip(*(column.tolist() for column in np.unique(work.name[focal], return_counts=True)), strict=True):
        focal_calls[kernel_name(trace.device_events.names[name])] += count
    return TracedSide(
        label=label,
        device=int(work.device[0]),
        steps=steps,
        tiles=tiles_of(range(len(tiles.start)), tiles, owned),
        calls=calls,
        inclusive=_inclusive(work, marks, areas, tiles),
        kinds=_kinds(trace, work, pieces),
        focal_names=tuple(name for name, _ in focal_calls.most_common()),
        focal=tuple(tuple((work.end - work.start)[focal & (within == number)].tolist()) for number in range(len(tiles.start))),
        counted=tuple((work.end - work.start)[focal & counted].tolist()),
        sections=sections,
        pieces=pieces._replace(event=np.where(pieces.event == NONE, NONE, work.position[pieces.event])),
    )


def _tiles(work: EventView, steps: Steps | str) -> Intervals:
    if isinstance(steps, str):
        return Intervals(work.start[:1], np.array([work.end.max()], np.int64))
    return intervals_of((step.start_ns, step.end_ns) for step in steps.kept() or steps.steps)


_Masks: TypeAlias = tuple[NDArray[np.bool_], NDArray[np.bool_]]
"""Masks of a device's focal events, and of its other events in sections."""


def _pieces(trace: Trace, work: EventView, marks: _Masks, areas: Intervals, tiles: Intervals) -> LabelSlices:
    """Cut the tiles into pieces with one label each; `event` counts into `work`."""
    focal, section = marks
    of_kind = np.array([PRIORITY.index("compute" if kind == "kernel" else kind) for kind in DEVICE_KINDS])
    rank = np.where(section, PRIORITY.index("section"), of_kind[work.kind])
    rank = np.where(focal, PRIORITY.index("focal"), rank)
    begin, stop = int(work.start[0]), int(work.end.max())
    slices, inside = _split(work.tile(trace, rank, begin, stop), areas, complement(areas, begin, stop))
    busy = slices.cause == BUSY
    owner = np.where(busy, slices.event, NONE)
    in_section = inside & (~busy | section[owner])
    place = np.where(busy & focal[owner], 0, np.where(in_section, 1, 2))
    return label_slices(work, slices, place, tiles)


def _split(slices: Slices, areas: Intervals, outside: Intervals) -> tuple[Slices, NDArray[np.bool_]]:
    """Cut slices at the edges of areas; return the pieces and a mask of those inside an area."""
    found = [overlaps(Intervals(slices.start, slices.end), part) for part in (areas, outside)]
    which, start, end = (np.concatenate(columns) for columns in zip(*((of, *shared) for of, _, shared in found), strict=True))
    order = np.argsort(start, kind="stable")
    inside = np.repeat(np.array([True, False]), [len(of) for of, *_ in found])[order]
    which = which[order]
    return Slices(start[order], end[order], slices.event[which], slices.cause[which]), inside


def _kinds(trace: Trace, work: EventView, pieces: LabelSlices) -> dict[Part, int]:
    """Return the time of the other kernels' line, by part."""
    own = pieces.label == LABELS.index(OTHER_KERNELS)
    found: Counter[Part] = Counter()
    ids, place = np.unique(work.name[pieces.event[own]], return_inverse=True)
    took = totals((pieces.end - pieces.start)[own], place, len(ids))
    for name, ns in zip(ids.tolist(), took.tolist(), strict=True):
        found[kernel_part(trace.device_events.names[name])] += ns
    return dict(found)


def _inclusive(work: EventView, marks: _Masks, areas: Intervals, tiles: Intervals) -> dict[Label, int]:
    """Return the time in the tiles in which an event of each busy label ran, whatever else ran."""
    outside = complement(areas, int(work.start[0]), int(work.end.max()))
    found: dict[Label, int] = {}
    for number, kind in enumerate(DEVICE_KINDS):
        own = work.kind == number
        focal, member, rest = (
            union(work.start[chosen], work.end[chosen])
            for chosen in (own & marks[0], own & marks[1], own & ~marks[0] & ~marks[1])
        )
        _, _, late = overlaps(member, outside)
        start, end = np.concatenate((rest.start, late.start)), np.concatenate((rest.end, late.end))
        order = np.argsort(start, kind="stable")
        covered = (focal, overlaps(member, areas)[2], union(start[order], end[order]))
        for place, intervals in zip(_PLACES, covered, strict=True):
            found[Label((place,), kind)] = overlaps(intervals, tiles)[2].length_ns
    return {label: ns for label, ns in found.items() if ns}


# Account of two traces of any framework: labels that add up to the difference between them, to the nanosecond.
#
# The saving of a step is the sum of the savings of its labels. Where the logs time a stage and give its number of calls, the
# account extends to the stage: the time of the stage that the trace does not hold is a line of its own.

BRIDGE: Final = "outside profiled window, with profiler dilation"
OUTSIDE_STAGE: Final = "outside the stage"
_LEVELS: Final[dict[str, LevelName]] = {"focal": "kernel", "section": "section", "step": "step"}

Means: TypeAlias = Mapping[LevelName, Fraction]
"""Mean time of each measured level of one side, ns: one focal kernel, section, attention call, step, stage, or whole run."""
Calls: TypeAlias = tuple[int | None, int | None]
"""Focal calls in a stage of baseline and candidate; None where they are not known."""


_Unit: TypeAlias = tuple[UnitName, str, tuple[Fraction, Fraction]]
"""Name of the unit, why it is this one, and how many of it a tile of either side is."""


def foreign_ledger(
    baseline: TracedSide, candidate: TracedSide, timed: tuple[Means, Means] = ({}, {}), calls: Calls = (None, None)
) -> Ledger:
    """Account for the difference between two traces in the largest unit that they and their logs allow.

    A stage, if the logs time it and the calls per stage are known; else a step, if both traces have steps; else a focal call;
    else the traced windows as they are. What the trace does not hold of a timed stage is the line `outside profiled window`.

    Args:
        timed: times of each side from its log: of a step without a profiler, a stage without warm-up, a run with one stage in it.
    """
    sides = (baseline, candidate)
    both = {level: (timed[0][level], timed[1][level]) for level in timed[0].keys() & timed[1].keys()}
    unit, missing = _unit(sides, "stage" in both, calls)
    name, _, factors = unit
    anchors: list[Anchor] = []
    if name in ("stage", "step") and "step" in both:
        # as many steps as the unit holds tiles
        step = both["step"]
        many = [factor * len(side.tiles) for factor, side in zip(factors, sides, strict=True)]
        anchors.append(("step", DILATION, (step[0] * many[0], step[1] * many[1])))
    elif name in ("stage", "step"):
        missing["profiler dilation"] = "no log times a step without the profiler"
    if name == "stage":
        anchors.append(("stage", OUTSIDE_WINDOW if anchors else BRIDGE, both["stage"]))
        if "e2e" in both:
            anchors.append(("e2e", OUTSIDE_STAGE, both["e2e"]))
        else:
            missing["e2e"] = "no log times a whole run with one stage in it"
    return _closed(sides, unit, anchors, missing)


def _unit(sides: tuple[TracedSide, TracedSide], timed: bool, calls: Calls) -> tuple[_Unit, dict[str, str]]:
    """Return the unit, and the larger ones that could not be had; `timed`: the logs of both sides time a stage."""
    focal, tiles = [side.num_focal for side in sides], [len(side.tiles) for side in sides]
    reason = ""
    if not all(focal):
        reason = "no focal kernel ties the trace to the stage"
    elif None in calls:
        reason = "calls per stage not recorded: give --calls-per-stage"
    elif not timed:
        reason = "no log times a stage on both sides"
    if not reason:
        text = f"{calls[0]} and {calls[1]} focal calls a stage, {focal[0]} and {focal[1]} in the compared time of the traces"
        return ("stage", text, (Fraction(calls[0] or 0, focal[0]), Fraction(calls[1] or 0, focal[1]))), {}
    missing = {"stage": reason, "e2e": "the stage is missing"}
    if all(isinstance(side.steps, Steps) for side in sides) and same_steps(sides):
        return ("step", f"mean of {tiles[0]} and {tiles[1]} steps", (Fraction(1, tiles[0]), Fraction(1, tiles[1]))), missing
    without = [f"{side.label}: {side.steps}" for side in sides if isinstance(side.steps, str)]
    missing["step"] = "; ".join(without) or "the repetitions found on both sides hold different numbers of focal calls"
    if all(focal):
        text = f"mean of {focal[0]} and {focal[1]} focal calls, each with the time up to the next"
        return ("call", text, (Fraction(1, focal[0]), Fraction(1, focal[1]))), missing
    return ("window", "whole traced windows: nothing says that they hold the same work", (Fraction(1), Fraction(1))), missing


def same_steps(sides: tuple[TracedSide, TracedSide]) -> bool:
    """Return whether the steps of both sides correspond: they are named, or repetitions with equally many focal calls."""
    if all(isinstance(side.steps, Steps) and side.steps.source != "period" for side in sides):
        return True
    return sides[0].calls_per_step == sides[1].calls_per_step


def _closed(sides: tuple[TracedSide, TracedSide], unit: _Unit, anchors: Sequence[Anchor], missing: Mapping[str, str]) -> Ledger:
    name, why, factors = unit
    owned: list[OwnedTime] = []
    for side, factor in zip(sides, factors, strict=True):
        labels = {label: factor * ns for label, ns in side.owned.items()}
        owned.append((labels, {of: (factor * n, factor * ns) for of, (n, ns) in side.calls.items()}, ()))
    levels = ["kernel", "section", "step", *(level for level, *_ in anchors)]
    if all(side.sections is None for side in sides):
        levels.remove("section")
    found = close_ledger(
        (owned[0], owned[1]),
        anchors,
        tuple(dict.fromkeys(levels)),
        lambda label: _LEVELS[label.path[0]],
        math.lcm(*(each.denominator for each in (*factors, *(ns for *_, both in anchors for ns in both)))),
        _spread(sides, unit, timed=bool(anchors)),
        _per_unit(sides[0].inclusive, sides[1].inclusive, factors),
    )
    return replace(found, unit=name, why=why, missing=missing, kinds=_per_unit(sides[0].kinds, sides[1].kinds, factors))


def _per_unit(
    baseline: Mapping[K, int], candidate: Mapping[K, int], factors: tuple[Fraction, Fraction]
) -> dict[K, tuple[Fraction, Fraction]]:
    keys = baseline.keys() | candidate.keys()
    return {key: (factors[0] * baseline.get(key, 0), factors[1] * candidate.get(key, 0)) for key in keys}


def _spread(sides: tuple[TracedSide, TracedSide], unit: _Unit, *, timed: bool) -> Spread:
    """Compute intervals of the labels, and of the sum if no level is from a log: logs are not resampled with the steps."""
    if unit[0] == "window" or any(isinstance(side.steps, str) for side in sides):
        return Spread(none_because="no compared steps on both sides")
    sampled = []
    for side, factor in zip(sides, unit[2], strict=True):
        weights = [1 if unit[0] == "step" else len(calls) for calls in side.focal]
        sampled.append(([tile.owned for tile in side.tiles], weights, factor * sum(weights)))
    found = step_spread(sampled[0], sampled[1])
    return replace(found, total=None) if timed else found


# Device time by path: ranges, modules, operators and the kernel itself; and two such trees laid over each other.

Path = tuple[str, ...]
IDLE: Final = "idle"
"""The node above the causes of idle time."""


def _path(names: Path) -> Code:
    return Code(" / ".join(names))


@dataclass(frozen=True, kw_only=True, slots=True)
class Node(BothSides):
    """One node of the tree of modules, operators and kernels: time of one unit in the node and below it.

    Args:
        children: in order of the larger side.
    """

    path: A[tuple[str, ...], col("names from the outermost inwards; idle time by its cause lies below `idle`", "path", _path)]
    children: tuple[Node, ...]

    @property
    def leaf(self) -> A[bool, col("true: nothing lies below (kernel or idle cause); the leaves add up to the unit")]:
        return not self.children

    def below(self) -> Iterator[Node]:
        """Yield the nodes below it, each before the nodes below that."""
        for child in self.children:
            yield child
            yield from child.below()

    @property
    def own_ns(self) -> tuple[Fraction, Fraction]:
        """Time of both sides that lies in no child, ns."""
        below = both_totals(child.both for child in self.children)
        return self.baseline_ns - below[0], self.candidate_ns - below[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class PathTree(BothSides):
    """Tree of both sides by path of modules, operators and kernels, and idle time by cause."""

    root: Node
    unit: A[str, col("unit of the times: step, call or window")]
    operators: A[bool, col("true: the paths include operators; false: a file was too large to read them")]

    @property
    def nodes(self) -> A[tuple[Node, ...], col("all nodes below the root, each before the nodes below it")]:
        return tuple(self.root.below())


ChosenTrace: TypeAlias = tuple[Trace, TracedSide]
"""A trace and how it was cut."""


def path_tree(baseline: ChosenTrace | None, candidate: ChosenTrace | None, unit: str) -> PathTree | None:
    """Lay the paths of two traces over each other; `None` without either.

    Args:
        unit: unit of the account: stage or step, call, window. Paths include operators if both traces were read with details.
    """
    if baseline is None or candidate is None:
        return None
    of_unit = "step" if unit in ("stage", "step") else unit
    operators = all(trace.details is not None for trace, _ in (baseline, candidate))
    found = []
    for trace, side in (baseline, candidate):
        own = Counter(path_times(trace, side, operators=operators))
        for label, ns in side.owned.items():
            if not label.busy:
                own[IDLE, label.activity] += ns
        found.append((own, side.num_focal if of_unit == "call" else len(side.tiles)))
    (before, n), (after, m) = found
    times = {path: (Fraction(before.get(path, 0), n), Fraction(after.get(path, 0), m)) for path in before.keys() | after.keys()}
    root = node_of((), times)
    b, c = root.both
    return PathTree(unit=of_unit, operators=operators, root=root, baseline_ns=b, candidate_ns=c)


def path_times(trace: Trace, side: TracedSide, *, operators: bool = False) -> dict[Path, int]:
    """Time that the compared steps of a trace spend under each path, the kernel's group last; it adds up to the busy time.

    A path is what was open on the thread at the launch: modules, else ranges, without their numbers; a graph's kernels carry
    their own. What was launched in nothing has the kernel alone.

    Args:
        operators: the operators that were open are part of the path too.
    """
    owned = Counter[int]()
    busy = side.pieces.event >= 0
    length = (side.pieces.end - side.pieces.start)[busy]
    for event, ns in zip(side.pieces.event[busy].tolist(), length.tolist(), strict=True):
        owned[event] += ns
    position = np.array(sorted(owned), np.int64)
    scopes = trace.modules if len(trace.modules) else trace.ranges
    if operators:
        scopes = together(scopes, without(trace.ops, set(scopes.names)))
    nesting = nest(scopes)
    owners = nesting.of_calls(trace.device_events.hosts, np.asarray(trace.device_events.host)[position])
    above = dict(zip(position.tolist(), owners.tolist(), strict=True))
    spelled = _spelled(scopes, nesting.parent.tolist())
    events, total = trace.device_events, Counter[Path]()
    for event, ns in owned.items():
        scope = above.get(event, NOWHERE)
        own = trace.module_paths.get(event)
        path = tuple(own.split(".")) if own else spelled[scope] if scope != NOWHERE else ()
        total[(*path, kernel_name(events.names[events.name[event]]))] += ns
    return dict(total)


def _spelled(scopes: HostEvents, parents: list[int]) -> list[Path]:
    """Return the path of each scope: the names of the scopes around it and its own."""
    paths: list[Path] = []
    for parent, name in zip(parents, scopes.name, strict=True):
        own = base_of(scopes.names[name]).removeprefix("strobe::")
        paths.append((own,) if parent == NOWHERE else (*paths[parent], own))
    return paths


def node_of(path: Path, below: Mapping[Path, tuple[Fraction, Fraction]]) -> Node:
    """Return the node of a path from the times of both sides under the paths below it."""
    groups = gathered((inner[0], (inner[1:], times)) for inner, times in below.items() if inner)
    children = (node_of((*path, child), dict(inside)) for child, inside in groups.items())
    b, c = both_totals(below.values())
    return Node(
        path=path,
        baseline_ns=b,
        candidate_ns=c,
        children=tuple(sorted(children, key=lambda node: (-max(node.baseline_ns, node.candidate_ns), node.path))),
    )


# Account from one focal kernel to the stage: the time that each level adds, from separate measurements of each level.
#
# The kernel and its section come from traces, the attention call and the stage from logs of runs without a profiler. A level is
# the mean of its measurements; a line is what a level takes beyond the one below it. Without the number of calls in a stage the
# account ends at one call.

NEARLY: Final = Fraction(1, 10_000)
"""Largest relative difference at which two different quantities are taken for a copy or a coincidence."""
_OF_CALL: Final[tuple[LevelName, ...]] = ("kernel", "section", "attention", "stage")
_WORDS: Final = {**LEVEL_WORDS, "section": "section"}

ImpliedCalls: TypeAlias = tuple[Fraction, tuple[tuple[int, Fraction], ...]]
"""Calls in a stage that would explain its saving by a call's alone; whole numbers near it, with what they leave of the saving."""


def call_ledger(baseline: Means, candidate: Means, calls: Calls = (None, None), *, stands_in: bool = False) -> Ledger | None:
    """Account for the saving of one call, level by level; `None` if no level was measured on both sides.

    A level that one side lacks is left out, and its time is part of the next line.

    Args:
        stands_in: on one side nothing but the kernel was measured, and it stands for the section.
    """
    both = {level: (baseline.get(level), candidate.get(level)) for level in _OF_CALL}
    missing: dict[str, str] = {}
    for level, times in both.items():
        if lacking := [side for side, ns in zip(("baseline", "candidate"), times, strict=True) if ns is None]:
            missing[level] = f"not measured on the {' and the '.join(lacking)}"
    staged = "stage" not in missing and None not in calls
    if "stage" not in missing and not staged:
        missing["stage"] = "calls per stage not recorded: give --calls-per-stage"
    known = [level for level in _OF_CALL if level not in missing]
    if not known or known == ["stage"]:
        return None
    names = {known[0]: KERNEL_LINE if known[0] == "kernel" else _WORDS[known[0]]}
    for below, level in pairwise(known):
        part = "all of its attention calls" if level == "stage" else f"the {_WORDS[below]}"
        names[level] = f"{_WORDS[level]} beyond {part}"
    if stands_in and "section" in names:
        names["section"] += " (one side unmeasured)"
    anchors = list[Anchor]()
    for level in known:
        many = calls if staged and level != "stage" else (1, 1)
        anchors.append((level, names[level], (baseline[level] * (many[0] or 1), candidate[level] * (many[1] or 1))))
    num_units = math.lcm(*(ns.denominator for *_, times in anchors for ns in times))
    apart = Spread(none_because="each level was measured by itself")
    ledger = close_ledger((({}, {}, ()), ({}, {}, ())), anchors, known, lambda label: "kernel", num_units, apart)
    why = "mean of the measurements of each level" + (f", {calls[0]} and {calls[1]} calls in a stage" if staged else "")
    return replace(ledger, unit="stage" if staged else "call", why=why, missing=missing)


def implied_calls(baseline: Means, candidate: Means, *, given: int | None = None) -> ImpliedCalls | None:
    """Divide the stage's saving by a call's; `None` if either is not known or the call saves nothing.

    Args:
        given: a number of calls to try beside the nearest whole ones.
    """
    if not all({"stage", "attention"} <= side.keys() for side in (baseline, candidate)):
        return None
    stage, call = (baseline[level] - candidate[level] for level in ("stage", "attention"))
    if not call or stage / call < 1:
        return None
    calls = stage / call
    tried = sorted({math.floor(calls), math.ceil(calls), *(() if given is None else (given,))})
    return calls, tuple((n, stage - n * call) for n in tried)


def coincidences(baseline: Means, candidate: Means) -> tuple[tuple[str, str, Fraction], ...]:
    """Find different quantities that are suspiciously equal; return both names and the relative difference.

    A kernel may well be all of its section: they come from the same events, and are not held against each other.
    """
    figures = [
        (level, f"the {side}'s {_WORDS[level]}", times[level])
        for side, times in (("baseline", baseline), ("candidate", candidate))
        for level in _OF_CALL
        if times.get(level) and not (level == "section" and times[level] == times.get("kernel"))
    ]
    found = []
    for (level, name, value), (other_level, other_name, other) in combinations(figures, 2):
        apart = abs(value - other) / max(value, other)
        traced = {level, other_level} <= {"kernel", "section"}
        if level != other_level and not traced and apart <= NEARLY:
            found.append((name, other_name, apart))
    return tuple(found)
